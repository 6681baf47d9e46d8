"""Prompts of tickets: the intended state, and reported symptoms in place of the list of wrong
connections.

The texts are files in ``prompts``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from string import Template
from typing import TypeAlias

from netarena.sdk import (
    MAX_SYMPTOMS,
    CommandLimits,
    PromptParts,
    Query,
    Sights,
    Step,
    read_text,
    tell_ticket,
    tell_turns,
)
from netarena_k8s.catalogue import tell_catalogue
from netarena_k8s.declaration import WORDS
from netarena_k8s.embedded.apiserver.bound import POLICY_ENTRIES
from netarena_k8s.fault.table import Fault, faulty
from netarena_k8s.prompt import KEYS, PACKAGE, tell_egress, tell_intent
from netarena_k8s.query import faults_of, world_of
from netarena_k8s.world.model import Net, Pair, World
from netarena_k8s.world.plan import Use

#: maximum number of attempts to draw a connection that is as intended
_TRIES = 40
#: whether a connection works -> sentences about this connection
_SEEN: Mapping[bool, Sequence[str]] = {
    False: (
        "{source} gets no answer from {target}.",
        "Connections from {source} to {target} time out.",
        "The log of {source} says: dial {target}: i/o timeout.",
        "{source} cannot connect to {target}.",
        "{target} does not receive any request from {source}.",
    ),
    True: (
        "{source} gets answers from {target}.",
        "The connection log of {target} shows calls from {source}.",
        "A port scan from the pod of {source} found the service of {target} open.",
        "{source} can connect to {target}.",
        "{target} receives requests from {source}.",
    ),
}
#: whether a connection other than a pair works -> sentences about this connection
_SEEN_BESIDE: Mapping[bool, Sequence[str]] = {
    False: (
        "{source} gets no answer from {target} on port {port}.",
        "Connections from {source} to {target} on port {port} time out.",
        "{source} cannot connect to {target} on port {port}.",
    ),
    True: (
        "{source} is connected to {target} on port {port}.",
        "{source} can connect to {target} on port {port}.",
        "The log of {source} shows a connection to {target} on port {port}.",
    ),
}
#: a connection that a report of a user may be about
_Seen: TypeAlias = Pair | Use


def ticket_parts(
    query: Query,
    namespace: str,
    steps: Sequence[Step],
    limits: CommandLimits,
    rng: random.Random,
) -> PromptParts:
    """Return the parts of the next prompt. ``rng`` must have the same seed in each turn, so that
    the reports stay the same."""
    world = world_of(query)
    observed = _Sights(world, faults_of(query)).observe(rng)
    rules = Template(read_text(PACKAGE, "ticket")).substitute(
        num_apps=len(world.apps),
        namespace=namespace,
        intent=tell_intent(world) if world.plan is None else tell_catalogue(world, world.plan),
        uses=_USES if world.uses else "",
        names="" if world.plan is None else _NAMES,
        entries=POLICY_ENTRIES,
        egress=tell_egress(world),
        **asdict(limits),
    )
    return tell_ticket(PACKAGE, rules, WORDS, observed, tell_turns(steps, KEYS, limits))


_USES = (
    "\n- The further connections listed above are also judged after every command: those to other "
    "ports, from other namespaces and to outside addresses."
)


#: text that only prompts of large worlds contain
_NAMES = (
    "The name of a policy does not say which pods it selects. Several policies may select the same "
    "pod; traffic is then allowed if any one of them allows it.\n\n"
)


class _Sights(Sights[_Seen]):
    def __init__(self, world: World, faults: Sequence[Fault]) -> None:
        super().__init__(len(faults))
        self._world = world
        self._faults = faults
        self._healthy = Net(world, world.policies)
        self._now = Net(world, faulty(world, faults))

    def symptoms(self, rng: random.Random) -> list[_Seen]:
        """Return one wrong connection for each of a few randomly chosen faults."""
        stopped = {str(use): use for use in self._world.uses}
        found: list[_Seen] = []
        shown = rng.sample(self._faults, len(self._faults))
        for fault in shown[: rng.randint(1, MAX_SYMPTOMS)]:
            ends = (*fault.broken, *fault.opened)
            pairs: list[_Seen] = [Pair(source=source, target=target) for source, target in ends]
            uses: list[_Seen] = [stopped[use] for use in fault.stopped]
            # If a fault affects both pairs and other connections, both kinds are equally likely.
            for some in rng.sample((pairs, uses), 2):
                wrong = [one for one in some if self.is_wrong(one) and one not in found]
                if wrong:
                    found.append(rng.choice(wrong))
                    break
        return found

    def every(self) -> list[_Seen]:
        return [*self._world.pairs, *self._world.uses]

    def beside(self, found: Sequence[_Seen], rng: random.Random) -> Iterator[_Seen]:
        """Yield further connections of the applications in ``found``. About half of them are
        permitted.

        If these are not enough, all other pairs follow.
        """
        world = self._world
        near = {name for one in found for name in (one.source, one.target)}
        calls: list[_Seen] = [Pair(source=source, target=target) for source, target in world.calls]
        calls += world.uses
        close = [one for one in calls if {one.source, one.target} & near]
        others = [pair for pair in world.pairs if {pair.source, pair.target} & near] or world.pairs
        for _ in range(_TRIES):
            yield rng.choice((close or calls or others) if rng.random() < 0.5 else others)
        yield from world.pairs

    def is_wrong(self, one: _Seen) -> bool:
        return _works(self._now, one) != _works(self._healthy, one)

    def tell(self, one: _Seen, rng: random.Random) -> str:
        works = _works(self._now, one)
        if isinstance(one, Pair):
            return rng.choice(_SEEN[works]).format(source=one.source, target=one.target)
        names = {}
        if (plan := self._world.plan) is not None:
            names = {
                guest.address: f"{guest.name} in namespace {guest.space}" for guest in plan.guests
            }
            names |= {partner.address: partner.name for partner in plan.partners}
        source, target = (names.get(end, end) for end in (one.source, one.target))
        form = rng.choice(_SEEN_BESIDE[works])
        return form.format(source=source, target=target, port=f"{one.port}/{one.protocol}")


def _works(net: Net, one: _Seen) -> bool:
    return net.reaches(one) if isinstance(one, Pair) else net.allows(one)
