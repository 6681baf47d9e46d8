"""A number of faults of any kinds, which may hide each other or depend on each other's repair.

Tickets use these faults. In addition to faults that break pairs, two kinds open pairs. A missing
*guard* no longer separates two subnets, or no longer isolates a reserve host (a lock). A *bypass*
lets traffic pass all filters, or all policy rules. Three interactions are drawn:

- A fault breaks everything that another one breaks, so that the other is invisible until the first
  is repaired.
- A guard is missing, but another fault breaks all pairs that it opens. Repairing that fault first
  opens these pairs.
- A bypass suppresses the effect of another fault. Removing the bypass first breaks pairs that
  worked.

The hiding fault names the hidden one in ``masks``, and in ``after`` those that must be repaired
before it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from netarena.sdk import places, safe_orders, unmasked
from netarena_network.action import Command, Fault
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
#: Interactions of several faults, with their weights.
_INTERACTIONS = {"guard": 3, "lock": 3, "bypass": 3, "mask": 2, "": 2}
#: Share of single faults that are a missing guard.
_GUARD_SHARE = 0.2
#: Groups of kinds for faults, with weights: those that many pairs show, and those that few show.
_SOURCES: Sources = (((*PAPER, *ROUTER), 2), (tuple(HOST), 2), (tuple(PAIR), 6))
#: Groups of kinds for locks. Interactions need faults that many pairs show, so that the weights
#: here are higher for those than in ``_SOURCES``.
SOURCES: Sources = (((*PAPER, *ROUTER), 12), (tuple(HOST), 8), (tuple(PAIR), 18))
#: A missing lock was on a host three times as often as on the router.
_HOST_SHARE = (Scope.HOST,) * 3
#: Share of faults that involve a reserve host, as all locks do. It is larger for kinds of ``PAIR``,
#: since a setting about one pair names its hosts.
_IN_RESERVE, _PAIRS_IN_RESERVE = 0.2, 0.7
#: Maximum number of faults on the router among those drawn one by one.
_MOST_ON_ROUTER = 2
#: Draws of a part, of a part that must fit another one, and of the whole.
_PARTS, _FITTING, _STARTS = 60, 150, 12
#: Faults in iptables' FORWARD chain, and faults in policy rules and their tables. Once untracked
#: packets pass (``_UNTRACKED``), other filters and NAT no longer recognise them.
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
    """Return a network with locks and ``number`` faults, or None if none are found.

    Each fault is visible when it is the only one left. Every order of repairs that respects
    ``after`` is safe.
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
    """Return descriptions of properties that the faults should have but do not."""
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
    """Return, for each of ``faults``, the indices of the faults that it waits for."""
    return places([fault.name for fault in faults], [fault.after for fault in faults])


def _of(faults: Sequence[Fault], numbers: Iterable[int]) -> list[Fault]:
    return [faults[number] for number in numbers]


def _some(after: Sequence[set[int]]) -> Iterator[tuple[int, ...]]:
    """Yield the first and the last safe order."""
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
    """The faults of one query while they are drawn."""

    plan: Plan
    rng: random.Random
    netem: bool

    def __post_init__(self) -> None:
        self.parts: list[Part] = []
        self._lost: Scope | None = None
        self._held: set[str] = set()

    def draw(self, number: int, wanted: str) -> tuple[World, tuple[Fault, ...]] | None:
        """Return a network and ``number`` faults that interact as wanted, or None."""
        ends = self._draw_apart() if wanted in {"guard", "bypass"} else (0, 0)
        fits = {
            "guard": lambda: self._add(lambda part: self._covers(part, ends), self._wide(ends)),
            "bypass": lambda: self._add_passed(ends),
            "mask": self._add_masked,
        }.get(wanted, lambda: True)
        if wanted == "guard" and self.plan.router.rules:
            tabled = any(" lookup " in rule for rule in self.plan.router.rules)
            # The routes of these tables are lost if a fault takes the ports down.
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
        """Return the network with locks and the faults, including the interaction."""
        plan = Plan(world)
        order = self.rng.sample(range(len(self.parts)), len(self.parts))
        # Random order, so that names do not reveal which faults interact.
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
        """Draw one more fault that fits, of ``kinds`` or any; return whether one was found."""
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
        """Return whether a fault can be combined with those drawn so far.

        It needs a method, a machine and resources that the others leave free.
        """
        if any(part.sort == other.sort for other in self.parts):
            return False
        here = [other for other in self.parts if other.site.machine is part.site.machine]
        most = _MOST_ON_ROUTER if part.site.machine is self.plan.router else 1
        if len(here) >= most:
            return False
        if table.clash(table.holds(part.method, part.site), self._held):
            return False
        # No two faults break exactly the same pairs.
        return all(part.broken != other.broken for other in self.parts)

    def _covers(self, part: Part, ends: tuple[int, int]) -> bool:
        """Return whether a fault breaks all pairs of two subnets, as if they were not separated."""
        return all(
            table.loses(self.plan, [(part.method, part.site)], *pair)
            for pair in _between(self.plan, *ends)
        )

    def _add_masked(self) -> bool:
        """Draw two faults, of which the first breaks everything that the second does."""
        kinds = self.rng.choice(((*PAPER, *ROUTER), tuple(HOST)))
        if not self._add(lambda part: len(part.broken) > 3, kinds):
            return False
        wide = self.parts[0].broken
        return self._add(lambda part: part.broken < wide, (*HOST, *PAIR, *PAIR))

    def _add_passed(self, ends: tuple[int, int]) -> bool:
        """Draw a fault that a bypass suppresses."""
        sorts = _sorts(self.plan)
        kinds = sorted({kind for kind, _ in sorts})
        return self._add(
            lambda part: part.sort in sorts and _is_covered(self.plan, part, ends), kinds
        )

    def _is_passed(self, part: Part) -> bool:
        """Return whether a bypass may suppress some effect of a fault."""
        return part.sort in _sorts(self.plan)

    def _lose_lock(
        self, world: World, faults: list[Fault], locks: Locks, name: str
    ) -> tuple[World, tuple[Fault, ...]] | None:
        """Return the faults with a missing lock, which one of the other faults hides.

        Without other faults, the missing lock is returned alone. Returns None if no lock fits.
        """
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


#: Maximum number of pairs that a guard or bypass opens; more would be noticed too easily.
_MOST_OPENED = 200


def _between(plan: Plan, one: int, other: int) -> list[Pair]:
    """Return the ordered pairs of hosts of two subnets."""
    ends = [[host.name for host in plan.hosts[subnet]] for subnet in (one, other)]
    there = [(a, b) for a in ends[0] for b in ends[1]]
    return [*there, *((b, a) for a, b in there)]


def _hide(world: World, faults: list[Fault], gone: Fault) -> tuple[World, tuple[Fault, ...]] | None:
    """Return the faults with a missing guard that exactly one of ``faults`` hides.

    That fault breaks all pairs that the guard opens, and the others together do not. Returns None
    if there is no such fault; a missing guard without other faults is returned alone.
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


def _lose_guard(plan: Plan, locks: Locks | None, ends: tuple[int, int], name: str) -> Fault | None:
    """Return the fault that two subnets are no longer separated, or None if locks separate them."""
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
    """Return whether policy rules separate subnets; otherwise filters do."""
    return bool(plan.router.rules)


def _sorts(plan: Plan) -> frozenset[tuple[str, str]]:
    return _RULES if _by_rules(plan) else _FILTERS


def _passes(plan: Plan, packet: Packet, ends: tuple[int, int]) -> bool:
    """Return whether a bypass at ``ends`` lets a packet pass.

    With rules, these are packets that enter from either subnet. With filters, these are packets
    from or to the first subnet.
    """
    if not packet.forwarded:
        return False
    if _by_rules(plan):
        return packet.enters in ends
    return ends[0] in (packet.source, packet.target)


def _is_covered(plan: Plan, part: Part, ends: tuple[int, int]) -> bool:
    """Return whether a bypass lets all packets pass that a fault loses."""
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
    """Return whether a bypass makes some part lose different packets.

    A bypass routes packets by the main table instead of the tables of the intended network.
    """
    return any(
        method.lost(site, packet) != method.lost(site, replace(packet, table=MAIN))
        for source in plan.world.endpoints
        for target in plan.world.endpoints
        if source != target
        for packet in plan.ping(source, target)
        if packet.table not in {None, MAIN} and _passes(plan, packet, ends)
        for method, site in parts
    )


#: Preferences of a bypass's rules, which precede all others.
_FIRST = 4


def _let_past(  # noqa: PLR0913, PLR0917 -- all other parts of the query
    plan: Plan,
    faults: Sequence[Fault],
    locks: Locks | None,
    ends: tuple[int, int],
    name: str,
    passed: Fault,
) -> Fault | None:
    """Return a bypass that suppresses the effect of ``passed``.

    Returns None if it would open no pairs or too many, or change which packets other faults lose.
    """
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
