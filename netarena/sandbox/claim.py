"""What came back from agent code: bytes that claim to be an answer, parsed as hostile.

The child writes one byte when its protections are on and before any agent code runs, then one
message: a tag byte and JSON. Agent code can write to the same descriptor; whatever it writes is a
claim like any other, so nothing here may do more than refuse it.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from netarena.model import JsonValue

__all__ = ["MAX_DEPTH", "MAX_DIGITS", "ClaimRefused", "read_json"]

#: deeper values would exhaust the stack of whoever walks them
MAX_DEPTH = 64
#: longer integers overflow a float, and cost quadratic time to print
MAX_DIGITS = 300


# Numbers out of bounds have one of these; only texts that do pay for a look at each number.
_ALIKE = bytes.maketrans(b"123456789", b"000000000")
_LONG_RUN = b"0" * (MAX_DIGITS - 1)
_EXPONENT = re.compile(rb"[eE]\+?\d\d")


class ClaimRefused(ValueError):
    """Not plain JSON within bounds; the text, in one line, says why."""


def read_json(text: bytes, *, max_values: int) -> JsonValue:
    """Parse JSON whose every string is valid Unicode and every number finite.

    ``max_values`` bounds the number of values, names of members left out, by a count of
    separators, before anything is built: a few megabytes of brackets would become hundreds.
    Raises ClaimRefused.
    """
    values = text.count(b",") + text.count(b"[") + text.count(b"{") + 1
    if values > max_values:
        raise ClaimRefused(f"more than {max_values} values")
    try:
        suspect = _EXPONENT.search(text) or _LONG_RUN in text.translate(_ALIKE)
        value = json.loads(
            text.decode("utf-8"),
            parse_int=_integer if suspect else None,
            parse_float=_finite if suspect else None,
            parse_constant=_refuse_constant,
        )
        if b"\\u" in text:  # only an escape can bring half a surrogate pair
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except ClaimRefused:
        raise
    except UnicodeError:
        raise ClaimRefused("text that is not valid Unicode") from None
    except RecursionError:
        raise ClaimRefused(f"nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise ClaimRefused(f"not JSON: {error}") from None
    if _depth_exceeds(value, MAX_DEPTH):
        raise ClaimRefused(f"nested deeper than {MAX_DEPTH}")
    return value  # type: ignore[no-any-return]


def _integer(digits: str) -> int:
    if len(digits.removeprefix("-")) > MAX_DIGITS:
        raise ClaimRefused(f"an integer of more than {MAX_DIGITS} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ClaimRefused("a number beyond the range of floats")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ClaimRefused(f"{name}, which JSON does not have")


_CONTAINERS = frozenset((dict, list))  # faster to ask than isinstance, and all that json makes


def _depth_exceeds(value: object, limit: int) -> bool:
    """Level by level, not recursively."""
    level: list[Any] = [value] if type(value) in _CONTAINERS else []
    for _ in range(limit):
        if not level:
            return False
        level = [
            member
            for container in level
            for member in (container.values() if type(container) is dict else container)
            if type(member) in _CONTAINERS
        ]
    return bool(level)
