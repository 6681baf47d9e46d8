"""Intended settings that look like faults.

In a varied network, some hosts are reserve hosts, which *locks* isolate. A lock is a method of the
fault tables, with the same commands and numbers, applied to a site with a reserve host. Locks are
part of the intended state, so undoing a lock opens a pair that must not work. The prompt names the
pairs that must not work, but locks and faults look the same on the machines.

A network has a fixed number of *settings*: some on the router, and at most one on each host. Some
of the settings are faults and the remaining settings are locks. The methods of both come from one
distribution, so neither the number of settings nor their methods depend on the number of faults.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType

from netarena_network.action import Fault
from netarena_route.fault import table as fault
from netarena_route.fault.method import Scope, Site
from netarena_route.fault.pair import PAIR
from netarena_route.fault.passage import Passage
from netarena_route.fault.table import KINDS
from netarena_route.world.model import World
from netarena_route.world.path import Plan

#: Groups of kinds from which methods are drawn, with the weight of each group.
Sources = Sequence[tuple[Sequence[str], int]]

#: Value of ``change`` if no further fault is drawn.
NO_CHANGE: Mapping[Scope, int] = MappingProxyType({})
#: Number of settings on the router, and maximum number of settings on hosts.
_ON_ROUTER, _ON_HOSTS = 3, 8
#: Number of settings on hosts if no kind of ``PAIR`` is drawn.
_WIDE_ON_HOSTS = 5
#: At most 1/_SHARE_OF_HOSTS of the hosts in service have a setting.
_SHARE_OF_HOSTS = 2
#: Number of reserve hosts that no lock isolates completely. Locks close only some of the pairs with
#: these hosts.
_PARTLY_OPEN = 1
#: A setting has the method of an earlier setting with probability n / (n + _VARIETY), where n is
#: the number of earlier settings. This is a Hoppe urn: the order of the settings does not affect
#: their joint probability.
_VARIETY = 8
#: Number of further methods drawn for a setting if the first method has no suitable site.
_REDRAWS = 12
#: Maximum number of attempts to draw a site for a lock.
_TRIES = 24
#: Probability that the router ignores pings as an intended setting.
_SILENT_CHANCE = 0.7

#: Fault -> lock that the repair of the fault also resets. A network with such a fault also gets the
#: lock.
_LIKE: Mapping[tuple[str, str], tuple[str, str]] = MappingProxyType(
    {("disable_routing", "ip_forward"): ("router_setting", "port_forwarding")}
)
#: Methods that affect all machines. Therefore no lock resembles them, and they are drawn less
#: often.
_GENERAL = frozenset(
    {
        ("disable_routing", "forward_policy"),
        ("disable_routing", "rule_prohibit"),
        ("policy_rule", "main_missing"),
        ("router_setting", "echo_ignored"),
    }
)
_GENERAL_CHANCE = 0.25
#: Number of hosts in service per subnet that are checked before all pairs are computed.
_SOME = 4
#: The lock whose presence is drawn separately from all other locks.
SILENT = ("router_setting", "echo_ignored")


def lock(world: World, faults: Sequence[Fault], rng: random.Random) -> World | None:
    """Return ``world`` with locks that leave ``faults`` visible, or None if no such locks are
    found."""
    drawn = draw_locks(world, faults, rng, (([*KINDS], 1),))
    return None if drawn is None else drawn.world()


def draw_locks(  # noqa: PLR0913 -- options of tickets
    world: World,
    faults: Sequence[Fault],
    rng: random.Random,
    sources: Sources,
    *,
    anywhere: bool = False,
    change: Mapping[Scope, int] = NO_CHANGE,
    passage: Passage | None = None,
) -> Locks | None:
    """Return the locks of a network with ``faults``, or None if no suitable locks exist.

    The locks' methods are drawn from ``sources``, like the faults' methods. With ``anywhere``, it
    is sufficient that a fault is visible on pairs with reserve hosts. ``change`` is the number of
    locks to add or remove per scope. It is used if a fault that is drawn later removes a lock or
    adds a setting. ``passage`` is an intended setting on the router that does not affect the locks.
    """
    plan = Plan(world)
    pairs = any(kind in PAIR for kinds, _ in sources for kind in kinds)
    drawn = Locks(plan, faults, rng, anywhere, _PARTLY_OPEN if pairs else 0, passage)
    wanted = [(entry.kind, entry.method) for entry in faults]
    if wanted and _GENERAL.issuperset(wanted) and rng.random() > _GENERAL_CHANCE:
        return None
    if not drawn.all_show():
        return None
    if SILENT not in wanted and rng.random() < _SILENT_CHANCE:
        drawn.add(*SILENT)
    in_service = len(world.hosts) - len(world.reserve)
    total = {
        Scope.ROUTER: _ON_ROUTER - (passage is not None),
        # Each method that closes all pairs of a host needs a separate reserve host.
        Scope.HOST: min(_ON_HOSTS, len(world.reserve) + in_service // _SHARE_OF_HOSTS)
        if pairs
        else _WIDE_ON_HOSTS,
    }
    slots: list[tuple[Scope, tuple[str, str]]] = []
    for scope, number in total.items():
        there = [name for name in wanted if _scope(name) is scope]
        like = [_LIKE[name] for name in there if name in _LIKE]
        for _ in range(len(there), number + change.get(scope, 0)):
            name = like.pop() if like else drawn.choose(sources, scope, there)
            there.append(name)
            slots.append((scope, name))
    # Methods that close all pairs of a host come first. If locks on single pairs came first, such
    # methods would no longer have a suitable site.
    slots.sort(key=lambda slot: (slot[1][0] in PAIR, slot[0] is Scope.ROUTER))
    for scope, name in slots:
        more = (drawn.choose(sources, scope, []) for _ in range(_REDRAWS))
        any(drawn.add(*each) for each in chain((name,), more))
    return drawn


def _scope(name: tuple[str, str]) -> Scope:
    """Return whether a method acts on the router or on a host."""
    return Scope.ROUTER if fault.METHODS[name].scope is Scope.ROUTER else Scope.HOST


@dataclass
class Locks:
    """Locks of a network, which are drawn one by one."""

    plan: Plan
    faults: Sequence[Fault]
    rng: random.Random
    anywhere: bool = False
    partly_open: int = 0
    passage: Passage | None = None
    found: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reserve = set(self.plan.world.reserve)
        # The router, and a few hosts in service of each subnet, which represent all hosts in
        # service.
        self.serving = [
            self.plan.router.name,
            *(
                name
                for hosts in self.plan.hosts
                for name in [host.name for host in hosts if host.name not in self._reserve][:_SOME]
            ),
        ]
        self._held: set[str] = set()
        self._broken: list[frozenset[tuple[str, str]]] = []
        for entry in self.faults:
            self._held |= fault.holds(*fault.read(self.plan, entry))
            self._broken.append(fault.broken_by(self.plan, [fault.read(self.plan, entry)]))
        # The repair of ip_forward also restores the forwarding of each port, so locks may use this
        # setting.
        self._held.discard(f"{self.plan.router.name} forwarding")
        self._closed: list[frozenset[tuple[str, str]]] = []
        self._open = set(self.rng.sample(self.plan.world.reserve, self.partly_open))
        self._taken = {entry.machine for entry in self.faults} - {self.plan.router.name}

    def choose(
        self, sources: Sources, scope: Scope, there: Sequence[tuple[str, str]]
    ) -> tuple[str, str]:
        """Draw the kind and method of the next setting. ``there`` lists the kinds and methods of
        earlier settings."""
        if self.rng.random() * (len(there) + _VARIETY) < len(there):
            return self.rng.choice(there)
        groups = [kinds for kinds, _ in sources]
        weights = [weight for _, weight in sources]
        while True:
            kind = self.rng.choice(self.rng.choices(groups, weights)[0])
            methods = [
                method
                for method in fault.methods_of(kind, self.plan.world, netem=False)
                # Whether the router ignores pings is drawn separately.
                if (kind, method.name) != SILENT
            ]
            if methods and _scope((kind, methods[0].name)) is scope:
                return kind, self.rng.choice(methods).name

    def add(self, kind: str, name: str) -> bool:
        """Draw a lock with this kind and method, and add it. Return whether a suitable site was
        found."""
        method = fault.METHODS[kind, name]
        silent = (kind, name) == SILENT
        kept = self._kept(kind)
        for _ in range(_TRIES):
            site = Site.draw_in_reserve(self.plan, method.scope, self.rng, kept)
            if site is None or site.machine.name in self._taken or not method.fits(site):
                continue
            if kind not in PAIR and site.machine.name in self._open:
                continue
            if not silent and fault.breaks_within(self.plan, (method, site), self.serving):
                continue
            closes = fault.broken_by(self.plan, [(method, site)])
            if not (silent or all(self._reserve & set(pair) for pair in closes)):
                continue
            if not self._fits(closes):
                continue
            if self.passage and not self.passage.spares(kind, method, site, closes):
                continue
            needed = fault.holds(method, site)
            if not fault.clash(needed, self._held):
                self._held |= needed
                if site.machine is not self.plan.router:
                    self._taken.add(site.machine.name)
                self.found.append(fault.apply(kind, method, site))
                self._closed.append(closes)
                return True
        return False

    def _kept(self, kind: str) -> list[str]:
        """Return the reserve hosts that a lock may isolate, preferably hosts without a lock."""
        every = [name for name in self.plan.world.reserve if kind in PAIR or name not in self._open]
        covered = {name for pairs in self._closed for pair in pairs for name in pair}
        return [name for name in every if name not in covered] or every

    def _fits(self, closes: frozenset[tuple[str, str]]) -> bool:
        """Return whether a further lock that closes these pairs is compatible with earlier locks.

        Each lock must close a pair that no other lock closes. Each fault must stay visible.
        """
        together = [*self._closed, closes]
        count = Counter(pair for each in together for pair in each)
        alone = all(any(count[pair] == 1 for pair in each) for each in together)
        return alone and self.all_show(count)

    def all_show(self, closed: Container[tuple[str, str]] = ()) -> bool:
        """Return whether each fault breaks a pair that is not in ``closed``.

        Pairs with reserve hosts count only if ``anywhere`` is set.
        """
        return all(
            any(
                pair not in closed and (self.anywhere or not self._reserve & set(pair))
                for pair in broken
            )
            for broken in self._broken
        )

    def alone(self, number: int) -> list[tuple[str, str]]:
        """Return the pairs that only the lock with index ``number`` closes."""
        count = Counter(pair for each in self._closed for pair in each)
        return sorted(pair for pair in self._closed[number] if count[pair] == 1)

    def world(self) -> World:
        """Return the network with all locks applied."""
        healthy = self.plan.world
        commands: dict[str, list[str]] = {}
        # The order is random, so that it does not reveal which locks resemble faults.
        for entry in self.rng.sample(self.found, len(self.found)):
            for command in entry.inject:
                commands.setdefault(command.machine, []).append(command.command)
        if self.passage:
            # The passage's entries are added last, so that no later entry is inserted before them.
            commands.setdefault(healthy.router.name, []).append(self.passage.inject)
        closed = frozenset[tuple[str, str]]().union(*self._closed)
        place = {name: index for index, name in enumerate(healthy.endpoints)}
        return World(
            prefix=healthy.prefix,
            machines=tuple(
                machine.model_copy(update={"commands": tuple(commands.get(machine.name, ()))})
                for machine in healthy.machines
            ),
            switches=healthy.switches,
            apart=healthy.apart,
            reserve=healthy.reserve,
            closed=tuple(sorted(closed, key=lambda pair: (place[pair[0]], place[pair[1]]))),
        )
