"""A general parser for the notation of the published grammar, which finds all parses of a text.

A grammar consists of symbols with productions (docs/malt-language.md). ``{x}`` in a production is
either an operand of the symbol, which the rule of that name reads, or another symbol, whose
operands become operands of the enclosing symbol. The parser follows all parses, but parses each
piece of text only once for each symbol. The result is a tree of ``Node``; equal parses are equal
trees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

#: for each parse from a start: its end and its value
Readings: TypeAlias = "list[tuple[int, Any]]"
#: function that reads an operand other than a symbol: digits, words for numbers, or names
Rule: TypeAlias = Callable[["Reading", int], Readings]

_PART = re.compile(r"\{([^}]*)\}|([^{}\[\]]+)")


@dataclass(frozen=True, slots=True)
class Node:
    """A parsed symbol: its operands and its start."""

    symbol: str
    operands: tuple[tuple[str, Any], ...]
    start: int

    def __getitem__(self, name: str) -> Any:
        """Return an operand by name; None if it is absent."""
        return dict(self.operands).get(name)


class _Slot(NamedTuple):
    name: str


class _Option(NamedTuple):
    parts: tuple[Any, ...]


class _Symbol(NamedTuple):
    operands: frozenset[str]
    productions: tuple[tuple[Any, ...], ...]


def _parts(text: str) -> tuple[Any, ...]:
    return tuple(_Slot(slot) if slot else _literal(words) for slot, words in _PART.findall(text))


def _literal(words: str) -> re.Pattern[str]:
    """Return a pattern of words in any case; after a block, a line break may replace a space."""
    written = [
        rf"(?:{part}|\n)" if part.isspace() else re.escape(part)
        for part in re.split(r"(\s+)", words.lower())
    ]
    return re.compile("".join(written))


def _production(text: str) -> tuple[Any, ...]:
    parts: list[Any] = []
    for outside, inside in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", text):
        parts += _parts(outside) if outside else [_Option(_parts(inside))]
    return tuple(parts)


class Language:
    """A grammar for reading texts. Each operand has its own rule or a list of possible symbols."""

    def __init__(
        self,
        grammar: Mapping[str, Mapping[str, Any]],
        operands: Mapping[str, Rule | Iterable[str]],
        further: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self.symbols = {
            name: _Symbol(
                frozenset(
                    operand
                    for entry in symbol.get("operands", ())
                    for operand in entry.rstrip("?*").split("|")
                ),
                tuple(
                    _production(text)
                    for text in (
                        *symbol.get("productions", ()),
                        *symbol.get("held_out", ()),
                        *(further or {}).get(name, ()),
                    )
                ),
            )
            for name, symbol in grammar.items()
        }
        self.rules: dict[str, Rule] = {
            name: rule if callable(rule) else _any_of(tuple(rule))
            for name, rule in operands.items()
        }

    def read(self, text: str, symbols: Iterable[str]) -> set[Node]:
        """Return all parses of the complete ``text`` as one of ``symbols``."""
        reading = Reading(self, text)
        return {
            node for name in symbols for end, node in reading.symbol(name, 0) if end == len(text)
        }


def _any_of(symbols: tuple[str, ...]) -> Rule:
    def rule(reading: Reading, start: int) -> Readings:
        return [found for name in symbols for found in reading.symbol(name, start)]

    return rule


class Reading:
    """One text, and the parses found in it so far."""

    def __init__(self, language: Language, text: str) -> None:
        self.language = language
        self.text = text
        self.lower = text.lower()
        self._symbols: dict[tuple[str, int], Readings] = {}
        self._operands: dict[tuple[str, int], Readings] = {}

    def symbol(self, name: str, start: int) -> Readings:
        """Return the parses of a symbol from a start: ends and nodes."""
        key = name, start
        if key not in self._symbols:
            symbol = self.language.symbols[name]
            found: dict[tuple[int, Node], None] = {}
            for production in symbol.productions:
                for end, said in self._sequence(symbol.operands, production, 0, start):
                    # both values of an operand are kept, so different values give different nodes
                    operands = tuple(sorted(said, key=lambda item: item[0]))
                    found[end, Node(name, operands, start)] = None
            self._symbols[key] = list(found)
        return self._symbols[key]

    def operand(self, name: str, start: int) -> Readings:
        """Return the parses of an operand from a start."""
        key = name, start
        if key not in self._operands:
            self._operands[key] = list(dict.fromkeys(self.language.rules[name](self, start)))
        return self._operands[key]

    def _sequence(
        self, operands: frozenset[str], parts: tuple[Any, ...], place: int, start: int
    ) -> Iterator[tuple[int, tuple[Any, ...]]]:
        if place == len(parts):
            yield start, ()
            return
        for end, said in self._part(operands, parts[place], start):
            for last, more in self._sequence(operands, parts, place + 1, end):
                yield last, (*said, *more)

    def _part(
        self, operands: frozenset[str], part: Any, start: int
    ) -> Iterator[tuple[int, tuple[Any, ...]]]:
        if isinstance(part, re.Pattern):
            if match := part.match(self.lower, start):
                yield match.end(), ()
        elif isinstance(part, _Option):
            yield start, ()
            yield from self._sequence(operands, part.parts, 0, start)
        elif part.name in operands:
            for end, value in self.operand(part.name, start):
                yield end, ((part.name, value),)
        else:
            for end, node in self.symbol(part.name, start):
                yield end, node.operands
