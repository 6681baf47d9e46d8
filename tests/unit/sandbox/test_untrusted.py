"""Reading arbitrary bytes of agent code either returns plain JSON or raises ClaimRefused."""

from __future__ import annotations

import json
import math
import sys
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netarena.sandbox.untrusted import MAX_DEPTH, MAX_DIGITS, ClaimRefused, read_json
from tests.thorough import THOROUGH

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**200), 10**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_plain(key) and _plain(member) for key, member in value.items())
    if isinstance(value, list):
        return all(map(_plain, value))
    if isinstance(value, str):
        return value.encode("utf-8").decode("utf-8") == value
    return value is None or isinstance(value, bool | int) or math.isfinite(value)


#: drawing nested values is slow when many tests run at once
unhurried = settings(THOROUGH, suppress_health_check=[HealthCheck.too_slow])


@unhurried
@given(values, st.booleans())
def test_json_of_plain_values_is_read_unchanged(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert read_json(text, max_values=100_000, max_bytes=1 << 20) == value


@unhurried
@given(
    st.binary()
    | st.text('[]{}",:0123456789eE+-.\\ud8ntrfalsNIy ').map(lambda text: text.encode())
    | st.builds(lambda value, cut: json.dumps(value).encode()[cut:], values, st.integers(-9, 9))
)
def test_arbitrary_bytes_are_read_as_plain_values_or_refused(text: bytes) -> None:
    value = None
    with suppress(ClaimRefused):
        value = read_json(text, max_values=1000, max_bytes=1 << 20)
    assert _plain(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not JSON"),
        (b"1 1", "not JSON"),
        (b'{"a":', "not JSON"),
        (b"\xff\xfe[", "Unicode"),
        ("[1]".encode("utf-16"), "Unicode"),
        ("[1]".encode("utf-32-le"), "not JSON"),
        (b"\xef\xbb\xbf[1]", "not JSON"),
        (b'"\\ud800"', "Unicode"),
        (b'{"\\udc00":1}', "Unicode"),
        (b'"\xed\xa0\x80"', "Unicode"),
        (b"NaN", "NaN"),
        (b"[-Infinity]", "Infinity"),
        (b"-1e400", "range"),
        (b"9" * 299 + b"e10", "range"),
        (b"9" * 395 + b".5", "range"),
        (b"[1.0," + b"9" * 309 + b".0]", "range"),
        (b"-" + b"1" * (MAX_DIGITS + 1), "digits"),
        (b"1" * (MAX_DIGITS + 1), "digits"),
        (b"1" * 100_000, "digits"),
        (b"[" * MAX_DEPTH + b"[" + b"]" * (MAX_DEPTH + 1), "deeper"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "deeper"),
        (b"[" * 200_000, "values"),
        (b"[" * 90_000 + b"]" * 90_000, "deeper"),
        (b"[" + b"[]," * 60_000 + b"1]", "values"),
        (b"{" + b'"a":0,' * 60_000 + b'"b":0}', "values"),
        (b'"' + b"a" * (1 << 20) + b'"', "memory"),
        ('"\U0001f600'.encode() + b"a" * 270_000 + b'"', "memory"),
        (b'"\\uD83D\\ude00' + b"a" * 270_000 + b'"', "memory"),
        (b'"\\u0416' + b"a" * 530_000 + b'"', "memory"),
        (b'["a' + b"]," * 70 + b'","\\udbff"]', "Unicode"),
        (b'{"a":[{"b\\ud800":1}]}', "Unicode"),
    ],
)
def test_invalid_or_oversized_json_is_refused_with_a_reason(text: bytes, reason: str) -> None:
    with pytest.raises(ClaimRefused, match=reason):
        read_json(text, max_values=100_000, max_bytes=1 << 20)


def test_json_at_each_limit_is_read_and_above_it_refused() -> None:
    deep = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert read_json(deep, max_values=MAX_DEPTH + 1, max_bytes=1 << 20)
    assert read_json(b"9" * MAX_DIGITS, max_values=1, max_bytes=1 << 20) == int("9" * MAX_DIGITS)
    assert read_json(b"-" + b"9" * MAX_DIGITS, max_values=1, max_bytes=1 << 20) == -int(
        "9" * MAX_DIGITS
    )
    assert read_json(b"9" * 299 + b"e9", max_values=1, max_bytes=1 << 20) == float("9" * 299 + "e9")
    assert read_json(b'"\\ud83d\\ude00"', max_values=1, max_bytes=1 << 20) == "\U0001f600"
    # an escaped character counts with its own size, not with that of the escape
    plain = b'"\\u001b' + b"a" * 1_000_000 + b'"'
    assert len(str(read_json(plain, max_values=1, max_bytes=1 << 20))) == 1_000_001
    assert read_json(b"[1,2,3]", max_values=4, max_bytes=7) == [1, 2, 3]
    with pytest.raises(ClaimRefused, match="more than 3 values"):
        read_json(b"[1,2,3]", max_values=3, max_bytes=7)


def test_long_integer_is_refused_even_without_pythons_digit_limit() -> None:
    """The refusal must come before the conversion: a million digits take tens of seconds."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(ClaimRefused, match="more than 300 digits"):
            read_json(b"7" * 1_000_000, max_values=1, max_bytes=1 << 20)
    finally:
        sys.set_int_max_str_digits(before)
