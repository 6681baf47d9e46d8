"""Seeded draw of a change request: today's world, latent faults and requested changes.

In most requests with several changes, the order matters: one change does harm unless another change
is made first. For example, a change interrupts the only path until another change puts an
alternative into service. In another example, a change moves traffic to a link whose MTU must be
raised first. The generator proposes such pairs and verifies them with the computed worlds between
the steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from typing import NamedTuple

from netarena_backbone.draw import draw as draw_world
from netarena_backbone.draw import is_documentable
from netarena_backbone.fault.change import Change, MissingSettingError, outer_peers
from netarena_backbone.fault.table import Room
from netarena_backbone.outage import with_contingencies
from netarena_backbone.planned.latent import candidates, lasting
from netarena_backbone.planned.refusal import (
    REFUSED,
    announced,
    announcing,
    bridges,
    inner_links,
    options,
)
from netarena_backbone.planned.requested import name_of, running_links
from netarena_backbone.planned.stages import Computed, Left, Stages
from netarena_backbone.planned.table import KINDS
from netarena_backbone.state import WORKS, Facts, facts_of, misfits, only_small, predicted
from netarena_backbone.world.forwarding import Follower
from netarena_backbone.world.intent import expected
from netarena_backbone.world.model import World
from netarena_backbone.world.routing import settle

#: Number of pairs for which the seconds of loss are measured.
_PROBED = 8
#: Maximum numbers of attempts: worlds; plans for one world; pairs in which one change must come
#: before the other; additional changes.
WORLDS, _PLANS, _PAIRS, _OTHERS = 24, 6, 4, 24
#: Maximum numbers of candidates for a latent fault: faults with an effect in the target itself, and
#: faults with an effect only in a contingency, which are harder to find.
_MOVED, _LATER = 20, 60
#: Share of ordered requests: requests with several changes whose order matters. Share of exposed
#: services: if at least two changes are to be added, they first include a service that must be
#: closed before a zone is opened.
_ORDERED, _EXPOSED = 0.85, 0.6
#: Maximum number of parts of all changes. The search for a safe order takes longer with more parts.
_MOST_PARTS = 10
#: If the order of the changes matters: number of random orders of the machines that are tested, and
#: the minimum number of these orders in which documented traffic must be lost.
_TRIED, _HARMFUL = 3, 2
#: Share of requests with a latent fault. Share of these requests with a second latent fault. Share
#: of latent faults that take effect only in a contingency. For the other latent faults, the share
#: that is drawn on machines without changes if possible.
_FAULTY, _TWICE, _LASTING, _AWAY = 2 / 3, 1 / 2, 1 / 2, 2 / 3
#: Share of requests with several changes in which one change must be refused.
_REFUSED = 1 / 6
#: Share of worlds in which a session with another AS is prepared and can be set up. Share of
#: additional changes that look like changes that must be refused. Without them, the form of a
#: request would reveal that it must be refused.
_SPARE, _ALIKE = 0.2, 0.4
#: Share of worlds that first get one of ``_SETTINGS``, which a request can undo.
_SET = 0.5
_SETTINGS = (("path_mtu", "lower"), ("static_routes", "to_static"), ("announcement", "prefix"))
#: Rules whose violation means that documented traffic is lost.
_TRAFFIC = frozenset({"pair_broken", "service_broken"})
#: Changes that interrupt a link or a session, at least for some time.
_ON_LINK = (
    ("link_out", "remove"),
    ("ospf_key", "rotate"),
    ("ospf_authentication", "link"),
    ("ospf_authentication", "remove"),
    ("renumber", "link"),
)
_ON_SESSION = (("neighbour_remove", "remove"), ("neighbour_remove", "shut_down"))
#: Kinds and methods of changes that look like changes that must be refused.
_REFUSABLE = (
    *(("link_out", "remove"), ("renumber", "link"), ("neighbour_add", "set_up")),
    *(("neighbour_remove", "remove"), ("neighbour_remove", "shut_down")),
    *(("service_filter", "close"), ("zone_filter", "close")),
)


class NoRequestError(Exception):
    """Raised if no drawn world has a request with the required properties."""


class Request(NamedTuple):
    """A requested change with its kind and method.

    ``because`` is the word for the reason to refuse the change, or "" if the change must be made.
    """

    kind: str
    method: str
    change: Change
    because: str = ""


class Latent(NamedTuple):
    """A fault that has no effect on today's network, with its kind and method."""

    kind: str
    method: str
    change: Change


class Draft(NamedTuple):
    """Today's documented world, the latent faults, and the requests in the order of the prompt."""

    world: World
    faults: tuple[Latent, ...]
    requests: tuple[Request, ...]

    @property
    def stages(self) -> Stages:
        """The worlds between today's network and the target."""
        return stages_of(self.world, self.faults, self.requests)


def stages_of(
    world: World,
    faults: Iterable[Latent],
    requests: Iterable[Request],
    computed: Computed | None = None,
) -> Stages:
    """Return the stages of a request. Changes that must be refused are left out."""
    made = [one.change for one in requests if not one.because]
    return Stages(world, [one.change for one in faults], made, computed)


def draw(rng: random.Random, number: int, routers: int | None = None) -> Draft:
    """Return a random request of ``number`` changes; raise NoRequestError if none is found.

    The target can be documented, and in at least one order of the changes, no step does harm.
    """
    several = number > 1
    is_ordered = several and rng.random() < _ORDERED
    number_of_faults = (rng.random() < _FAULTY) * (1 + (rng.random() < _TWICE))
    because = rng.choice(sorted(REFUSED)) if several and rng.random() < _REFUSED else ""
    for _ in range(WORLDS):
        try:
            world = draw_world(rng, routers, contingent=True)
        except RuntimeError:
            continue
        for _ in range(_PLANS):
            room = _draw_in(world, number - bool(because), rng, because, is_ordered=is_ordered)
            if room is None or not room.add_contingencies(rng):
                continue
            if not room.add_latent(number_of_faults, rng):
                continue
            if because and not room.add_refused(because, rng):
                continue
            found = room.finish(rng)
            if found is not None:
                return found
    raise NoRequestError(f"no request of {number} changes in {WORLDS} worlds")


def _draw_in(
    world: World, number: int, rng: random.Random, because: str, *, is_ordered: bool
) -> _Room | None:
    """Return a room with ``number`` changes that do no harm in the order of ``made``, or None.

    ``because`` is the reason to refuse an additional change, or "". It influences the preparation
    of today's world and the choice of pairs of changes.
    """
    if because == "own_prefix" or rng.random() < _SPARE:
        sessions = options(world, "neighbour_remove", "remove")
        world = rng.choice(sessions).edit(world) if sessions else world
    world = _with_settings(world, rng)
    if is_ordered:
        for tried, (today, first, second) in enumerate(_pairs(world, rng)):
            room = _Room(today)
            # If a request has two changes and one must be refused, only the first change of a pair
            # is made. Otherwise an agent could conclude from a change that adds an alternative path
            # that no change must be refused.
            made = [first, second][:number]
            if room.is_pair(first, second) if number > 1 else room.is_safe(made):
                room.made = made
                return room if room.fill(number, rng, is_ordered=number > 1) else None
            if tried >= _PAIRS:
                return None
        return None
    room = _Room(_prepared(world, rng))
    if room.today is None:
        return None
    return room if room.fill(number, rng, is_ordered=False) else None


def _prepared(world: World, rng: random.Random) -> World:
    """Return the world with one or two changes that a request can undo.

    Changes that are not possible in the world are skipped.
    """
    setups = (
        ("link_out", "drain"),
        ("link_out", "remove"),
        ("router_out", "drain"),
        ("neighbour_remove", "remove"),
        ("neighbour_remove", "shut_down"),
        ("zone_filter", "close"),
        ("service_filter", "close"),
        *_SETTINGS,
    )
    for kind, method in rng.sample(setups, rng.randint(1, 2)):
        found = options(world, kind, method)
        if found:
            world = rng.choice(found).edit(world)
    return world


def _with_settings(world: World, rng: random.Random) -> World:
    """Return the world with one zone closed to another zone, and often with another change that a
    request can undo.

    Changes after which the world cannot be documented are skipped.
    """
    names = [("zone_filter", "close")]
    if rng.random() < _SET:
        names.append(rng.choice(_SETTINGS))
    for name in names:
        found = options(world, *name)
        changed = rng.choice(found).edit(world) if found else world
        world = world if documentable(changed) is None else changed
    return world


def _pairs(world: World, rng: random.Random) -> Iterator[tuple[World, Request, Request]]:
    """Yield a world and two requests. The second change probably does harm unless the first change
    is made first."""
    kinds = (_pairs_by_link, _pairs_by_session, _pairs_by_exit, _pairs_by_mtu)
    (pairs,) = rng.choices(kinds, (0.55, 0.1, 0.2, 0.15))
    return pairs(world, rng)


def _pairs_by_exit(world: World, rng: random.Random) -> Iterator[tuple[World, Request, Request]]:
    """Yield a world, a request that interrupts an iBGP session, and a request that moves traffic to
    a router at one end of that session.

    Before the traffic moves, it leaves through several border routers. The router at the other end
    can then use another exit while the session is down.
    """
    if documentable(world) is None:
        return
    interrupted = [
        Request("bgp_password", method, one)
        for method in ("add", "rotate", "remove")
        for one in options(world, "bgp_password", method)
    ]
    moved = [
        Request("exit", method, one)
        for method in ("prefer", "swap")
        for one in options(world, "exit", method)
    ]
    for second in rng.sample(moved, len(moved)):
        found = [one for one in interrupted if second.change.machines & one.change.machines]
        if found:
            yield world, _one(found, rng), second


def _pairs_by_mtu(world: World, rng: random.Random) -> Iterator[tuple[World, Request, Request]]:
    """Yield a world with a small MTU on one link, a request to raise it, and a change of costs.

    The change of costs moves full-size packets to the link.
    """
    lowered = [*options(world, "path_mtu", "lower")]
    for lower in rng.sample(lowered, len(lowered)):
        today = lower.edit(world)
        (first,) = (one for one in options(today, "path_mtu", "raise") if one.key == lower.key)
        facts = documentable(today)
        if facts is None:
            continue
        moved = [
            Request("costs", "one", one)
            for one in options(today, "costs", "one")
            if not one.holds & first.holds and _narrows(facts, predicted(one.edit(today)))
        ]
        if moved:
            yield today, Request("path_mtu", "raise", first), rng.choice(moved)


def _narrows(before: Facts, after: Facts | None) -> bool:
    """Return whether a full-size ping worked before and fails now, although the small ping works
    now."""
    return after is not None and any(before.get(fact) == WORKS for fact in only_small(after))


def _pairs_by_link(world: World, rng: random.Random) -> Iterator[tuple[World, Request, Request]]:
    """Yield a world without one link, a request to add that link, and a change that interrupts
    another link.

    The other link is the only path between some routers until the first link is in service.
    """
    before = bridges(inner_links(world))
    outs = [*options(world, "link_out", "remove")]
    for out in rng.sample(outs, len(outs)):
        today = out.edit(world)
        needed = bridges(inner_links(today)) - before
        if frozenset(out.machines) in before or not needed:
            continue
        back = next((one for one in options(today, "link_back", "add") if one.key == out.key), None)
        if back is None or documentable(today) is None:
            continue
        links = {
            name_of(ends): frozenset(end.router for end in ends) for ends in running_links(today)
        }
        found = [
            Request(kind, method, one)
            for kind, method in _ON_LINK
            for one in options(today, kind, method)
            if links.get(one.key) in needed
        ]
        if found:
            yield today, Request("link_back", "add", back), _one(found, rng)


def _pairs_by_session(world: World, rng: random.Random) -> Iterator[tuple[World, Request, Request]]:
    """Yield a world without one session, a request to add it, and a request to end another session.

    The two sessions are our only sessions with their AS.
    """
    systems = {f"{router.name} {peer.address}": peer.asn for router, peer in outer_peers(world)}
    outs = [
        (Request(kind, method, one), start)
        for kind, method, start in (
            ("neighbour_remove", "remove", "set_up"),
            ("neighbour_remove", "shut_down", "start"),
        )
        for one in options(world, kind, method)
    ]
    for out, start in rng.sample(outs, len(outs)):
        key = out.change.key
        others = {one for one, asn in systems.items() if asn == systems[key] and one != key}
        today = out.change.edit(world)
        back = next((one for one in options(today, "neighbour_add", start) if one.key == key), None)
        if len(others) != 1 or back is None or documentable(today) is None:
            continue
        found = [
            Request(kind, method, one)
            for kind, method in _ON_SESSION
            for one in options(today, kind, method)
            if one.key in others
        ]
        if found:
            yield today, Request("neighbour_add", start, back), _one(found, rng)


def _shuffled(requests: Sequence[Request], rng: random.Random) -> list[Request]:
    """Return requests in random order; each kind and method is equally likely to come first."""
    names = sorted({(one.kind, one.method) for one in requests})
    rank = {name: place for place, name in enumerate(rng.sample(names, len(names)))}
    found = rng.sample(requests, len(requests))
    return sorted(found, key=lambda one: rank[one.kind, one.method])


def _one(requests: Sequence[Request], rng: random.Random) -> Request:
    """Return a random request; each kind and method is equally likely."""
    kind, method = rng.choice(sorted({(one.kind, one.method) for one in requests}))
    return rng.choice([one for one in requests if (one.kind, one.method) == (kind, method)])


class _Room:
    """The requests that are drawn for one world, with cached facts of the worlds between their
    steps."""

    def __init__(self, world: World) -> None:
        self.world = world
        #: The changes to make, in an order that does no harm.
        self.made: list[Request] = []
        self.faults: list[Latent] = []
        self.refused: list[Request] = []
        self._is_ordered = False
        self._options: dict[tuple[str, str], tuple[Change, ...]] = {}
        self._computed: Computed = {}

    @property
    def today(self) -> Facts | None:
        """The facts that are documented today, or None if the world cannot be documented."""
        return documentable(self.world)

    def _find(self, kind: str, method: str) -> tuple[Change, ...]:
        if (kind, method) not in self._options:
            self._options[kind, method] = options(self.world, kind, method)
        return self._options[kind, method]

    def stages(self, made: Sequence[Request]) -> Stages:
        """Return the stages of these requests and of the room's latent faults."""
        return stages_of(self.world, self.faults, made, self._computed)

    def is_safe(self, made: Sequence[Request]) -> bool:
        """Return whether no step does harm if the faults are repaired and the changes are then made
        in order."""
        stages = self.stages(made)
        return stages.is_safe(range(len(stages.parts)))

    def is_pair(self, first: Request, second: Request) -> bool:
        """Return whether the second change does harm before the first change, but not after it."""
        if first.change.holds & second.change.holds:
            return False
        # Both orders are compared with the same target, which contains both changes. Otherwise,
        # loss that the second change causes would count as documented.
        stages, number = self.stages([first, second]), len(first.change.machines)
        order = stages.straightforward()
        return stages.is_safe(order) and stages.does_harm([*order[number:], *order[:number]])

    def fill(self, number: int, rng: random.Random, *, is_ordered: bool) -> bool:
        """Add random changes until there are ``number`` changes; return False if not enough are
        found."""
        self._is_ordered = is_ordered
        if number - len(self.made) >= 2 and rng.random() < _EXPOSED:
            self._add(self._draw_exposed(rng))
        for _ in range(_OTHERS):
            if len(self.made) >= number:
                break
            one = self._draw_one(rng)
            self._add([one] if one is not None else [])
        return len(self.made) == number

    def _add(self, found: Sequence[Request]) -> None:
        """Add changes to the end of ``made`` if no step then does harm."""
        parts = self._parts + sum(len(one.change.machines) for one in found)
        if parts <= _MOST_PARTS and self.is_safe([*self.made, *found]):
            self.made += found

    def _draw_exposed(self, rng: random.Random) -> list[Request]:
        """Return a change that closes a service and a change that opens a zone, or an empty list.

        A host in the zone offers the service. In the reverse order, a step would make the service
        accessible to hosts that must not use it.
        """
        made: list[list[Request]] = [
            [
                Request(kind, method, one)
                for one in self._find(kind, method)
                if kind not in self._kinds and not self._held & one.holds
            ]
            for kind, method in (("service_filter", "close"), ("zone_filter", "open"))
        ]
        pairs = [[closed, opened] for closed in made[0] for opened in made[1]]
        for pair in rng.sample(pairs, min(len(pairs), _PAIRS)):
            if self.is_pair(*pair):
                return pair
        return []

    def _draw_one(self, rng: random.Random) -> Request | None:
        names = [(kind, one.name) for kind, some in KINDS.items() for one in some]
        if rng.random() < _ALIKE:
            names = [name for name in names if name in _REFUSABLE]
        # Each kind is used at most once, and all unused kinds are equally likely.
        kinds = {kind for kind, _ in names} - self._kinds
        if not kinds:
            return None
        kind = rng.choice(sorted(kinds))
        method = rng.choice([one for other, one in names if other == kind])
        free = [one for one in self._find(kind, method) if not self._held & one.holds]
        if not free:
            return None
        change = rng.choice(free)
        is_kept = kind != "service_move" or self._keeps_names(change)
        return Request(kind, method, change) if is_kept else None

    def _keeps_names(self, change: Change) -> bool:
        """Return whether all hosts that use a service by its name today can still use it after the
        change."""
        then, names = predicted(change.edit(self.world)), {one.name for one in self.world.offers}
        return then is not None and all(
            then.get(fact) == WORKS
            for fact, value in (self.today or {}).items()
            if fact.sort == "service" and value == WORKS and fact.target.split()[1] in names
        )

    @property
    def _kinds(self) -> set[str]:
        return {one.kind for one in self.made}

    @property
    def _parts(self) -> int:
        return sum(len(one.change.machines) for one in self.made)

    @property
    def _held(self) -> set[str]:
        """The settings that no additional change or fault may affect."""
        changes = [one.change for one in (*self.made, *self.refused)]
        changes += [one.change for one in self.faults]
        return {setting for change in changes for setting in change.holds}

    def add_contingencies(self, rng: random.Random) -> bool:
        """Draw the target's contingencies; return whether suitable contingencies were found.

        In the target, full-size pings may fail only if small pings fail too, unless a request
        lowers an MTU.
        """
        target, today = self.stages(self.made).at(()), self.today
        wanted = documentable(target)
        is_lowered = any((one.kind, one.method) == ("path_mtu", "lower") for one in self.made)
        if today is None or (not is_lowered and _narrows(today, wanted)):
            return False
        found = None if wanted is None else with_contingencies(target, wanted, rng)
        if found is None:
            return False
        drawn = ("contingencies", "only_saved_survives")
        self.world = self.world.model_copy(update={name: getattr(found, name) for name in drawn})
        return True

    def add_latent(self, number: int, rng: random.Random) -> bool:
        """Add up to ``number`` latent faults; return whether any was found or ``number`` is 0.

        A latent fault changes no fact of today, but changes facts of the target or of one of its
        contingencies. If a fault has several parts, each single part changes facts too. Faults are
        drawn for the target, because some settings that carry traffic later exist only there.
        """
        for _ in range(number):
            is_lasting = rng.random() < _LASTING
            found = (self._add_latent(rng, is_lasting=one) for one in (is_lasting, not is_lasting))
            if not any(found):
                break
        return not number or bool(self.faults)

    def _add_latent(self, rng: random.Random, *, is_lasting: bool) -> bool:
        stages = self.stages(self.made)
        target, today, wanted = stages.at(()), stages.today, stages.target
        if today is None or wanted is None:
            return False
        if is_lasting:
            found, shows = _spread(lasting(target), rng), self._shows_later(target, wanted)
        else:
            near = _only_in_target(self.world, target, today, wanted)
            found, shows = _spread(candidates(self.world, target, near), rng), self._shows(wanted)
            if rng.random() < _AWAY:
                edited = {name for one in self.made for name in one.change.machines}
                found.sort(key=lambda one: one[2].machine in edited)
        known = {one.kind for one in self.faults}
        for kind, method, change in found[: _LATER if is_lasting else _MOVED]:
            if kind in known or self._held & change.holds:
                continue
            now = facts_with(self.world, change)
            if now is None or misfits(today, now) or not shows(change):
                continue
            before = self.faults
            self.faults = [*before, Latent(kind, method, change)]
            if self._is_known() and self.is_safe(self.made):
                return True
            self.faults = before
        return False

    def _shows(self, wanted: Facts) -> Callable[[Change], bool]:
        """Return a function that checks whether a fault makes the target's facts differ from
        ``wanted``.

        If the fault has several parts, each single part must do so too.
        """

        def shows(change: Change) -> bool:
            stages = stages_of(self.world, [Latent("", "", change)], self.made, self._computed)
            parts = [stages.of_faults, *({part} for part in stages.of_faults)]
            left = [stages.facts(some) for some in parts]
            return all(now is not None and misfits(wanted, now) for now in left)

        return shows

    def _shows_later(self, target: World, wanted: Facts) -> Callable[[Change], bool]:
        """Return a function that checks whether a fault takes effect only in contingencies of the
        target."""
        room = Room(target, wanted)

        def shows(change: Change) -> bool:
            room.changes = [change]
            return not change.parts and room.is_latent(0)

        return shows

    def _is_known(self) -> bool:
        """Return whether the facts with all faults are independent of ties, today and in the
        target."""
        stages = self.stages(self.made)
        return all(stages.facts(left) is not None for left in (stages.every, stages.of_faults))

    def add_refused(self, because: str, rng: random.Random) -> bool:
        """Add a change that must be refused for this reason; return whether one was found.

        The change ends documented traffic in the target, or it contradicts the documentation.
        """
        stages = self.stages(self.made)
        target = stages.at(())
        found = [
            Request(kind, method, change, because)
            for kind, method, change in REFUSED[because](self.world, target)
            if kind not in self._kinds and not self._held & change.holds
        ]
        for one in _shuffled(found, rng):
            if because in {"no_redundancy", "documented_service"}:
                then = predicted(one.change.edit(target))
                if not _ends_traffic(because, stages, then):
                    continue
            self.refused = [one]
            return True
        return False

    def finish(self, rng: random.Random) -> Draft | None:
        """Return the finished draft, including the pairs to probe, or None if no order of the
        changes is suitable."""
        ordered = self._arrange(rng)
        if ordered is None:
            return None
        requests = [*ordered]
        for one in self.refused:
            requests.insert(rng.randrange(len(requests) + 1), one)
        stages = self.stages(self.made)
        today, wanted = stages.today or {}, stages.target or {}
        # Pairs whose traffic works both today and in the target. It must therefore work during all
        # changes.
        pairs = [
            (fact.source, fact.target)
            for fact, value in wanted.items()
            if fact.sort == "ping" and value == WORKS and today.get(fact) == WORKS
        ]
        probed = tuple(rng.sample(pairs, min(_PROBED, len(pairs))))
        world = self.world.model_copy(update={"probed": probed})
        return Draft(world, tuple(self.faults), tuple(map(self._told, requests)))

    def _arrange(self, rng: random.Random) -> list[Request] | None:
        """Return the changes in a random order for the prompt, or None if no order is suitable.

        At least one order of the parts must be safe. If the order matters, documented traffic must
        be lost in several orders: the order of the prompt, the order of the machines' names, and
        most random orders of the machines.
        """
        orders = [rng.sample(self.made, len(self.made)) for _ in range(6)]
        if not self._is_ordered:
            return orders[0] if self._has_safe_order(orders[0]) else None
        for order in [*orders, self.made[::-1]]:
            stages = self.stages(order)
            if not _loses(stages, _one_by_one(stages, stages.straightforward())):
                continue
            if not _loses(stages, _one_by_one(stages, stages.by_machine())):
                return None
            machines = sorted({part.machine for part in stages.parts})
            tried = [rng.sample(machines, len(machines)) for _ in range(_TRIED)]
            lost = [_loses(stages, _by_machines(stages, some)) for some in (machines, *tried)]
            is_hard = lost[0] and sum(lost[1:]) >= _HARMFUL
            return order if is_hard and self._has_safe_order(order) else None
        return None

    def _has_safe_order(self, made: Sequence[Request]) -> bool:
        """Return whether the search of ``Stages`` finds a safe order."""
        return next(self.stages(made).safe_orders(), None) is not None

    def _told(self, one: Request) -> Request:
        if (one.kind, one.method) != ("neighbour_add", "set_up") or one.because == "own_prefix":
            return one
        words = announcing(one.change.words, announced(self.world, one.change))
        return one._replace(change=replace(one.change, words=words))


def _one_by_one(stages: Stages, order: Sequence[int]) -> list[Left]:
    """Return the parts that each turn makes: all repairs of faults in the first turn, then one part
    per turn."""
    return [stages.of_faults, *(frozenset({part}) for part in order)]


def _by_machines(stages: Stages, machines: Sequence[str]) -> list[Left]:
    """Return the parts that each turn makes: all parts on one machine, including
    repairs of faults."""
    return [
        frozenset(place for place, part in enumerate(stages.parts) if part.machine == machine)
        for machine in machines
    ]


def _loses(stages: Stages, turns: Sequence[Left]) -> bool:
    """Return whether documented traffic is lost if the turns are made in this order.

    Steps whose facts depend on a tie do not count.
    """
    left = stages.every
    for turn in turns:
        harm = stages.harms(left, left - turn) if turn else []
        if any(rule in _TRAFFIC for rule, _ in harm or ()):
            return True
        left -= turn
    return False


def _ends_traffic(because: str, stages: Stages, then: Facts | None) -> bool:
    """Return whether ``then`` lacks traffic that is documented both today and for the target."""
    today, wanted = stages.today, stages.target
    if then is None or today is None or wanted is None:
        return False
    return any(
        today.get(fact) == wanted.get(fact) == WORKS
        and (because == "no_redundancy" or fact.sort == "service")
        for fact in misfits(wanted, then)
    )


def _only_in_target(today: World, target: World, before: Facts, after: Facts) -> set[str]:
    """Return the ports, peers and route maps that carry documented traffic only in the target."""
    links = _crossed(target, after) - _crossed(today, before)
    links |= inner_links(target) - inner_links(today)
    ports = {
        port
        for link in target.links
        if frozenset((link.one[0], link.other[0])) in links
        for _, port in (link.one, link.other)
    }
    sessions = {fact for fact in after if fact.sort == "session" and fact not in before}
    exits = {
        frozenset(way)
        for way in _crossed(target, after) - _crossed(today, before)
        if not way <= target.names
    } | {frozenset((fact.source, fact.target)) for fact in sessions}
    peers = {
        word
        for router in target.routers
        for peer in router.bgp.peers
        if frozenset((router.name, peer.description)) in exits
        for word in (peer.address, peer.route_map_in, peer.route_map_out)
        if word
    }
    return ports | peers


def _crossed(world: World, facts: Facts) -> set[frozenset[str]]:
    """Return the pairs of adjacent machines on documented paths, and the pairs of a host and its
    router."""
    gate = {host.name: world.far[host.name, host.port.name][0] for host in world.hosts}
    found = set()
    for fact, value in facts.items():
        if fact.sort == "way":
            crossed = [fact.source, *value.split(), fact.target]
            found |= {frozenset(pair) for pair in pairwise(crossed)}
    return found | {frozenset(pair) for pair in gate.items()}


def _spread(
    found: Sequence[tuple[str, str, Change]], rng: random.Random
) -> list[tuple[str, str, Change]]:
    """Return the faults in random order, arranged so that each kind occurs once before any kind
    occurs again."""
    by_kind: dict[str, list[tuple[str, str, Change]]] = {}
    for one in rng.sample(found, len(found)):
        by_kind.setdefault(one[0], []).append(one)
    rounds = zip_longest(*(by_kind[kind] for kind in rng.sample(sorted(by_kind), len(by_kind))))
    return [one for some in rounds for one in some if one is not None]


def facts_with(world: World, fault: Change) -> Facts | None:
    """Return a world's facts with a fault, or None if they depend on a tie or the fault is
    impossible."""
    try:
        edited = fault.edit(world)
    except MissingSettingError:  # the settings exist only in the target
        return None
    return predicted(edited, tested=world)


def documentable(world: World) -> Facts | None:
    """Return the facts of a world if the documentation can describe them, else None."""
    tables = settle(world, anyhow=True)
    if tables.doubtful:
        return None
    seen = expected(world, tables, Follower(world, tables.fib))
    return facts_of(world, seen) if is_documentable(world, seen) else None
