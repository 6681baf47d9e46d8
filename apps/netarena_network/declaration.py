"""Declarations that a ticket is done. They may name the causes that were found.

    {"done": true, "causes": [{"place": "p42_h3", "what": "route"}]}

The value of ``place`` is a machine, and the value of ``what`` is a word of an application's
``Glossary``. Causes may be omitted. A declaration may also refuse requested changes, by their
numbers in the request:

    {"done": true, "refused": [{"change": 2, "because": "no_redundancy"}]}

A move that declares a ticket done has the same form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from netarena.sdk import (
    NO_CHANGE,
    Cause,
    Claim,
    JsonValue,
    Move,
    Refusal,
    ReplyRefused,
    check_causes,
    read_change,
)
from netarena_network.action import Fault

#: Maximum number of refused changes in one declaration.
MAX_REFUSED = 20
#: Keys of an object that refuses a change.
REFUSAL_KEYS = frozenset({"change", "because"})
_REFUSED_FORM = '{"done": true, "refused": [{"change": 2, "because": "<word>"}]}'
_SPACE = re.compile(r"[\s-]+")


def machines_of(fault: Fault) -> set[str]:
    """Return the machines whose settings a fault changes."""
    return {fault.machine, *(one.machine for one in (*fault.inject, *fault.repair))}


@dataclass(frozen=True)
class Glossary:
    """Words with which declarations name the causes of an application's faults and the reasons to
    refuse changes."""

    #: Word for a cause -> its description in prompts
    words: Mapping[str, str]
    #: Kind of fault -> word for its cause, unless the fault's method has its own word
    kinds: Mapping[str, str]
    #: Method of a fault -> word for its cause
    methods: Mapping[str, str] = field(default_factory=dict)
    #: Method of a fault -> additional words that describe the fault
    also: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Kind of fault -> additional words that describe the fault
    also_of_kind: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Word for the reason to refuse a change -> its description in prompts; empty if the
    #: application requests no changes
    refusals: Mapping[str, str] = field(default_factory=dict)

    def word_of(self, fault: Fault) -> str:
        """Return the word for the cause of a fault."""
        return self.methods.get(fault.method) or self.kinds[fault.kind]

    def further(self, fault: Fault) -> Iterator[str]:
        """Yield the additional words that describe a fault."""
        yield from self.also.get(fault.method, ())
        yield from self.also_of_kind.get(fault.kind, ())

    def causes_of(self, faults: Iterable[Fault]) -> list[Cause]:
        """Return the causes that a correct declaration of these faults contains."""
        return [Cause(fault.machine, self.word_of(fault)) for fault in faults]

    def as_injected(
        self,
        faults: Iterable[Fault],
        named: Iterable[Cause],
        places: Callable[[Fault], Iterable[str]] = machines_of,
    ) -> list[Cause]:
        """Return the declared causes. If a cause describes a fault, the fault's own cause replaces
        it.

        A declared cause may contain another word for the fault, or another machine of the fault's
        ``places``. Causes that describe no fault are returned unchanged.
        """
        injected = list(faults)
        own = self.causes_of(injected)
        known: dict[Cause, Cause] = {}
        for fault, cause in zip(injected, own, strict=True):
            for word in (cause.what, *self.further(fault)):
                for place in places(fault):
                    known.setdefault(Cause(place, word), cause)
        return [one if one in own else known.get(one, one) for one in named]


def read_causes(named: Sequence[Mapping[str, object]], words: Collection[str]) -> list[Cause]:
    """Return the causes of a declaration; raise ReplyRefused if a cause is incomplete."""
    causes = [_read_cause(one.get("place"), one.get("what")) for one in named]
    return check_causes(causes, words)


def _read_cause(place: object, what: object) -> Cause:
    if not isinstance(place, str) or not isinstance(what, str):
        raise ReplyRefused('a cause must be an object {"place": "<machine>", "what": "<word>"}')
    try:
        place.encode()
    except UnicodeEncodeError:
        raise ReplyRefused("the place of a cause is not valid Unicode text") from None
    return Cause(place.strip()[:100], what.strip())


def read_refused(named: object, words: Collection[str]) -> list[Refusal]:
    """Return the refused changes of a declaration without duplicates, in the order of the
    declaration.

    ``named`` is the value of ``refused``; None or an empty list refuses nothing. ``words`` are the
    allowed reasons, or empty if no changes are requested. Raises ReplyRefused if ``named`` is
    invalid.
    """
    if named is None or named == []:
        return []
    if not words:
        raise ReplyRefused(f'{NO_CHANGE}: {{"done": true}}')
    if not isinstance(named, list) or not all(
        isinstance(one, dict) and one.keys() >= REFUSAL_KEYS for one in named
    ):
        raise _malformed("refused must be a list of objects with change and because")
    if len(named) > MAX_REFUSED:
        raise _malformed(f"refused has {len(named)} entries; at most {MAX_REFUSED} are allowed")
    found: dict[int, Refusal] = {}
    for one in named:
        refusal = _read_refusal(one["change"], one["because"], words)
        if found.setdefault(refusal.change, refusal) != refusal:
            raise _malformed(f"change {refusal.change} is refused twice, with different words")
    return [*found.values()]


def _read_refusal(change: object, because: object, words: Collection[str]) -> Refusal:
    number = read_change(change)
    if number is None:
        raise _malformed("change must be the number of a requested change")
    if number < 1:
        raise _malformed(f"{number} is not the number of a requested change; numbers start at 1")
    listed = f"one of the words for refused changes: {', '.join(words)}"
    if not isinstance(because, str):
        raise _malformed(f"because must be {listed}")
    word = _SPACE.sub("_", because.strip().lower())
    if word not in words:
        raise _malformed(f"{because.strip()[:40]!a} is not {listed}")
    return Refusal(change=number, because=word)


def _malformed(why: str) -> ReplyRefused:
    return ReplyRefused(f"{why}; send {_REFUSED_FORM}")


def make_move(causes: Iterable[Cause], refused: Iterable[Refusal] = ()) -> Move:
    """Return the move that declares these causes and refused changes."""
    move: dict[str, JsonValue] = {
        "done": True,
        "causes": [{"place": one.place, "what": one.what} for one in causes],
    }
    if named := [*refused]:
        move["refused"] = [{"change": one.change, "because": one.because} for one in named]
    return move


def claim_of(move: Move) -> Claim | None:
    """Return the declaration in a move, or None if the move is a command."""
    if not isinstance(move, dict) or move.get("done") is not True:
        return None
    causes = tuple(
        Cause(str(one["place"]), str(one["what"])) for one in _objects(move.get("causes"))
    )
    refused = tuple(map(Refusal.model_validate, _objects(move.get("refused"))))
    return Claim(causes=causes or None, refused=refused)


def _objects(named: JsonValue) -> list[dict[str, JsonValue]]:
    return [one for one in named if isinstance(one, dict)] if isinstance(named, list) else []
