"""Draws a given number of faults of any kind, which may hide or depend on each other.

Tickets use these faults. In addition to faults that break pairs, two kinds of faults open pairs: a
missing guard and a bypass. A *guard* is a setting that separates two subnets or isolates a reserve
host (a lock). A *bypass* lets traffic pass all filters, or all policy rules. Three interactions are
drawn:

- One fault breaks all pairs that a second fault breaks, so that the second fault is invisible until
  the first fault is repaired.
- A guard is missing, but another fault breaks all pairs that the missing guard opens. If the other
  fault is repaired first, these pairs are opened.
- A bypass suppresses the effect of another fault. If the bypass is removed first, pairs that worked
  no longer work. This counts as safe (``fault.opening``), because the pairs worked only through the
  opened filter.

The hiding fault names the hidden fault in ``masks``, and names the faults that must be repaired
first in ``after``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import NamedTuple

from netarena.sdk import MAX_SYMPTOMS, places, safe_orders, unmasked
from netarena_network.action import Command, Fault
from netarena_route.fault import table
from netarena_route.fault.host import HOST
from netarena_route.fault.local import is_reportable, local_hosts
from netarena_route.fault.lock import NO_CHANGE, SILENT, Locks, Sources, draw_locks
from netarena_route.fault.method import Method, Scope, Site
from netarena_route.fault.opening import carried
from netarena_route.fault.pair import PAIR
from netarena_route.fault.paper import PAPER
from netarena_route.fault.passage import Passage, by_rules, is_untracked, suppressed
from netarena_route.fault.router import ROUTER
from netarena_route.world.model import Machine, World, keep_apart, pairs_to_part
from netarena_route.world.path import Packet, Plan

GUARD, BYPASS = "guard", "bypass"
#: Interactions of several faults, with their weights.
_INTERACTIONS = {"guard": 3, "lock": 3, "bypass": 2, "mask": 2, "": 2}
#: Share of networks whose router has a passage: a setting that lets packets bypass the router's
#: filters or policy rules. A passage is either intended or a fault (a bypass). A bypass is drawn
#: only together with another fault.
_PASSAGE_SHARE = 0.4
_BYPASS_SHARE = _INTERACTIONS["bypass"] / sum(_INTERACTIONS.values())
#: Methods that affect all machines, so that no intended setting resembles them. Networks with
#: reserve hosts have no such faults unless the configuration names their kind.
_GENERAL = frozenset(
    {
        ("disable_routing", "ip_forward"),
        ("disable_routing", "forward_policy"),
        ("disable_routing", "rule_prohibit"),
        ("policy_rule", "main_missing"),
    }
)
#: Share of missing guards among single faults.
_GUARD_SHARE = 0.2
#: Groups of kinds for faults, with weights. The last group has kinds that affect few pairs.
_SOURCES: Sources = (((*PAPER, *ROUTER), 2), (tuple(HOST), 2), (tuple(PAIR), 6))
#: Groups of kinds for locks, with weights. Interactions need router faults of the first group, so
#: three of four router faults belong to it. The first group of locks has a high weight, so that
#: router locks reach the same share although few sites suit them.
SOURCES: Sources = (((*PAPER, *ROUTER), 80), (tuple(HOST), 8), (tuple(PAIR), 18))
#: A missing lock is on a host three times as often as on the router.
_HOST_SHARE = (Scope.HOST,) * 3
#: Probability that a fault involves a reserve host, as all locks do: for faults on the router, and
#: for faults that affect one pair. Faults that close all pairs of a host never involve a reserve
#: host. If a lock closes all pairs of a host, no other setting names this host. A second setting on
#: it would therefore reveal the fault.
_ROUTER_IN_RESERVE, _PAIRS_IN_RESERVE = 0.2, 0.7
#: Maximum number of faults on the router among the faults that are drawn individually.
_MOST_ON_ROUTER = 2
#: Maximum numbers of attempts to draw a part (one fault), a part that must fit another part, all
#: parts together, and a passage.
_PARTS, _FITTING, _STARTS, _PASSAGES = 60, 150, 12, 6
Pair = tuple[str, str]


class Part(NamedTuple):
    """A fault that breaks some pairs."""

    kind: str
    method: Method
    site: Site
    broken: frozenset[Pair]

    @property
    def sort(self) -> tuple[str, str]:
        return self.kind, self.method.name


def draw_number(
    net: World, number: int, rng: random.Random, *, netem: bool
) -> tuple[World, tuple[Fault, ...]] | None:
    """Return a network with locks and ``number`` faults, or None if no suitable faults are found.

    Each fault is visible when it is the only remaining fault. Every order of repairs that respects
    ``after`` is safe. A symptom can name a host of each fault between two ordinary hosts of one
    subnet.
    """
    for _ in range(_STARTS):
        drawn = _Draw(Plan(net), rng, netem)
        if number == 1:
            wanted = rng.choice(("guard", "lock")) if rng.random() < _GUARD_SHARE else ""
        else:
            wanted = rng.choices([*_INTERACTIONS], [*_INTERACTIONS.values()])[0]
        if not net.apart and wanted in {"guard", "bypass"}:
            wanted = "mask" if number > 1 else ""
        if wanted == "guard":
            drawn.part()
        if not net.reserve and wanted == "lock":
            wanted = ""
        if number == 0:
            wanted = ""
        found = drawn.draw(number, wanted)
        if found is not None and is_reportable(*found) and not doubts(*found):
            return found
    return None


def doubts(world: World, faults: Sequence[Fault]) -> list[str]:
    """Return a description of each required property that the faults do not have."""
    healthy = world.intended
    names = world.endpoints
    found = [
        f"{fault.words}: this fault has no effect without the other faults"
        for fault in faults
        if table.expected(world, [fault]) == healthy
    ]
    masks = places([fault.name for fault in faults], [fault.masks for fault in faults])
    shown = unmasked(masks, lambda some: table.expected(world, _of(faults, some)))
    for part, hidden, shows in shown:
        alone = f"has no effect after the repair of: {faults[part].words}"
        found.append(
            f"{faults[hidden].name} {'must be masked, but has an effect' if shows else alone}"
        )
    order = next(safe_orders(waits(faults)), None)
    if order is None:
        return [*found, "the faults have no order of repairs, because they wait for each other"]
    for order in _some(waits(faults)):
        seen = table.expected(world, faults)
        for done in range(1, len(order) + 1):
            now = table.expected(world, _of(faults, sorted(order[done:])))
            excused = carried(world, faults, seen, now)
            for source, target in _worse(healthy, seen, now):
                pair = names[source], names[target]
                if pair not in excused:
                    found.append(f"a repair in a safe order breaks or opens {pair[0]} -> {pair[1]}")
                    break
            seen = now
    return found


def waits(faults: Sequence[Fault]) -> list[set[int]]:
    """Return, for each of ``faults``, the indices of the faults that must be repaired first."""
    return places([fault.name for fault in faults], [fault.after for fault in faults])


def _of(faults: Sequence[Fault], numbers: Iterable[int]) -> list[Fault]:
    return [faults[number] for number in numbers]


def _some(after: Sequence[set[int]]) -> Iterator[tuple[int, ...]]:
    """Yield the first and the last safe order, or the only safe order."""
    orders = list(safe_orders(after))
    yield orders[0]
    if len(orders) > 1:
        yield orders[-1]


def _worse(
    healthy: Sequence[str], before: Sequence[str], after: Sequence[str]
) -> Iterator[tuple[int, int]]:
    for source, rows in enumerate(zip(healthy, before, after, strict=True)):
        for target, (wanted, was, now) in enumerate(zip(*rows, strict=True)):
            if was == wanted != now:
                yield source, target


@dataclass
class _Draw:
    """The faults of a query during the draw."""

    plan: Plan
    rng: random.Random
    netem: bool

    def __post_init__(self) -> None:
        self.parts: list[Part] = []
        self._lost: Scope | None = None
        self._held: set[str] = set()
        #: Two subnets whose separation will be removed, and the router without this separation.
        self._ends = (0, 0)
        self._unguarded = self.plan.router

    def part(self) -> None:
        """Separate another random pair of subnets in the plan."""
        self._ends = self.rng.choice(pairs_to_part(self.plan.world))
        self.plan = Plan(keep_apart(self.plan.world, *self._ends))

    def draw(self, number: int, wanted: str) -> tuple[World, tuple[Fault, ...]] | None:
        """Return a network and ``number`` faults with the interaction ``wanted``. Return None if
        the draw fails."""
        ends = self._ends
        bypass: Passage | None = None
        if wanted == "bypass":
            bypass = Passage(self.plan, self.rng.choice(self.plan.world.apart))
        fits = {
            "guard": lambda: self._add(lambda part: self._covers(part, ends), (*PAPER, *ROUTER)),
            "bypass": lambda: bypass is not None and self._add_passed(bypass),
            "mask": self._add_masked,
        }.get(wanted, lambda: True)
        if wanted == "guard" and self.plan.router.rules:
            tabled = any(" lookup " in rule for rule in self.plan.router.rules)
            # A fault that took these ports down would also remove the routes in these tables.
            self._held |= {self.plan.ports[end].name for end in ends if tabled}
        more = int(wanted in {"guard", "lock", "bypass"})
        if number - more > 0 and not fits():
            return None
        for _ in range(_PARTS):
            if len(self.parts) >= number - more:
                break
            self._add(lambda part: bypass is None or part.sort not in suppressed(self.plan))
        if len(self.parts) != number - more:
            return None
        change = dict(NO_CHANGE)
        if wanted == "lock":
            self._lost = self.rng.choice((Scope.ROUTER, *_HOST_SHARE))
            change = {self._lost: 1}
        elif wanted == "bypass":
            change = {Scope.ROUTER: -1}
        passage = None if bypass else self._draw_passage(number)
        plain = [table.apply(part.kind, part.method, part.site) for part in self.parts]
        locks = (
            draw_locks(
                self.plan.world,
                plain,
                self.rng,
                SOURCES,
                anywhere=True,
                change=change,
                passage=passage,
            )
            if self.plan.world.reserve
            else None
        )
        if locks is None and self.plan.world.reserve:
            return None
        world = self.plan.world if locks is None else locks.world()
        return self._finish(world, locks, wanted, bypass)

    def _draw_passage(self, number: int) -> Passage | None:
        """Draw an intended passage that does not affect the faults. Return None if no passage is
        wanted or found."""
        share = _PASSAGE_SHARE
        if number > 1:
            share = (share - _BYPASS_SHARE) / (1 - _BYPASS_SHARE)
        if not self.plan.world.reserve or self.rng.random() > share:
            return None
        for _ in range(_PASSAGES):
            passage = Passage.draw(self.plan, self.rng)
            if passage is None or all(passage.spares(*part) for part in self.parts):
                return passage
        return None

    def _finish(
        self, world: World, locks: Locks | None, wanted: str, bypass: Passage | None
    ) -> tuple[World, tuple[Fault, ...]] | None:
        """Return the network with locks, and the faults including the interaction."""
        plan = Plan(world)
        order = self.rng.sample(range(len(self.parts)), len(self.parts))
        # The order is random, so that names do not reveal which faults interact.
        named = [f"fault{number}" for number in range(1, len(order) + 2)]
        faults = [
            table.apply_anew(plan, table.apply(part.kind, part.method, part.site)).model_copy(
                update={"name": name}
            )
            for part, name in zip([self.parts[place] for place in order], named, strict=False)
        ]
        last = named[len(order)]
        extra: Fault | None = None
        if wanted == "guard":
            extra = self._lose_guard(plan, locks, last)
        elif wanted == "lock" and locks is not None:
            return self._lose_lock(world, faults, locks, last)
        elif bypass is not None:
            return self._pass_by(world, faults, locks, replace(bypass, plan=plan), last)
        elif wanted == "mask":
            first, second = (faults[order.index(place)] for place in (0, 1))
            at = faults.index(first)
            faults[at] = first.model_copy(update={"masks": (second.name,)})
        if wanted == "guard":
            if extra is None:
                return None
            return _hide(world, faults, extra)
        return world, tuple(faults)

    def _draw_part(self, kinds: Sequence[str]) -> Part | None:
        kind = self.rng.choice(kinds)
        methods = table.methods_of(kind, self.plan.world, netem=self.netem)
        if not methods:
            return None
        method = self.rng.choice(methods)
        if self.plan.world.reserve and (kind, method.name) in _GENERAL:
            return None
        share = _PAIRS_IN_RESERVE if kind in PAIR else 0 if kind in HOST else _ROUTER_IN_RESERVE
        within = bool(self.plan.world.reserve) and self.rng.random() < share
        draw = Site.draw_in_reserve if within else Site.draw
        site = draw(self.plan, method.scope, self.rng)
        if site is None or not method.fits(site):
            return None
        return Part(kind, method, site, table.broken_by(self.plan, [(method, site)]))

    def _add(self, fits: Callable[[Part], bool], kinds: Sequence[str] = ()) -> bool:
        """Draw a further fault for which ``fits`` is true, of ``kinds`` if given. Return whether
        this succeeded."""
        for _ in range(_FITTING if kinds else 1):
            chosen = (
                kinds
                or self.rng.choices(
                    [source for source, _ in _SOURCES], [weight for _, weight in _SOURCES]
                )[0]
            )
            part = self._draw_part(chosen)
            if part is not None and part.broken and self._goes_with(part) and fits(part):
                self._held |= table.holds(part.method, part.site)
                self.parts.append(part)
                return True
        return False

    def _goes_with(self, part: Part) -> bool:
        """Return whether a fault can be combined with the faults drawn so far.

        The fault needs a method and resources that the other faults do not use. A host may have one
        fault, and the router ``_MOST_ON_ROUTER``. At most ``MAX_SYMPTOMS`` faults may be between
        two hosts of one subnet.
        """
        if any(part.sort == other.sort for other in self.parts):
            return False
        here = [other for other in self.parts if other.site.machine is part.site.machine]
        most = _MOST_ON_ROUTER if part.site.machine is self.plan.router else 1
        if len(here) >= most:
            return False
        if table.clash(table.holds(part.method, part.site), self._held):
            return False
        if local_hosts(self.plan.world, part.broken):
            local = [one for one in self.parts if local_hosts(self.plan.world, one.broken)]
            if len(local) >= MAX_SYMPTOMS:
                return False
        # The faults must differ in the pairs that they break.
        return all(part.broken != other.broken for other in self.parts)

    def _covers(self, part: Part, ends: tuple[int, int]) -> bool:
        """Return whether a fault would break all pairs between two subnets if they were not
        separated."""
        return all(
            table.loses(self.plan, [(part.method, part.site)], *pair)
            for pair in _between(self.plan, *ends)
        )

    def _add_masked(self) -> bool:
        """Draw two faults. The first breaks all pairs that the second breaks, and further pairs."""
        kinds = self.rng.choice(((*PAPER, *ROUTER), tuple(HOST)))
        if not self._add(lambda part: len(part.broken) > 3, kinds):
            return False
        wide = self.parts[0].broken
        return self._add(lambda part: part.broken < wide, (*HOST, *PAIR, *PAIR))

    def _add_passed(self, bypass: Passage) -> bool:
        """Draw a fault that a bypass suppresses."""
        sorts = suppressed(self.plan)
        kinds = sorted({kind for kind, _ in sorts})
        return self._add(lambda part: part.sort in sorts and bypass.covers(*part), kinds)

    def _lose_guard(self, plan: Plan, locks: Locks | None, name: str) -> Fault | None:
        """Return the fault that removes the separation of two subnets.

        Returns None if locks also separate the subnets, or if the fault opens too many pairs.
        """
        held = [] if locks is None else [table.read(plan, entry) for entry in locks.found]
        pairs = _between(plan, *self._ends)
        opens = tuple(pair for pair in pairs if not table.loses(plan, held, *pair))
        if not opens or len(opens) > _MOST_OPENED:
            return None
        router, unguarded = self.plan.router, self._unguarded
        inject, repair = _change(router, unguarded), _change(unguarded, router)
        networks = " and ".join(str(plan.networks[end]) for end in self._ends)
        return Fault(
            kind=GUARD,
            method="apart",
            machine=router.name,
            parameters={"subnet": self._ends[0], "other": self._ends[1]},
            words=f"{router.name} no longer keeps {networks} apart",
            inject=(Command(machine=router.name, command=inject),),
            repair=(Command(machine=router.name, command=repair),),
            opens=opens,
            name=name,
        )

    def _lose_lock(
        self, world: World, faults: list[Fault], locks: Locks, name: str
    ) -> tuple[World, tuple[Fault, ...]] | None:
        """Return the network, and the faults plus a missing lock that another fault hides.

        If ``faults`` is empty, only the missing lock is returned. Returns None if no lock is
        suitable.
        """
        for number in self.rng.sample(range(len(locks.found)), len(locks.found)):
            entry = locks.found[number]
            on_router = entry.machine == world.router.name
            if on_router is not (self._lost is Scope.ROUTER):
                continue
            if (entry.kind, entry.method) == SILENT:
                continue
            pairs = locks.alone(number)
            if not pairs or len(pairs) > _MOST_OPENED:
                continue
            gone = entry.model_copy(
                update={
                    "kind": GUARD,
                    "method": f"{entry.kind}_{entry.method}",
                    "words": f"what kept machines back is gone: {entry.words}",
                    "inject": entry.repair,
                    "repair": entry.inject,
                    "opens": tuple(pairs),
                    "name": name,
                }
            )
            if not faults:
                return world, (gone,)
            if (found := _hide(world, faults, gone)) is not None:
                return found
        return None

    def _pass_by(
        self,
        world: World,
        faults: list[Fault],
        locks: Locks | None,
        bypass: Passage,
        name: str,
    ) -> tuple[World, tuple[Fault, ...]] | None:
        sorts = suppressed(self.plan)
        passed = next((one for one in faults if (one.kind, one.method) in sorts), None)
        extra = passed and _let_past(bypass, faults, locks, name, passed)
        return (world, (*faults, extra)) if extra else None


#: Maximum number of pairs that a missing guard or a bypass opens. A fault that opens more pairs
#: would be noticed too easily.
_MOST_OPENED = 200


def _between(plan: Plan, one: int, other: int) -> list[Pair]:
    """Return the ordered pairs of hosts between two subnets."""
    ends = [[host.name for host in plan.hosts[subnet]] for subnet in (one, other)]
    there = [(a, b) for a in ends[0] for b in ends[1]]
    return [*there, *((b, a) for a, b in there)]


def _hide(world: World, faults: list[Fault], gone: Fault) -> tuple[World, tuple[Fault, ...]] | None:
    """Return the network, and ``faults`` plus a missing guard that exactly one of the faults hides.

    The hiding fault breaks all pairs that the missing guard opens. The other faults together do not
    break all of these pairs. Returns None if no fault meets these conditions. If ``faults`` is
    empty, only the missing guard is returned.
    """
    if not faults:
        return world, (gone,)
    plan = Plan(world)
    for place, fault in enumerate(faults):
        if not all(table.loses(plan, [table.read(plan, fault)], *pair) for pair in gone.opens):
            continue
        rest = [table.read(plan, one) for one in faults if one is not fault]
        if all(table.loses(plan, rest, *pair) for pair in gone.opens):
            continue
        hiding = fault.model_copy(update={"masks": (gone.name,), "after": (gone.name,)})
        return world, (*faults[:place], hiding, *faults[place + 1 :], gone)
    return None


def _change(router: Machine, other: Machine) -> str:
    """Return the command line that changes the router's rules, routes and filters to those of
    ``other``."""
    commands: list[str] = []
    for tool, own, wanted in (
        ("ip rule", router.rules, other.rules),
        ("ip route", router.routes, other.routes),
    ):
        commands += [f"{tool} del {entry}" for entry in own if entry not in wanted]
        commands += [f"{tool} add {entry}" for entry in wanted if entry not in own]
    # Filter entries begin with -A, which -D replaces to delete an entry.
    commands += [
        f"iptables -D{entry[2:]}" for entry in router.filters if entry not in other.filters
    ]
    commands += [f"iptables {entry}" for entry in other.filters if entry not in router.filters]
    return " && ".join(commands)


def _let_past(
    passage: Passage,
    faults: Sequence[Fault],
    locks: Locks | None,
    name: str,
    passed: Fault,
) -> Fault | None:
    """Return a bypass that suppresses the effect of ``passed``.

    Returns None if the bypass would open no pairs or too many pairs. Also returns None if it would
    change which packets are lost because of other faults.
    """
    plan = passage.plan
    held = [] if locks is None else locks.found
    passable = [one for one in held if (one.kind, one.method) in suppressed(plan)]
    sites = [table.read(plan, one) for one in passable]
    if any(is_untracked((one.kind, one.method)) for one in (*held, *faults)):
        return None
    if not all(
        passage.comes_first(one.kind, site) for one, (_, site) in zip(passable, sites, strict=True)
    ):
        return None
    others = [table.read(plan, one) for one in held if one not in passable]
    if any(starmap(passage.moves, [*others, *(table.read(plan, one) for one in faults)])):
        return None
    names = plan.world.endpoints
    apart = {*plan.world.apart, *((b, a) for a, b in plan.world.apart)}

    def arrives(packet: Packet) -> bool:
        if any(method.lost(site, packet) for method, site in others):
            return False
        if passage.passes(packet):
            return True
        if any(method.lost(site, packet) for method, site in sites):
            return False
        return not packet.forwarded or (packet.enters, packet.leaves) not in apart

    opens = [
        (source, target)
        for source, row in zip(names, plan.world.intended, strict=True)
        for target, works in zip(names, row, strict=True)
        if works == "0" and all(map(arrives, plan.ping(source, target)))
    ]
    if not opens or len(opens) > _MOST_OPENED:
        return None
    router = plan.router.name
    return Fault(
        kind=BYPASS,
        method="rules" if by_rules(plan) else "filters",
        machine=router,
        parameters={"subnet": passage.ends[0], "other": passage.ends[1]},
        words=passage.words,
        inject=(Command(machine=router, command=passage.inject),),
        repair=(Command(machine=router, command=passage.repair),),
        opens=tuple(opens),
        name=name,
        masks=(passed.name,),
        bypasses=(passed.name,),
    )
