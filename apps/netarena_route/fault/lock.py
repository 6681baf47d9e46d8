"""What keeps machines in reserve back: by design, and by the very means of faults.

A reset that undoes what faults do must not be worth anything unread. So in a varied network some
hosts are in reserve, and each of them is kept back, in part or altogether, by *locks*: methods of
the tables of faults, at sites that have to do with these hosts, drawn with the same numbers,
names and commands. A lock is part of the healthy state; undoing one opens a pair that must not
work. Nothing that a machine can print tells a lock from a fault: the prompt does, by the pairs
that are meant not to work.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from netarena_route.action import Fault
from netarena_route.fault import table as fault
from netarena_route.fault.method import Scope, Site
from netarena_route.fault.table import KINDS
from netarena_route.world.model import NUM_RESERVE, World
from netarena_route.world.path import Plan

#: beside the lock that is like a fault: so many methods, each for two locks
_COVERS = 2
#: hosts, not in reserve, of which each has a lock for one that is; and methods tried for each host
_SOME_HOSTS = 3
_HOST_TRIES = 5
#: draws before a network is said to have no site for a lock
_TRIES = 24
#: of a network whose router, by design, answers no pings
_SILENT_CHANCE = 0.7

#: what resets a lock of another method, too
_LIKE: Mapping[tuple[str, str], tuple[str, str]] = MappingProxyType(
    {("disable_routing", "ip_forward"): ("router_setting", "port_forwarding")}
)
#: of what acts on all machines at once, so that no lock is like it: these are drawn less often
_GENERAL = frozenset(
    {
        ("disable_routing", "forward_policy"),
        ("disable_routing", "rule_prohibit"),
        ("policy_rule", "main_missing"),
        ("router_setting", "echo_ignored"),
    }
)
_GENERAL_CHANCE = 0.25
#: hosts of a subnet, in service, that are asked about before all are
_SOME = 4
_SILENT = ("router_setting", "echo_ignored")


def lock(world: World, faults: Sequence[Fault], rng: random.Random) -> World | None:
    """``world`` with its reserve kept back, beside ``faults``, which still show.

    One lock at least is like one of the faults; None where the network has no site for that.
    """
    drawn = draw_locks(world, faults, rng)
    return None if drawn is None else drawn.world()


def draw_locks(
    world: World, faults: Sequence[Fault], rng: random.Random, *, anywhere: bool = False
) -> Locks | None:
    """As ``lock``, but the locks by themselves; ``anywhere`` lets faults show by machines in
    reserve alone, in what these may."""
    plan = Plan(world)
    drawn = Locks(plan, faults, rng, anywhere)
    wanted = [(entry.kind, entry.method) for entry in faults]
    rng.shuffle(wanted)
    likenesses = [drawn.add(*_LIKE.get(name, name)) for name in wanted if name not in _GENERAL]
    if not any(likenesses) and (likenesses or rng.random() > _GENERAL_CHANCE):
        return None
    router = [kind for kind, methods in KINDS.items() if methods[0].scope is Scope.ROUTER]
    host = [kind for kind in KINDS if kind not in router]
    # first, for later there is no room for what closes all pairs of a host, as most faults do
    for name in rng.sample(world.reserve, NUM_RESERVE):
        if not drawn.keeps_on(name):
            any(drawn.add(*drawn.choose(host), on=name) for _ in range(_HOST_TRIES))
    if _SILENT not in wanted and rng.random() < _SILENT_CHANCE:
        drawn.add(*_SILENT)
    for _ in range(_COVERS):
        kind, name = drawn.choose(router)
        for _ in range(2):
            drawn.add(kind, name)
    machines = [name for name in drawn.serving if name != world.router.name]
    for name in rng.sample(machines, min(_SOME_HOSTS, len(machines))):
        if not drawn.keeps_on(name):
            any(drawn.add(*drawn.choose(host), on=name) for _ in range(_HOST_TRIES))
    return drawn


@dataclass
class Locks:
    """Locks as they are drawn, one after the other."""

    plan: Plan
    faults: Sequence[Fault]
    rng: random.Random
    anywhere: bool = False
    found: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reserve = set(self.plan.world.reserve)
        # of each subnet some stand for all that are not in reserve
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
        # what setting all of them resets, the repair of that sets again
        self._held.discard(f"{self.plan.router.name} forwarding")
        self._closed: list[frozenset[tuple[str, str]]] = []

    def choose(self, kinds: Sequence[str]) -> tuple[str, str]:
        """A kind and a method."""
        options = {
            kind: methods
            for kind in kinds
            if (methods := fault.methods_of(kind, self.plan.world, netem=False))
        }
        kind = self.rng.choice(list(options))
        return kind, self.rng.choice(options[kind]).name

    def keeps_on(self, machine: str) -> bool:
        """Whether a machine has a lock."""
        return any(entry.machine == machine for entry in self.found)

    def add(self, kind: str, name: str, on: str = "") -> bool:
        """Draw a lock by a method, ``on`` a host if it says so; whether there is room for one."""
        method = fault.METHODS[kind, name]
        silent = (kind, name) == _SILENT
        for _ in range(_TRIES // 4 if on else _TRIES):
            site = Site.draw_in_reserve(self.plan, method.scope, self.rng, on)
            if site is None or not method.fits(site):
                continue
            if not silent and fault.breaks_within(self.plan, (method, site), self.serving):
                continue
            closes = fault.broken_by(self.plan, [(method, site)])
            if not (silent or all(self._reserve & set(pair) for pair in closes)):
                continue
            if not self._fits(closes):
                continue
            needed = fault.holds(method, site)
            if not fault.clash(needed, self._held):
                self._held |= needed
                self.found.append(fault.apply(kind, method, site))
                self._closed.append(closes)
                return True
        return False

    def _fits(self, closes: frozenset[tuple[str, str]]) -> bool:
        """Whether each lock alone keeps some pair closed, and each fault still breaks one of
        machines that are not in reserve."""
        together = [*self._closed, closes]
        count = Counter(pair for each in together for pair in each)
        return all(any(count[pair] == 1 for pair in each) for each in together) and all(
            any(
                pair not in count and (self.anywhere or not self._reserve & set(pair))
                for pair in broken
            )
            for broken in self._broken
        )

    def alone(self, number: int) -> list[tuple[str, str]]:
        """The pairs that one lock of ``found`` keeps closed, and no other does."""
        count = Counter(pair for each in self._closed for pair in each)
        return sorted(pair for pair in self._closed[number] if count[pair] == 1)

    def world(self) -> World:
        """The network with all locks on."""
        healthy = self.plan.world
        commands: dict[str, list[str]] = {}
        # the order says nothing about which lock is like a fault
        for entry in self.rng.sample(self.found, len(self.found)):
            for command in entry.inject:
                commands.setdefault(command.machine, []).append(command.command)
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
