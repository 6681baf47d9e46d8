"""So many faults of whatever kinds, among which one may hide another or have to wait for it.

What a ticket is made of. Beside what breaks pairs there are two kinds that open some. A *guard*
is gone: what keeps two subnets apart, or a lock that keeps a machine in reserve back. A *bypass*
lets traffic past all filters, or past all policy rules. Three interactions are drawn:

- a fault breaks all that another one breaks, which shows in no pair until the first is repaired;
- a guard is gone of which nobody can tell, for another fault breaks all pairs that it opens:
  whoever repairs that first opens them;
- a bypass keeps another fault from having any effect: whoever removes the bypass first breaks
  what worked.

The action that hides names the other one in ``masks``, and in ``after`` what must be repaired
before it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from netarena.task.repair_order import places, safe_orders, unmasked
from netarena_route.action import Command, Fault
from netarena_route.fault import table
from netarena_route.fault.host import HOST
from netarena_route.fault.lock import NO_CHANGE, Locks, Sources, draw_locks
from netarena_route.fault.method import Method, Scope, Site
from netarena_route.fault.pair import PAIR
from netarena_route.fault.paper import PAPER
from netarena_route.fault.router import ROUTER
from netarena_route.world.model import World
from netarena_route.world.path import MAIN, Packet, Plan

GUARD, BYPASS = "guard", "bypass"
#: of the draws of several faults: how they are to interact, with its weight
_INTERACTIONS = {"guard": 3, "lock": 3, "bypass": 3, "mask": 2, "": 2}
#: of the draws of one fault, in how many it is a guard
_GUARD_SHARE = 0.2
#: where a fault is drawn from, with its weight: what many pairs show, and what few do
_SOURCES: Sources = (((*PAPER, *ROUTER), 2), (tuple(HOST), 2), (tuple(PAIR), 6))
#: and a lock: interactions need what many pairs show, so faults have such methods more often
SOURCES: Sources = (((*PAPER, *ROUTER), 12), (tuple(HOST), 8), (tuple(PAIR), 18))
#: of the draws of a lock that is gone: how often it was on a host, to once on the router
_HOST_SHARE = (Scope.HOST,) * 3
#: the share of faults that have to do with a host in reserve, as all locks do: a setting about one
#: pair names its hosts, and those of locks are in the reserve
_IN_RESERVE, _PAIRS_IN_RESERVE = 0.2, 0.7
#: faults on the router at most, of those that are drawn one by one
_MOST_ON_ROUTER = 2
#: draws of a part, of a part that is to fit another, and of all
_PARTS, _FITTING, _STARTS = 60, 150, 12
#: what iptables' FORWARD decides, and what policy rules and their tables do. Where untracked
#: packets pass, other filters and translations no longer know them
_UNTRACKED = ("router_firewall", "untracked")
_FILTERS = frozenset(
    (kind, name)
    for kind, names in {
        "disable_routing": ("forward_policy", "forward_source"),
        "router_firewall": (
            *("forward_target", "forward_ports", "forward_host", "forward_icmp", "long_packets"),
            *("replies", "new_connections", "accept_missing"),
        ),
    }.items()
    for name in names
)
_RULES = frozenset(
    (kind, name)
    for kind, names in {
        "disable_routing": ("rule_prohibit",),
        "policy_rule": (
            *("source_table", "target_table", "port_prohibit", "port_unreachable"),
            *("host_blackhole", "host_prohibit", "main_missing"),
        ),
        "stray_route": ("table_route_missing",),
        "router_traffic": ("pair_rule",),
    }.items()
    for name in names
)

Pair = tuple[str, str]


class Part(NamedTuple):
    """A fault that breaks something, as it is drawn."""

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
    """So many faults upon ``net``, and the network with its reserve kept back; None where none are
    found.

    Each shows when it is the only one left, and every order of repairs in which none comes before
    one that it waits for is safe.
    """
    for _ in range(_STARTS):
        drawn = _Draw(Plan(net), rng, netem)
        if number == 1:
            wanted = rng.choice(("guard", "lock")) if rng.random() < _GUARD_SHARE else ""
        else:
            wanted = rng.choices([*_INTERACTIONS], [*_INTERACTIONS.values()])[0]
        if not net.apart and wanted in {"guard", "bypass"}:
            wanted = "mask" if number > 1 else ""
        if not net.reserve and wanted == "lock":
            wanted = ""
        if number == 0:
            wanted = ""
        found = drawn.draw(number, wanted)
        if found is not None and not doubts(*found):
            return found
    return None


def doubts(world: World, faults: Sequence[Fault]) -> list[str]:
    """What of this does not hold, in words."""
    healthy = world.intended
    names = world.endpoints
    found = [
        f"{fault.words}: alone it does not show"
        for fault in faults
        if table.expected(world, [fault]) == healthy
    ]
    masks = places([fault.name for fault in faults], [fault.masks for fault in faults])
    shown = unmasked(masks, lambda some: table.expected(world, _of(faults, some)))
    for part, hidden, shows in shown:
        alone = f"does not show when {faults[part].words} is repaired"
        found.append(f"{faults[hidden].name} {'is to be hidden, and shows' if shows else alone}")
    order = next(safe_orders(waits(faults)), None)
    if order is None:
        return [*found, "faults wait for each other"]
    for order in _some(waits(faults)):
        seen = table.expected(world, faults)
        for done in range(1, len(order) + 1):
            now = table.expected(world, _of(faults, sorted(order[done:])))
            for source, target in _worse(healthy, seen, now):
                found.append(f"a repair harms {names[source]} -> {names[target]}")
                break
            seen = now
    return found


def waits(faults: Sequence[Fault]) -> list[set[int]]:
    """By its place, those of ``faults`` that each waits for."""
    return places([fault.name for fault in faults], [fault.after for fault in faults])


def _of(faults: Sequence[Fault], numbers: Iterable[int]) -> list[Fault]:
    return [faults[number] for number in numbers]


def _some(after: Sequence[set[int]]) -> Iterator[tuple[int, ...]]:
    """A few safe orders: the first, and the last."""
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
    """The faults of one query, as they are drawn."""

    plan: Plan
    rng: random.Random
    netem: bool

    def __post_init__(self) -> None:
        self.parts: list[Part] = []
        self._lost: Scope | None = None
        self._held: set[str] = set()

    def draw(self, number: int, wanted: str) -> tuple[World, tuple[Fault, ...]] | None:
        """So many, which interact as it is wanted; None where this draw finds none."""
        ends = self._draw_apart() if wanted in {"guard", "bypass"} else (0, 0)
        fits = {
            "guard": lambda: self._add(lambda part: self._covers(part, ends), self._wide(ends)),
            "bypass": lambda: self._add_passed(ends),
            "mask": self._add_masked,
        }.get(wanted, lambda: True)
        if wanted == "guard" and self.plan.router.rules:
            tabled = any(" lookup " in rule for rule in self.plan.router.rules)
            # its routes would go with the ports
            self._held |= {self.plan.ports[end].name for end in ends if tabled}
        more = int(wanted in {"guard", "lock", "bypass"})
        if number - more > 0 and not fits():
            return None
        for _ in range(_PARTS):
            if len(self.parts) >= number - more:
                break
            self._add(lambda part: wanted != "bypass" or not self._is_passed(part))
        if len(self.parts) != number - more:
            return None
        change = dict(NO_CHANGE)
        if wanted == "lock":
            self._lost = self.rng.choice((Scope.ROUTER, *_HOST_SHARE))
            change = {self._lost: 1}
        elif wanted == "bypass":
            change = {Scope.ROUTER: -1}
        plain = [table.apply(part.kind, part.method, part.site) for part in self.parts]
        locks = (
            draw_locks(self.plan.world, plain, self.rng, SOURCES, anywhere=True, change=change)
            if self.plan.world.reserve
            else None
        )
        if locks is None and self.plan.world.reserve:
            return None
        world = self.plan.world if locks is None else locks.world()
        return self._finish(world, locks, wanted, ends)

    def _finish(
        self, world: World, locks: Locks | None, wanted: str, ends: tuple[int, int]
    ) -> tuple[World, tuple[Fault, ...]] | None:
        """The faults in the locked network, with what the interaction is about."""
        plan = Plan(world)
        order = self.rng.sample(range(len(self.parts)), len(self.parts))
        # the names tell no more than they have to
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
            extra = _lose_guard(plan, locks, ends, last)
        elif wanted == "lock" and locks is not None:
            return self._lose_lock(world, faults, locks, last)
        elif wanted == "bypass":
            return self._pass_by(world, faults, locks, ends, last)
        elif wanted == "mask":
            first, second = (faults[order.index(place)] for place in (0, 1))
            at = faults.index(first)
            faults[at] = first.model_copy(update={"masks": (second.name,)})
        if wanted == "guard":
            if extra is None:
                return None
            return _hide(world, faults, extra)
        return world, tuple(faults)

    def _draw_apart(self) -> tuple[int, int]:
        return self.rng.choice(self.plan.world.apart)

    def _wide(self, ends: tuple[int, int]) -> Sequence[str]:
        del ends
        return (*PAPER, *ROUTER)

    def _draw_part(self, kinds: Sequence[str]) -> Part | None:
        kind = self.rng.choice(kinds)
        methods = table.methods_of(kind, self.plan.world, netem=self.netem)
        if not methods:
            return None
        method = self.rng.choice(methods)
        share = _PAIRS_IN_RESERVE if kind in PAIR else _IN_RESERVE
        within = bool(self.plan.world.reserve) and self.rng.random() < share
        draw = Site.draw_in_reserve if within else Site.draw
        site = draw(self.plan, method.scope, self.rng)
        if site is None or not method.fits(site):
            return None
        return Part(kind, method, site, table.broken_by(self.plan, [(method, site)]))

    def _add(self, fits: Callable[[Part], bool], kinds: Sequence[str] = ()) -> bool:
        """Draw one more that fits, of ``kinds`` or any; whether one was found."""
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
        """Whether it gets in no other's way, and is where none of them is."""
        if any(part.sort == other.sort for other in self.parts):
            return False
        here = [other for other in self.parts if other.site.machine is part.site.machine]
        most = _MOST_ON_ROUTER if part.site.machine is self.plan.router else 1
        if len(here) >= most:
            return False
        if table.clash(table.holds(part.method, part.site), self._held):
            return False
        # what it breaks alone is seen when it is left as the last one; and no other does the same
        return all(part.broken != other.broken for other in self.parts)

    def _covers(self, part: Part, ends: tuple[int, int]) -> bool:
        """Whether it breaks all that is between two subnets, were they not apart."""
        return all(
            table.loses(self.plan, [(part.method, part.site)], *pair)
            for pair in _between(self.plan, *ends)
        )

    def _add_masked(self) -> bool:
        """Two parts, of which the first breaks all that the second does."""
        kinds = self.rng.choice(((*PAPER, *ROUTER), tuple(HOST)))
        if not self._add(lambda part: len(part.broken) > 3, kinds):
            return False
        wide = self.parts[0].broken
        return self._add(lambda part: part.broken < wide, (*HOST, *PAIR, *PAIR))

    def _add_passed(self, ends: tuple[int, int]) -> bool:
        """A part that has no effect where a bypass is."""
        sorts = _sorts(self.plan)
        kinds = sorted({kind for kind, _ in sorts})
        return self._add(
            lambda part: part.sort in sorts and _is_covered(self.plan, part, ends), kinds
        )

    def _is_passed(self, part: Part) -> bool:
        """Whether a bypass may take some of its effect."""
        return part.sort in _sorts(self.plan)

    def _lose_lock(
        self, world: World, faults: list[Fault], locks: Locks, name: str
    ) -> tuple[World, tuple[Fault, ...]] | None:
        """A lock is gone, such that another fault hides it, if there is one."""
        for number in self.rng.sample(range(len(locks.found)), len(locks.found)):
            entry = locks.found[number]
            on_router = entry.machine == world.router.name
            if on_router is not (self._lost is Scope.ROUTER):
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
        ends: tuple[int, int],
        name: str,
    ) -> tuple[World, tuple[Fault, ...]] | None:
        passed = next((one for one in faults if (one.kind, one.method) in _sorts(self.plan)), None)
        extra = passed and _let_past(Plan(world), faults, locks, ends, name, passed)
        return (world, (*faults, extra)) if extra else None


#: pairs that a guard or a bypass opens at most: one that opens more is met by anybody
_MOST_OPENED = 200


def _between(plan: Plan, one: int, other: int) -> list[Pair]:
    """Ordered pairs of the hosts of two subnets."""
    ends = [[host.name for host in plan.hosts[subnet]] for subnet in (one, other)]
    there = [(a, b) for a in ends[0] for b in ends[1]]
    return [*there, *((b, a) for a, b in there)]


def _hide(world: World, faults: list[Fault], gone: Fault) -> tuple[World, tuple[Fault, ...]] | None:
    """With a guard that is gone, which one of ``faults`` and no other hides; alone it is shown."""
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


def _lose_guard(plan: Plan, locks: Locks | None, ends: tuple[int, int], name: str) -> Fault | None:
    """What keeps two subnets apart is gone, in both directions; None where locks do as well."""
    held = [] if locks is None else [table.read(plan, entry) for entry in locks.found]
    opens = [pair for pair in _between(plan, *ends) if not table.loses(plan, held, *pair)]
    if not opens or len(opens) > _MOST_OPENED:
        return None
    router, ways = plan.router, (ends, ends[::-1])
    inject: list[str] = []
    repair: list[str] = []
    dropped = any(entry.startswith("-P FORWARD DROP") for entry in router.filters)
    by_port = any(entry.startswith("-A FORWARD -i") for entry in router.filters)
    for a, b in ways:
        nets, ports = (plan.networks[a], plan.networks[b]), (plan.ports[a], plan.ports[b])
        match = f"-s {nets[0]} -d {nets[1]}"
        rule = next(
            (rule for rule in router.rules if f" iif {ports[0].name} to {nets[1]} " in f" {rule} "),
            "",
        )
        tabled = next(
            (
                rule.split()[-1]
                for rule in router.rules
                if f" iif {ports[0].name} lookup " in f" {rule} "
            ),
            "",
        )
        if dropped:
            match = f"-i {ports[0].name} -o {ports[1].name}" if by_port else match
            inject.append(f"iptables -A FORWARD {match} -j ACCEPT")
            repair.append(f"iptables -D FORWARD {match} -j ACCEPT")
        elif rule:
            inject.append(f"ip rule del {rule}")
            repair.append(f"ip rule add {rule}")
        elif tabled:
            inject.append(f"ip route add {nets[1]} dev {ports[1].name} table {tabled}")
            repair.append(f"ip route del {nets[1]} dev {ports[1].name} table {tabled}")
        else:
            (entry,) = (one for one in router.filters if f"FORWARD {match} -j " in one)
            inject.append(f"iptables {entry.replace('-A', '-D', 1)}")
            repair.append(f"iptables {entry}")
    networks = " and ".join(str(plan.networks[end]) for end in ends)
    return Fault(
        kind=GUARD,
        method="apart",
        machine=router.name,
        parameters={"subnet": ends[0], "other": ends[1]},
        words=f"{router.name} no longer keeps {networks} apart",
        inject=(Command(machine=router.name, command=" && ".join(inject)),),
        repair=(Command(machine=router.name, command=" && ".join(repair)),),
        opens=tuple(opens),
        name=name,
    )


def _by_rules(plan: Plan) -> bool:
    """Whether subnets are kept apart by policy rules, else by filters."""
    return bool(plan.router.rules)


def _sorts(plan: Plan) -> frozenset[tuple[str, str]]:
    return _RULES if _by_rules(plan) else _FILTERS


def _passes(plan: Plan, packet: Packet, ends: tuple[int, int]) -> bool:
    """Whether a bypass at ``ends`` has a packet pass: by rules, what comes in from either; by
    filters, all from and to the first."""
    if not packet.forwarded:
        return False
    if _by_rules(plan):
        return packet.enters in ends
    return ends[0] in (packet.source, packet.target)


def _is_covered(plan: Plan, part: Part, ends: tuple[int, int]) -> bool:
    """Whether all that a part loses passes."""
    if (
        _by_rules(plan)
        and part.kind in {"policy_rule", "router_traffic"}
        and (part.site.preference <= _FIRST)
    ):
        return False
    return all(
        _passes(plan, packet, ends)
        for pair in part.broken
        for packet in plan.ping(*pair)
        if part.method.lost(part.site, packet)
    )


def _is_torn(plan: Plan, ends: tuple[int, int], parts: Sequence[tuple[Method, Site]]) -> bool:
    """Whether by the main table, which what passes is looked up in, parts lose other packets than
    by the tables of a healthy network."""
    return any(
        method.lost(site, packet) != method.lost(site, replace(packet, table=MAIN))
        for source in plan.world.endpoints
        for target in plan.world.endpoints
        if source != target
        for packet in plan.ping(source, target)
        if packet.table not in {None, MAIN} and _passes(plan, packet, ends)
        for method, site in parts
    )


#: preferences of rules of a bypass: before all others
_FIRST = 4


def _let_past(  # noqa: PLR0913, PLR0917 -- what it stands beside
    plan: Plan,
    faults: Sequence[Fault],
    locks: Locks | None,
    ends: tuple[int, int],
    name: str,
    passed: Fault,
) -> Fault | None:
    """A bypass, by which ``passed`` has no effect; None where it opens nothing, or too much, or
    has others lose what they did not."""
    held = [] if locks is None else locks.found
    sorts, rules = _sorts(plan), _by_rules(plan)
    passable = [one for one in held if (one.kind, one.method) in sorts]
    sites = [table.read(plan, one) for one in passable]
    if any((one.kind, one.method) == _UNTRACKED for one in (*held, *faults)):
        return None
    if rules and any(
        one.kind in {"policy_rule", "router_traffic"} and site.preference <= _FIRST
        for one, (_, site) in zip(passable, sites, strict=True)
    ):
        return None
    others = [table.read(plan, one) for one in held if one not in passable]
    if rules and _is_torn(plan, ends, [*others, *(table.read(plan, one) for one in faults)]):
        return None
    names = plan.world.endpoints
    apart = {*plan.world.apart, *((b, a) for a, b in plan.world.apart)}

    def arrives(packet: Packet) -> bool:
        if any(method.lost(site, packet) for method, site in others):
            return False
        if _passes(plan, packet, ends):
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
    if rules:
        entries = [
            f"pref {1 + number} iif {plan.ports[end].name} lookup main"
            for number, end in enumerate(ends)
        ]
        inject = [f"ip rule add {entry}" for entry in entries]
        repair = [f"ip rule del {entry}" for entry in entries]
        words = f"{router} has the policy rules {' and '.join(entries)}, before all others"
    else:
        entries = [f"{key} {plan.networks[ends[0]]} -j ACCEPT" for key in ("-s", "-d")]
        inject = [f"iptables -I FORWARD {entry}" for entry in entries]
        repair = [f"iptables -D FORWARD {entry}" for entry in entries]
        words = f"{router} has the rules FORWARD {' and '.join(entries)}, before all others"
    return Fault(
        kind=BYPASS,
        method="rules" if rules else "filters",
        machine=router,
        parameters={"subnet": ends[0], "other": ends[1]},
        words=words,
        inject=(Command(machine=router, command=" && ".join(inject)),),
        repair=(Command(machine=router, command=" && ".join(repair)),),
        opens=tuple(opens),
        name=name,
        masks=(passed.name,),
        after=(passed.name,),
        bypasses=(passed.name,),
    )
