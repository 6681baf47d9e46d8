"""Prompt of a ticket: the intended state, and observations by users.

Faults that affect few pairs are reported first, because agents find faults that affect many pairs
without a report. The texts are files in ``prompts``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from string import Template

from netarena.sdk import (
    MAX_SYMPTOMS,
    CommandLimits,
    PromptParts,
    Query,
    Sights,
    Step,
    read_examples,
    read_text,
    tell_turns,
)
from netarena_network.action import Fault, faults_of
from netarena_network.bounds import tell_bounds
from netarena_network.prompt import KEYS, ticket_reply_format
from netarena_route.declaration import WORDS
from netarena_route.fault.local import hosts_of
from netarena_route.fault.table import expected
from netarena_route.prompt import PACKAGE, tell_intent, tell_plan
from netarena_route.world.model import World

#: Maximum number of affected pairs of a fault that is reported first.
_FEW = 4
#: Maximum number of attempts to draw a pair whose ping is as intended.
_TRIES = 60
#: Whether a ping works -> sentences in which users report it
_SEEN: Mapping[bool, Sequence[str]] = {
    False: (
        "{source} gets no answer from {target}.",
        "{target} does not answer {source}.",
        "Connections from {source} to {target} time out.",
        "The monitoring on {source} shows {target} as down.",
        "A user on {source} cannot ping {target}.",
        "{source} cannot reach {target}.",
    ),
    True: (
        "{source} gets answers from {target}.",
        "The monitoring on {source} shows {target} as up.",
        "A user on {source} can ping {target}.",
        "A scan from {source} lists {target} as reachable.",
        "{source} can reach {target}.",
    ),
}

Pair = tuple[str, str]


def ticket_parts(
    query: Query, world: World, steps: Sequence[Step], limits: CommandLimits, rng: random.Random
) -> PromptParts:
    """Return the parts of the next prompt of a ticket. The seed of ``rng`` must be the same in each
    turn."""
    observed = _Sights(world, faults_of(query)).observe(rng)
    rules = Template(read_text(PACKAGE, "ticket")).substitute(
        num_subnets=len(world.switches),
        intent=tell_intent(world),
        plan=tell_plan(world),
        **tell_bounds(len(world.endpoints)),
        **asdict(limits),
    )
    return PromptParts(
        rules=rules,
        reply_format=ticket_reply_format(WORDS),
        task=f"A ticket has come in: {observed}",
        history=tell_turns(steps, KEYS, limits),
        examples=read_examples(PACKAGE, ("ticket_look", "ticket_repair")),
    )


class _Sights(Sights[Pair]):
    def __init__(self, world: World, faults: Sequence[Fault]) -> None:
        super().__init__(len(faults))
        self._world = world
        self._faults = faults
        self._now = expected(world, faults)
        self._place = {name: index for index, name in enumerate(world.endpoints)}

    def symptoms(self, rng: random.Random) -> list[Pair]:
        """Return wrong pairs as symptoms, in total at most ``MAX_SYMPTOMS``.

        Faults between two ordinary hosts of one subnet come first: for each of them, the symptoms
        include a pair with one of the two hosts. Faults that affect few other pairs follow, then
        faults that affect many.
        """
        found: list[Pair] = []
        others = []
        for fault in rng.sample(self._faults, len(self._faults)):
            if hosts := hosts_of(self._world, fault):
                found += self._naming(hosts, found, rng)
            else:
                others.append(fault)
        shown = [self._wrong_by(fault) for fault in others]
        few, many = ([each for each in shown if (0 < len(each) <= _FEW) is rare] for rare in (1, 0))
        room = MAX_SYMPTOMS - len(found)
        number = rng.randint(1, MAX_SYMPTOMS) - len(found) - len(few)
        for wrong in [*few[:room], *filter(None, many[: max(0, number)])]:
            if new := [pair for pair in wrong if pair not in found]:
                found.append(rng.choice(new))
        return found

    def _naming(
        self, hosts: frozenset[str], found: Sequence[Pair], rng: random.Random
    ) -> list[Pair]:
        """Return a list of one wrong pair with one of these hosts. The list is empty if ``found``
        already has such a pair."""
        if any(hosts & {*pair} for pair in found):
            return []
        named = [pair for pair in self.every() if self.is_wrong(pair) and hosts & {*pair}]
        own = [pair for pair in named if hosts == {*pair}]
        return [rng.choice(own or named)] if named else []

    def _wrong_by(self, fault: Fault) -> list[Pair]:
        """Return the pairs that are wrong now, and that would also be wrong if this were the only
        fault."""
        alone = expected(self._world, [fault])
        return [pair for pair in self.every() if self.is_wrong(pair) and self._differs(alone, pair)]

    def every(self) -> Iterator[Pair]:
        names = self._world.endpoints
        return ((a, b) for a in names for b in names if a != b)

    def beside(self, found: Sequence[Pair], rng: random.Random) -> Iterator[Pair]:
        """Yield pairs whose pings are as intended. About half of these pairs must not work.

        Pairs with a machine of ``found`` come first.
        """
        near = {name for pair in found for name in pair}
        right = [pair for pair in self.every() if not self.is_wrong(pair)]
        for close in ([pair for pair in right if near & {*pair}], right):
            works, blocked = ([p for p in close if self._works(p) is way] for way in (True, False))
            for _ in range(_TRIES if close else 0):
                yield rng.choice((works if rng.random() < 0.5 else blocked) or close)

    def is_wrong(self, one: Pair) -> bool:
        return self._differs(self._now, one)

    def tell(self, one: Pair, rng: random.Random) -> str:
        """Return one observation as a sentence that names machines by name or address."""
        source, target = (
            self._world.addresses[self._place[name]] if rng.random() < 0.4 else name for name in one
        )
        words = rng.choice(_SEEN[self._works(one)])
        return words.format(source=source, target=target)

    def _works(self, pair: Pair) -> bool:
        return self._at(self._now, pair) == "1"

    def _differs(self, rows: Sequence[str], pair: Pair) -> bool:
        return self._at(rows, pair) != self._at(self._world.intended, pair)

    def _at(self, rows: Sequence[str], pair: Pair) -> str:
        return rows[self._place[pair[0]]][self._place[pair[1]]]
