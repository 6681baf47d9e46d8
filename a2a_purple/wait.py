"""Parser of the waiting time that a provider requests in headers or in the text of an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

#: Maximum number of characters of an error text that are searched.
MAX_WORDS = 20_000

_NUMBER = r"\d{1,9}(?:\.\d{1,12})?"
#: Length of each unit in s, by the first letters of the unit's name.
_UNITS_S = {"ms": 1e-3, "mil": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNIT = r"(?:ms|milli\w*|h|hrs?|hours?|m|mins?|minutes?|s|secs?|seconds?)(?![a-z])"
_SPAN = re.compile(rf"(?P<number>{_NUMBER})\s?(?P<unit>{_UNIT})", re.IGNORECASE)
#: A sentence (``try again in 1m2.5s``) or a value with its unit (``"retryDelay": "23s"``).
_SAID = re.compile(
    r"(?:again|retry|wait|resets?|delay)[^\d\n]{0,40}?"
    rf"(?P<spans>{_NUMBER}\s?{_UNIT}(?:[ ,]{{0,2}}{_NUMBER}\s?{_UNIT}){{0,3}})",
    re.IGNORECASE,
)
#: A value without a unit: ``retry_after: 3``, ``"estimated_time": 20.0``, ``retry_after_ms=250``.
_VALUE = re.compile(
    r"(?:retry[_-]?after|retry[_-]?delay|estimated[_-]?time|wait[_-]?time)"
    rf"(?:[_-]?in)?(?:[_-]?(?P<unit>ms|milli\w*|s|sec\w*))?[\"':= ]{{1,6}}(?P<number>{_NUMBER})"
    r"(?![\w.])",
    re.IGNORECASE,
)


def asked_wait_s(headers: Mapping[str, str], words: str) -> float | None:
    """Return the waiting time in s that a provider requests; None if the response contains none."""
    by_header = _of_headers(headers)
    return _of_words(words[:MAX_WORDS]) if by_header is None else by_header


def _of_headers(headers: Mapping[str, str]) -> float | None:
    for name, second in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = str(headers.get(name, "")).strip()
        if re.fullmatch(_NUMBER, value):
            return float(value) * second
        try:
            date = parsedate_to_datetime(value)
        except ValueError:
            continue
        # A date without a time zone is UTC.
        until = date if date.tzinfo else date.replace(tzinfo=UTC)
        return max(0.0, (until - datetime.now(UTC)).total_seconds())
    return None


def _of_words(words: str) -> float | None:
    if value := _VALUE.search(words):
        return _seconds(value)
    if said := _SAID.search(words):
        return sum(map(_seconds, _SPAN.finditer(said["spans"])))
    return None


def _seconds(match: re.Match[str]) -> float:
    unit = (match["unit"] or "s").lower()
    begins = next(begin for begin in _UNITS_S if unit.startswith(begin))
    return float(match["number"]) * _UNITS_S[begins]
