"""Parser for the untrusted result of agent code.

The child writes one byte when its protections are on, before any agent code runs, then one
message: a tag byte and JSON. Agent code can write to the same descriptor. Its output is parsed
like any other, and the only possible reaction is to refuse it.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any, NoReturn

from netarena.model import JsonValue

__all__ = ["MAX_DEPTH", "MAX_DIGITS", "ClaimRefused", "TooLarge", "read_json"]

#: Deeper values would exhaust the stack of code that traverses them.
MAX_DEPTH = 64
#: Longer integers overflow a float and take quadratic time to print.
MAX_DIGITS = 300

# Integers out of bounds have such a run of digits; only texts that do pay for a call for each.
_ALIKE = bytes.maketrans(b"123456789", b"000000000")
_LONG_RUN = b"0" * (MAX_DIGITS + 1)


class ClaimRefused(ValueError):
    """Not plain JSON within limits; the text says why, in one line."""


class TooLarge(ClaimRefused):
    """Possibly plain JSON, with more values or text than allowed."""


def read_json(text: bytes | bytearray, *, max_values: int, max_bytes: int) -> JsonValue:
    """Parse JSON in which every string is valid Unicode and every number finite.

    ``max_values`` limits the number of values, including names of members, by counting separators
    before anything is built: a few megabytes of brackets would become hundreds. ``max_bytes``
    limits the characters times their width in memory, that of the widest: one character beyond the
    basic plane makes every character of its string take four bytes.

    No other thread runs while C code decodes and parses. The caller's limits on bytes and values
    therefore also limit how long the event loop stands still (about 35 ms per MiB). Python
    callbacks for each number would let other threads run, but a thread that reads sockets in
    small pieces waits at each piece, longer in total.
    Raises ClaimRefused.
    """
    values = sum(map(text.count, (b",", b":", b"[", b"{"))) + 1
    if values > max_values:
        raise TooLarge(f"more than {max_values} values")
    try:
        characters = text.decode("utf-8")
        if _size(characters, text) > max_bytes:
            raise TooLarge(f"text of more than {max_bytes} bytes in memory")
        value = json.loads(
            characters,
            parse_int=_integer if _LONG_RUN in text.translate(_ALIKE) else None,
            parse_constant=_refuse_constant,
        )
        # only an escape can produce a lone surrogate
        _check(value, halves=b"\\u" in text)
    except ClaimRefused:
        raise
    except UnicodeError:
        raise ClaimRefused("text that is not valid Unicode") from None
    except RecursionError:
        raise ClaimRefused(f"nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise ClaimRefused(f"not JSON: {error}") from None
    return value  # type: ignore[no-any-return]


def _size(characters: str, text: bytes | bytearray) -> int:
    """Return the memory that the strings of a text may take, as one string."""
    if b"\\ud" in text or b"\\uD" in text:  # halves of characters that take four bytes
        escaped = 4
    else:
        escaped = 2 if text.count(b"\\u") > text.count(b"\\u00") else 1
    return max(sys.getsizeof(characters) - sys.getsizeof(""), len(characters) * escaped)


def _integer(digits: str) -> int:
    if len(digits.removeprefix("-")) > MAX_DIGITS:
        raise ClaimRefused(f"an integer of more than {MAX_DIGITS} digits")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise ClaimRefused(f"{name}, which JSON does not have")


def _check(value: object, *, halves: bool) -> None:
    """Refuse infinity, excessive depth and, if ``halves``, lone surrogates.

    Level by level, not recursively. Raises ClaimRefused or UnicodeEncodeError.
    """
    level: list[Any] = [value]
    depth = 0
    while level:
        below: list[Any] = []
        for member in level:
            kind = type(member)  # faster than isinstance, and json makes no other types
            if kind is str:
                if halves and not member.isascii():
                    member.encode("utf-8")
            elif kind is float and math.isinf(member):
                raise ClaimRefused("a number beyond the range of floats")
            elif kind is dict or kind is list:
                if depth == MAX_DEPTH:
                    raise ClaimRefused(f"nested deeper than {MAX_DEPTH}")
                if kind is list:
                    below += member
                else:
                    below += member.values()
                    if halves:
                        below += member  # names of members
        level = below
        depth += 1
