from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.a2a import document
from netarena.a2a.document import (
    MAX_DEPTH,
    MAX_TOKENS,
    count_tokens,
    escape_line_ends,
    parse_document,
)
from tests.thorough import THOROUGH

VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20,
)  # fmt: skip


@THOROUGH
@given(VALUE, st.booleans())
def test_value_is_parsed_as_it_was_written(value, ascii_only):
    # drawn text contains no surrogates, and nesting stays below the limit
    assert parse_document(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@THOROUGH
@given(VALUE)
def test_escaped_line_ends_do_not_change_the_document(value):
    whole = json.dumps({"text": value}, ensure_ascii=False).encode()
    sent = escape_line_ends(whole)
    assert json.loads(sent) == json.loads(whole)
    assert len(sent.decode().splitlines()) == 1


def test_every_kind_of_line_end_is_escaped():
    text = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    assert len(text.splitlines()) == len(text)
    sent = escape_line_ends(json.dumps(text, ensure_ascii=False).encode())
    assert len(sent.decode().splitlines()) == 1
    assert json.loads(sent) == text


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"\xff\xfe", "must be UTF-8: invalid start byte at byte 0"),
        ('{"a": 1}'.encode("utf-16"), "must be UTF-8"),
        ('"é"'.encode("latin-1"), "must be UTF-8: invalid continuation byte at byte 1"),
        (b"", "must be JSON: Expecting value"),
        (b"{", "must be JSON"),
        (b"[" * 100_000, "too deeply nested: at most 32 levels are allowed"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "too deeply nested"),
        (b"[" + b"[]," * MAX_TOKENS + b"[]]", "must contain at most 10000 values"),
        (b'["",' + b'"",' * MAX_TOKENS + b"0]", "must contain at most 10000 values"),
        (b"NaN", "must contain finite numbers, not NaN"),
        (b"[-Infinity]", "must contain finite numbers, not -Infinity"),
        (b"1e999", "must contain finite numbers, not 1e999"),
        (b"1" * 5000, "must contain whole numbers of at most 32 digits"),
    ],
)
def test_invalid_document_is_refused_with_the_reason(raw, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        parse_document(raw)
    assert "\n" not in str(caught.value)


def test_document_within_the_limits_is_parsed():
    assert parse_document(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    assert len(parse_document(b"[" + b"0," * (MAX_TOKENS - 1) + b"0]")) == MAX_TOKENS
    assert parse_document(b'"' + b"[{," * 10**5 + b'"') == "[{," * 10**5
    assert parse_document(b"\xef\xbb\xbf1") == 1


@pytest.mark.parametrize("part", [b"[],", b'"a",', b'"" '])
def test_document_with_too_many_values_is_not_scanned_to_its_end(part, monkeypatch):
    seen = 0

    class Watched:
        def finditer(self, raw):
            nonlocal seen
            for match in token.finditer(raw):
                seen += 1
                yield match

    token = document._TOKEN
    monkeypatch.setattr(document, "_TOKEN", Watched())
    assert count_tokens(part * 10**5 + b"," * (MAX_TOKENS + 1)) > MAX_TOKENS
    assert 0 < seen < 5 * MAX_TOKENS
