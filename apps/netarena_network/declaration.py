"""Declarations of a ticket's end and of its causes.

    {"done": true, "causes": [{"place": "p42_h3", "what": "route"}]}

The value of ``place`` is a machine, and the value of ``what`` is a word of an application's
``Glossary``. Causes may be left out. A declaration as a move has the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from netarena.sdk import Cause, Claim, Move, ReplyRefused, check_causes
from netarena_network.action import Fault


def machines_of(fault: Fault) -> set[str]:
    """Return the machines whose settings a fault changes."""
    return {fault.machine, *(one.machine for one in (*fault.inject, *fault.repair))}


@dataclass(frozen=True)
class Glossary:
    """Words for the causes of an application's faults."""

    #: Word -> its description in prompts
    words: Mapping[str, str]
    #: Kind of fault -> its word, unless the fault's method has another word
    kinds: Mapping[str, str]
    #: Method of a fault -> its word
    methods: Mapping[str, str] = field(default_factory=dict)
    #: Method of a fault -> further words that describe it
    also: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Kind of fault -> further words that describe it
    also_of_kind: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def word_of(self, fault: Fault) -> str:
        """Return the word for a fault."""
        return self.methods.get(fault.method) or self.kinds[fault.kind]

    def further(self, fault: Fault) -> Iterator[str]:
        """Yield further words that describe a fault."""
        yield from self.also.get(fault.method, ())
        yield from self.also_of_kind.get(fault.kind, ())

    def causes_of(self, faults: Iterable[Fault]) -> list[Cause]:
        """Return the causes that a correct declaration of the faults contains."""
        return [Cause(fault.machine, self.word_of(fault)) for fault in faults]

    def as_injected(
        self,
        faults: Iterable[Fault],
        named: Iterable[Cause],
        places: Callable[[Fault], Iterable[str]] = machines_of,
    ) -> list[Cause]:
        """Return the declared causes, each replaced with the cause of the fault that it describes.

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
    """Return the causes of a declaration; raises ReplyRefused if a cause is incomplete."""
    causes = [_read_cause(one.get("place"), one.get("what")) for one in named]
    return check_causes(causes, words)


def _read_cause(place: object, what: object) -> Cause:
    if not isinstance(place, str) or not isinstance(what, str):
        raise ReplyRefused('a cause must be an object {"place": "<machine>", "what": "<word>"}')
    try:
        place.encode()
    except UnicodeEncodeError:
        raise ReplyRefused("a place is not valid Unicode text") from None
    return Cause(place.strip()[:100], what.strip())


def make_move(causes: Iterable[Cause]) -> Move:
    """Return the move that declares these causes."""
    return {"done": True, "causes": [{"place": one.place, "what": one.what} for one in causes]}


def claim_of(move: Move) -> Claim | None:
    """Return the declaration in a move, or None if the move is a command."""
    if not isinstance(move, dict) or move.get("done") is not True:
        return None
    named = move.get("causes")
    causes = tuple(
        Cause(str(one["place"]), str(one["what"]))
        for one in (named if isinstance(named, list) else ())
        if isinstance(one, dict)
    )
    return Claim(causes=causes or None)
