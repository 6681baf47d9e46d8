"""Limits on untrusted JSON before it is parsed, and escaping of line ends before it is sent.

Parsing a small text can need a hundred times its size in memory, and block the event loop for
seconds. The values can also be invalid (NaN) or impossible to serialise again. Therefore the number
of values and their nesting are checked before the text is parsed.
"""

from __future__ import annotations

import json
import math
import re
from itertools import islice
from typing import Any, NoReturn

#: Maximum number of tokens of one document: commas, and opening brackets and braces. Parsing a
#: document with this number takes up to 0.1 s.
MAX_TOKENS = 10_000
#: Maximum nesting of brackets and braces. A message needs five levels; protobuf allows a hundred.
MAX_DEPTH = 32
#: Maximum number of digits of a whole number. Python would take seconds to parse very long numbers.
_MAX_DIGITS = 32

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"?'
_TOKEN = re.compile(_STRING + rb"|[,\[{]", re.DOTALL)
_BRACKET = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)

#: Characters at which ``str.splitlines`` ends a line, in UTF-8 and as JSON escapes. Clients that
#: use ``str.splitlines`` on streams end lines there too. JSON allows these characters unescaped
#: inside strings, unlike other line ends.
LINE_ENDS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)


def escape_line_ends(text: bytes) -> bytes:
    """Return complete JSON documents (UTF-8) with the characters of ``LINE_ENDS`` escaped.

    The values of the documents do not change.
    """
    for stray, escaped in LINE_ENDS:
        text = text.replace(stray, escaped)
    return text


def count_tokens(document: bytes) -> int:
    """Return the number of tokens: commas and opening brackets and braces outside strings.

    If strings contain such characters, the result may be too large, but at most ``MAX_TOKENS``. The
    result is ``MAX_TOKENS + 1`` if there are more tokens, or more strings than ``MAX_TOKENS``
    tokens can separate.
    """
    rough = document.count(b",") + document.count(b"[") + document.count(b"{")
    if rough <= MAX_TOKENS:
        return rough
    tokens = strings = 0
    for match in _TOKEN.finditer(document):
        if match.end() - match.start() > 1 or match[0] == b'"':
            strings += 1
        else:
            tokens += 1
        if tokens > MAX_TOKENS or strings > 2 * (MAX_TOKENS + 1):
            return MAX_TOKENS + 1
    return tokens


def parse_document(document: bytes) -> Any:
    """Return the value of a JSON document in UTF-8, after checking its size and nesting.

    Raises ValueError, which names the violated requirement: UTF-8, JSON, at most ``MAX_TOKENS``
    values and ``MAX_DEPTH`` levels, and finite numbers. Strings in the result may contain lone
    surrogates from escape sequences.
    """
    try:
        text = document.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"must be UTF-8: {error.reason} at byte {error.start}") from None
    _check_depth(document)
    if count_tokens(document) > MAX_TOKENS:
        raise ValueError(f"must contain at most {MAX_TOKENS} values")
    try:
        return json.loads(
            text, parse_constant=_refuse_number, parse_float=_float, parse_int=_integer
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"must be JSON: {error}") from None


def _check_depth(document: bytes) -> None:
    depth = 0
    # a document with more brackets and strings than this has too many tokens in any case
    for match in islice(_BRACKET.finditer(document), 5 * MAX_TOKENS):
        if (bracket := match[0]) in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"is too deeply nested: at most {MAX_DEPTH} levels are allowed")
        elif bracket in b"]}":
            depth -= 1


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"must contain finite numbers, not {text[:_MAX_DIGITS]}")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse_number(text)
    return value


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"must contain whole numbers of at most {_MAX_DIGITS} digits")
    return int(text)
