"""Grammars of task texts: productions as data, a checker of productions, and their expansion.

A grammar is a JSON object of symbols. This package contains ``grammar.json``;
docs/malt-language.md describes the notation. A production is text with slots. ``{x}`` is an operand
from the caller (the code or production that uses the symbol), or another symbol, which is expanded
with the same operands. A part ``[...]`` is left out if an operand in it is absent.

A symbol determines how often each of its productions, including private productions, must mention
each operand. Therefore no production can leave out information on which the answer depends:

=========  =================================================================================
``a``      exactly once
``a|b``    exactly one of two or more operands, once; the caller may leave out some of them
``a?``     like ``a``, but the caller may leave out ``a``: then brackets with ``a`` are left
           out, and productions that mention it outside brackets are not used
``a|b?``   like ``a|b``, but the caller may leave out all of these operands together
``a*``     any number of times, or never
=========  =================================================================================
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from netarena.sdk import Check, ConfigError, Severity, one_line

#: Environment variable with the path of the pack, a file of private productions.
PACK_VARIABLE = "NETARENA_PHRASING_PACK"
PACK_FORMAT = 1

#: An operand's text, or a function that returns the text once expansion reaches the operand; None
#: if the operand is absent.
Operand: TypeAlias = "str | Callable[[], str] | None"

#: Probability with which a held-out text uses a held-out production of a symbol that has such
#: productions.
_HELD_OUT_SHARE = 0.7
#: Probability with which the pack's productions of a symbol replace the symbol's built-in held-out
#: productions.
_PACK_SHARE = 0.6
_TOKEN = re.compile(r"\{([^{}\[\]]*)\}|([\[\]{}])|([^{}\[\]]+)")
_START = re.compile(r"(?:\A|[.?!]\s+|\n *)[a-z]")
_MAX_PACK_BYTES = 1 << 20
#: Maximum number of characters of a production in a pack; productions in ``grammar.json`` have at
#: most about 200 characters.
_MAX_PRODUCTION_CHARS = 500
_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Slot:
    """A slot ``{name}`` in a production."""

    name: str


@dataclass(frozen=True)
class Option:
    """An optional part ``[...]`` of a production."""

    parts: tuple[str | Slot, ...]
    #: Operands that this part needs; the part is left out if any of them is absent.
    needs: frozenset[str] = frozenset()


Part: TypeAlias = str | Slot | Option


@dataclass(frozen=True)
class Production:
    """One of the possible texts of a symbol."""

    #: Symbol, slash and number among the symbol's productions, such as ``total/3``. Held-out
    #: productions have numbers such as ``h3``, productions of the pack such as ``p3``.
    id: str
    text: str
    parts: tuple[Part, ...]
    #: Operands that the production needs; the production is not used if any of them is absent.
    needs: frozenset[str] = frozenset()
    #: The production's text, if it has no slots.
    words: str | None = None


@dataclass(frozen=True)
class Symbol:
    """A non-terminal symbol: its productions, and the operands that each production must
    mention."""

    name: str
    about: str
    #: Operands with their marks (such as ``?``), as written in the file.
    operands: tuple[str, ...]
    productions: tuple[Production, ...] = ()
    held_out: tuple[Production, ...] = ()
    pack: tuple[Production, ...] = ()

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the operands without their marks."""
        return frozenset(name for entry in self.operands for name in _names(entry))


@dataclass(frozen=True)
class Grammar:
    """A set of symbols by name. ``expand`` returns texts."""

    symbols: Mapping[str, Symbol]
    #: SHA-256 of the pack in hex; empty without a pack.
    pack: str = ""

    def expand(
        self,
        symbol: str,
        operands: Mapping[str, Operand],
        rng: random.Random,
        *,
        held_out: bool = False,
        used: Counter[str] | None = None,
    ) -> str:
        """Return a text for ``symbol``, drawn with ``rng``.

        Operands that are functions are called in the order in which the text mentions them.
        ``used`` counts the used productions by id. Raises KeyError for an unknown symbol and
        IndexError if no production fits these operands.
        """
        root = self.symbols[symbol]
        if not operands:
            # Most expanded symbols are words without slots. This shortcut handles them faster.
            production = _choose(root, _NOTHING, rng, held_out=held_out)
            if production.words is not None:
                if used is not None:
                    used[production.id] += 1
                return production.words

        def write(name: str) -> str:
            if name in operands:
                value = operands[name]
                return str(value() if callable(value) else value)
            return grow(self.symbols[name])

        def grow(found: Symbol) -> str:
            production = _choose(found, absent, rng, held_out=held_out)
            if used is not None:
                used[production.id] += 1
            if production.words is not None:
                return production.words
            text = []
            for part in production.parts:
                if isinstance(part, str):
                    text.append(part)
                elif isinstance(part, Slot):
                    text.append(write(part.name))
                elif absent.isdisjoint(part.needs):
                    text += [p if isinstance(p, str) else write(p.name) for p in part.parts]
            return "".join(text)

        absent = root.names.difference(operands)
        if None in operands.values():
            absent |= {name for name, value in operands.items() if value is None}
        return grow(root)

    def productions(self) -> Iterator[tuple[Production, bool]]:
        """Yield every production in ``grammar.json``, and whether it is held out."""
        for symbol in self.symbols.values():
            yield from ((production, False) for production in symbol.productions)
            yield from ((production, True) for production in symbol.held_out)


def start_sentences(text: str) -> str:
    """Return ``text`` with a capital letter at the start of each sentence."""
    return _START.sub(lambda match: match[0].upper(), text)


def _choose(
    symbol: Symbol, absent: frozenset[str], rng: random.Random, *, held_out: bool
) -> Production:
    usable: Sequence[Production] = symbol.productions
    if held_out:
        own: Sequence[Production] = symbol.held_out
        if symbol.pack and (not own or rng.random() < _PACK_SHARE):
            own = symbol.pack
        own = _usable(own, absent)
        if own and rng.random() < _HELD_OUT_SHARE:
            return _pick(own, rng)
    return _pick(_usable(usable, absent), rng)


def _pick(productions: Sequence[Production], rng: random.Random) -> Production:
    # This code takes a fifth of the time of random.choice() and runs dozens of times per text.
    return productions[int(rng.random() * len(productions))]


def _usable(productions: Sequence[Production], absent: frozenset[str]) -> Sequence[Production]:
    if not absent:
        return productions
    return [one for one in productions if absent.isdisjoint(one.needs)]


# Reading and checking of grammars and packs.


@dataclass
class _Reader:
    """Checks productions against the signatures of all symbols."""

    signatures: Mapping[str, tuple[str, ...]]
    #: Symbol -> symbols that its productions use.
    uses: dict[str, set[str]] = field(default_factory=dict)

    def read(self, symbol: str, text: Any, identity: str) -> Production:
        """Return the production with this text. Raises ValueError with the reason if the text
        violates the signature of ``symbol``."""
        if not isinstance(text, str) or not text.strip():
            raise ValueError("must be non-empty text")
        parts = tuple(self._mark(symbol, part) for part in _parse(text))
        outside = self._mentions(symbol, [part for part in parts if not isinstance(part, Option)])
        inside: Counter[str] = Counter()
        for part in parts:
            if isinstance(part, Option):
                inside += self._mentions(symbol, part.parts)
        for entry in self.signatures[symbol]:
            self._verify(entry, outside, inside)
        direct = {part.name for part in parts if isinstance(part, Slot)}
        names = {name for entry in self.signatures[symbol] for name in _names(entry)}
        words = text if all(isinstance(part, str) for part in parts) else None
        return Production(identity, text, parts, frozenset(direct & names), words)

    def _mark(self, symbol: str, part: Part) -> Part:
        if not isinstance(part, Option):
            return part
        optional = [entry for entry in self.signatures[symbol] if entry.endswith("?")]
        absent = {name for entry in optional for name in _names(entry)}
        needs = frozenset(self._mentions(symbol, part.parts)) & absent
        if not needs:
            raise ValueError("brackets must contain an operand that may be absent")
        return replace(part, needs=needs)

    def _mentions(self, symbol: str, parts: Sequence[Part]) -> Counter[str]:
        """Return how often each operand is mentioned in ``parts``. A symbol in a slot counts as a
        mention of all operands of the symbol."""
        known = {name for entry in self.signatures[symbol] for name in _names(entry)}
        found: Counter[str] = Counter()
        for part in parts:
            if not isinstance(part, Slot):
                continue
            if part.name in known:
                found[part.name] += 1
            elif part.name in self.signatures:
                self.uses.setdefault(symbol, set()).add(part.name)
                for entry in self.signatures[part.name]:
                    if entry.endswith("*"):
                        continue
                    name = _names(entry)[0]
                    if name not in known:
                        raise ValueError(f"{{{part.name}}} needs the operand {name}")
                    found[name] += 1
            else:
                raise ValueError(
                    f"{{{part.name}}} is neither a symbol nor an operand; operands of {symbol}: "
                    f"{', '.join(self.signatures[symbol]) or 'none'}"
                )
        return found

    @staticmethod
    def _verify(entry: str, outside: Counter[str], inside: Counter[str]) -> None:
        if entry.endswith("*"):
            return
        names = _names(entry)
        out, within = (sum(count[name] for name in names) for count in (outside, inside))
        if within and not entry.endswith("?"):
            raise ValueError(
                f"{{{entry}}} must not be in brackets, because this operand is never absent"
            )
        if out + within != 1:
            raise ValueError(f"{{{entry}}} must occur exactly once, not {out + within} times")

    def verify_no_cycle(self) -> None:
        """Raise ValueError if the expansion of a symbol contains the symbol itself."""
        done: set[str] = set()

        def visit(symbol: str, above: tuple[str, ...]) -> None:
            if symbol in above:
                raise ValueError(
                    f"{{{symbol}}} must not contain itself, directly or through other symbols"
                )
            if symbol not in done:
                for used in sorted(self.uses.get(symbol, ())):
                    visit(used, (*above, symbol))
                done.add(symbol)

        for symbol in self.signatures:
            visit(symbol, ())


def _names(entry: str) -> list[str]:
    return entry.rstrip("?*").split("|")


def _parse(text: str) -> Iterator[Part]:
    option: list[str | Slot] | None = None
    for slot, mark, literal in _TOKEN.findall(text):
        if mark == "[" and option is None:
            option = []
        elif mark == "]" and option is not None:
            yield Option(tuple(option))
            option = None
        elif mark or not (slot or literal):
            raise ValueError(f"unexpected {mark or '{}'!r}")
        else:
            part = Slot(slot) if slot else literal
            if option is None:
                yield part
            else:
                option.append(part)
    if option is not None:
        raise ValueError("an opening bracket has no closing bracket")


@lru_cache(maxsize=1)
def shipped() -> Grammar:
    """Return the grammar in ``grammar.json``, which is read once. Raises ValueError if the grammar
    breaks a rule."""
    text = (files("netarena_malt") / "grammar.json").read_text(encoding="utf-8")
    data: dict[str, dict[str, Any]] = json.loads(text)
    reader = _Reader({name: tuple(entry.get("operands", ())) for name, entry in data.items()})

    def read(name: str, key: str, letter: str) -> tuple[Production, ...]:
        return tuple(
            reader.read(name, production, f"{name}/{letter}{number}")
            for number, production in enumerate(data[name].get(key, ()), start=1)
        )

    symbols = {
        name: Symbol(
            name,
            str(entry["about"]),
            reader.signatures[name],
            read(name, "productions", ""),
            read(name, "held_out", "h"),
        )
        for name, entry in data.items()
    }
    reader.verify_no_cycle()
    return Grammar(symbols)


def with_pack(path: Path) -> Grammar:
    """Return the shipped grammar together with the productions of a pack.

    Raises ConfigError for a file that cannot be read or breaks a rule. The message has the file's
    name, the line and the production's number. It does not contain the production's text, which
    stays private.
    """
    base = shipped()
    try:
        raw = path.read_bytes()[: _MAX_PACK_BYTES + 1]
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        words = getattr(error, "strerror", None) or "the file is not UTF-8 text"
        raise _refuse(path, None, words) from None
    if len(raw) > _MAX_PACK_BYTES:
        raise _refuse(path, None, f"the file has more than {_MAX_PACK_BYTES} bytes")
    entries = _pack_entries(path, text)
    reader = _Reader({name: symbol.operands for name, symbol in base.symbols.items()})
    for symbol in base.symbols.values():
        for one in (*symbol.productions, *symbol.held_out):
            reader.read(symbol.name, one.text, one.id)
    symbols = dict(base.symbols)
    for name, productions in entries.items():
        if name not in symbols:
            raise _refuse(path, _line(text, name), f"unknown symbol {name!r}")
        if not isinstance(productions, list):
            raise _refuse(
                path, _line(text, name), f"the value of {name} must be a list of productions"
            )
        read: list[Production] = []
        for number, production in enumerate(productions, start=1):
            try:
                one = reader.read(name, production, f"{name}/p{number}")
                _verify_new(one, (*symbols[name].productions, *symbols[name].held_out, *read))
                read.append(one)
                reader.verify_no_cycle()
            except ValueError as error:
                line = _line(text, production)
                raise _refuse(path, line, f"{name}/p{number}: {error}") from None
        symbols[name] = replace(symbols[name], pack=tuple(read))
    return Grammar(symbols, sha256(raw).hexdigest())


def _verify_new(one: Production, known: Iterable[Production]) -> None:
    """Raise ValueError for a production of a pack that is too long, unprintable or a duplicate."""
    if len(one.text) > _MAX_PRODUCTION_CHARS or not one.text.isprintable():
        raise ValueError(
            f"must be one line of at most {_MAX_PRODUCTION_CHARS} printable characters"
        )
    for other in known:
        if " ".join(one.text.split()) == " ".join(other.text.split()):
            raise ValueError(f"is equal to the production {other.id}")


def _pack_entries(path: Path, text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise _refuse(
            path, line, f"not valid JSON: {getattr(error, 'msg', 'nested too deeply')}"
        ) from None
    if not isinstance(data, dict) or data.get("format") != PACK_FORMAT:
        raise _refuse(path, 1, f'must be an object with "format": {PACK_FORMAT}')
    if unknown := sorted(set(data) - {"format", "about", "productions"}):
        raise _refuse(
            path,
            _line(text, unknown[0]),
            f"unknown key {unknown[0]!r}; known keys: format, about, productions",
        )
    entries = data.get("productions")
    if not isinstance(entries, dict) or not any(entries.values()):
        raise _refuse(path, 1, '"productions" must map symbols to lists of productions')
    return entries


def _refuse(path: Path, line: int | None, words: str) -> ConfigError:
    where = f"{path.name}:{line}" if line else path.name
    return ConfigError(PACK_VARIABLE, one_line(f"{where}: {words}", 400))


def _line(text: str, value: Any) -> int | None:
    """Return the number of the line that contains ``value`` as JSON, or None if no line contains
    it."""
    for written in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        before, found, _ = text.partition(written)
        if found:
            return before.count("\n") + 1
    return None


@lru_cache(maxsize=4)
def _read_pack(path: str, stamp: tuple[int, int]) -> Grammar:
    del stamp  # a changed file has another stamp and is read again
    return with_pack(Path(path))


def private() -> Grammar:
    """Return the grammar of held-out text, including the pack if ``PACK_VARIABLE`` is set.

    Raises ConfigError if the pack breaks a rule.
    """
    path = os.environ.get(PACK_VARIABLE, "")
    if not path:
        return shipped()
    try:
        found = Path(path).stat()
    except OSError as error:
        raise _refuse(Path(path), None, error.strerror or "cannot be read") from None
    return _read_pack(path, (found.st_mtime_ns, found.st_size))


def diagnose() -> list[Check]:
    """Check the pack of ``PACK_VARIABLE`` and return the result for ``netarena doctor``."""
    try:
        found = private()
    except ConfigError as error:
        remedy = f"correct it, or unset {PACK_VARIABLE}; docs/malt-language.md describes the format"
        return [_check(str(error), remedy)]
    if not found.pack:
        return [
            _check(
                f"no private pack ({PACK_VARIABLE}); held-out texts use the built-in productions"
            )
        ]
    number = sum(len(symbol.pack) for symbol in found.symbols.values())
    return [_check(f"{number} productions, sha256 {found.pack[:16]}")]


def _check(detail: str, remedy: str = "") -> Check:
    name = "phrasing pack"
    return Check(name=name, ok=not remedy, severity=Severity.RUN, detail=detail, remedy=remedy)
