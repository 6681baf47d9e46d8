"""Parser of the untrusted messages from a child that runs agent code.

The child writes one byte after it has applied its protections and before agent code runs. After the
agent code, it writes one message: a tag byte and JSON. Agent code can write to the same descriptor,
so every message is untrusted. The parser only accepts or refuses a message.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any, NoReturn

from netarena.model import JsonValue

__all__ = ["MAX_DEPTH", "MAX_DIGITS", "ClaimRefused", "TooLarge", "read_json"]

#: Maximum depth of a value; deeper values would exhaust the stack of code that traverses them.
MAX_DEPTH = 64
#: Maximum number of digits of an integer. Longer integers overflow a float, and converting them to
#: text takes quadratic time.
MAX_DIGITS = 300

# Translation table that replaces all digits with 0. It is used to find texts with a run of more
# than ``MAX_DIGITS`` digits. Only such texts are parsed with the slow check of each integer.
_ALIKE = bytes.maketrans(b"123456789", b"000000000")
_LONG_RUN = b"0" * (MAX_DIGITS + 1)


class ClaimRefused(ValueError):
    """The text is not plain JSON within the limits; the message gives the reason in one line."""


class TooLarge(ClaimRefused):
    """The text has more values or characters than allowed, although it may be valid JSON."""


def read_json(text: bytes | bytearray, *, max_values: int, max_bytes: int) -> JsonValue:
    """Parse JSON in which every string is valid Unicode and every number finite.

    ``max_values`` limits the number of values, including names of members. Separators are counted
    before any value is built, because a few megabytes of brackets would become hundreds of
    megabytes of values. ``max_bytes`` limits the number of characters times the bytes of the widest
    character. Python stores all characters of a string with the size of the widest character.

    C code decodes and parses the text, and no other thread runs during this time. The caller's
    limits on bytes and values therefore also limit how long the event loop is blocked (about 35 ms
    per MiB). Raises ClaimRefused.
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
        # only an escape sequence can produce a lone surrogate
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
    """Return an upper bound of the memory in bytes of the strings in a JSON text."""
    if b"\\ud" in text or b"\\uD" in text:  # surrogate pairs become characters of four bytes
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
    """Refuse infinity, excessive depth and, with ``halves``, lone surrogates in a parsed value.

    Values are checked level by level, not recursively. Raises ClaimRefused or UnicodeEncodeError.
    """
    level: list[Any] = [value]
    depth = 0
    while level:
        below: list[Any] = []
        for member in level:
            kind = type(member)  # faster than isinstance; the json module creates no subclasses
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
                        below += member  # the names of an object's members
        level = below
        depth += 1
