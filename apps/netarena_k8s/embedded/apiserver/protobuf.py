r"""Parser for the part of protobuf that access reviews need: selected fields of a message.

>>> read(b"\x0a\x02hi", {1: Text("word")})
{'word': 'hi'}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Text:
    """A string field."""

    name: str


@dataclass(frozen=True)
class Repeated:
    """A bytes field that may occur several times."""

    name: str


@dataclass(frozen=True)
class Field:
    """A field whose value is a message."""

    name: str
    fields: Message


Message: TypeAlias = Mapping[int, "Text | Repeated | Field"]
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES = 10


def read(data: bytes, fields: Message) -> dict[str, Any]:
    """Return the values of ``fields`` in ``data`` and skip other fields. Raises ValueError."""
    found: dict[str, Any] = {}
    for number, value in _split(data):
        match fields.get(number):
            case Text(name=name):
                found[name] = value.decode()
            case Repeated(name=name):
                found.setdefault(name, []).append(value)
            case Field(name=name, fields=inner):
                found[name] = read(value, inner)
            case None:
                pass
    return found


def _split(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and content of each length-delimited field of a message."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            _, place = _varint(data, place)
        elif wire in {_FIXED64, _FIXED32}:
            place += 8 if wire == _FIXED64 else 4
        elif wire == _BYTES:
            length, place = _varint(data, place)
            if place + length > len(data):
                raise ValueError("the message is truncated")
            yield number, data[place : place + length]
            place += length
        else:
            raise ValueError(f"unknown wire type {wire}")


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(data[place : place + _VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, place + shift + 1
    raise ValueError("the message is truncated")
