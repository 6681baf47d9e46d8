"""Pictures of a backbone: a matrix for each kind of test, a list of paths, and the topology.

A change request also has pictures of the paths that a step moved, and of the time with packet loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from netarena.sdk import (
    Change,
    Difference,
    Episode,
    Link,
    Mark,
    Matrix,
    Node,
    Picture,
    Step,
    Topology,
)
from netarena_backbone.query import Case
from netarena_backbone.state import FAILS, Fact, Facts, Sort, facts_of, misfits, read
from netarena_backbone.trial import failed
from netarena_backbone.world.contingency import during
from netarena_backbone.world.model import World


class _Table(NamedTuple):
    title: str
    sort: Sort


_TABLES = (
    _Table("Pings between machines", "ping"),
    _Table("Pings of full size", "full"),
    _Table("Access to services", "service"),
    _Table("Announcements to other autonomous systems", "route"),
    _Table("OSPF adjacencies", "adjacency"),
    _Table("BGP sessions", "session"),
)
#: Ranks of nodes: other ASes' routers, our routers, hosts.
_OUTSIDE, _OURS, _HOSTS = range(3)


def draw(case: Case, episode: Episode, number: int) -> tuple[Picture, ...]:
    """Draw the pictures after step ``number``; 0 is the initial state.

    The last step also has pictures of the contingency that the network does not withstand.
    """
    states = [episode.initial_state, *(step.state for step in episode.steps)]
    state, is_last = states[number], number == len(episode.steps)
    pictures: tuple[Picture, ...] = ()
    if state is not None:
        now = facts_of(case.world, read(state))
        pictures = _draw(case.world, _documented(case, now, is_last=is_last), now)
        before = [one for one in states[:number] if one is not None]
        if case.plan is not None and before:
            then = facts_of(case.world, read(before[-1]))
            pictures += (*_moved(case, then, now), *_traffic(case.world, then, now))
        pictures += (*_loss(case.world, episode.steps[:number]),)
    if is_last and episode.trials is not None and (found := failed(case, episode.trials)):
        world = case.goal if found.restored else during(case.goal, found.contingency)
        pictures += _draw(world, found.wanted, found.now, f" ({found.name})")
    return pictures


def _documented(case: Case, now: Facts, *, is_last: bool) -> Facts:
    """Return the documented facts with which a state is compared.

    Before the last step of a change request, a fact that still has its documented value from before
    the change is compared with that value. Every other fact is compared with its documented value
    after the change.
    """
    if case.plan is None or is_last:
        return case.wanted
    today, found = case.of_today.wanted, dict(case.wanted)
    for fact in dict.fromkeys((*today, *case.wanted)):
        if now.get(fact) == today.get(fact):
            found.pop(fact, None)
            if fact in today:
                found[fact] = today[fact]
    return found


def _moved(case: Case, before: Facts, now: Facts) -> Iterator[Difference]:
    """Yield a picture of the documented paths that a step of a change request changed.

    Yields no picture if the step changed none of these paths.
    """
    changes = tuple(
        Change(
            element=str(fact),
            before=before.get(fact),
            after=now.get(fact),
            right=now.get(fact) in {value, case.of_today.wanted.get(fact)},
        )
        for fact, value in case.wanted.items()
        if fact.sort == "way" and before.get(fact) != now.get(fact)
    )
    if changes:
        yield Difference(title="Paths before and after this step", changes=changes, prominent=True)


def _traffic(world: World, before: Facts, now: Facts) -> Iterator[Topology]:
    """Yield a picture of the network that marks links that lost or gained traffic.

    Yields no picture if the traffic uses the same links as before.
    """
    left: dict[frozenset[str], list[str]] = {}
    taken: dict[frozenset[str], list[str]] = {}
    for fact in dict.fromkeys((*before, *now)):
        old, new = (_crossed(fact, facts) for facts in (before, now))
        for found, links in ((left, old - new), (taken, new - old)):
            for link in links:
                found.setdefault(link, []).append(f"{fact.source} -> {fact.target}")
    if left or taken:
        yield Topology(
            title="Traffic that this step moved",
            nodes=(*_nodes(world),),
            links=tuple(
                Link(
                    ends=link.ends,
                    label=link.label,
                    before=tuple(left.get(frozenset(link.ends), ())),
                    after=tuple(taken.get(frozenset(link.ends), ())),
                )
                for link in _links(world)
            ),
        )


def _crossed(fact: Fact, facts: Facts) -> set[frozenset[str]]:
    """Return the links on the path of a pair, each as the names of its two machines."""
    if fact.sort != "way" or fact not in facts:
        return set()
    return {*map(frozenset, pairwise((fact.source, *facts[fact].split(), fact.target)))}


def _loss(world: World, steps: Sequence[Step]) -> Iterator[Difference]:
    """Yield a picture of each pair's time with packet loss in the last of ``steps``, in seconds.

    Yields no picture if packet loss was not measured.
    """
    seen = [
        read(step.state).lost_s if step.executed and step.state is not None else ()
        for step in steps
    ]
    if not seen or not seen[-1]:
        return
    totals = [*map(sum, zip(*filter(None, seen), strict=True))]
    rows = [
        (f"{source} -> {target}", lost_s, total_s)
        for (source, target), lost_s, total_s in zip(world.probed, seen[-1], totals, strict=True)
    ]
    rows.append(("all pairs", sum(seen[-1]), sum(totals)))
    yield Difference(
        title="Seconds of loss",
        titles=("in this step", "in total"),
        prominent=any(seen[-1]),
        changes=tuple(
            Change(element=name, before=f"{lost_s:.2f}", after=f"{total_s:.2f}")
            for name, lost_s, total_s in rows
        ),
    )


def _draw(world: World, wanted: Facts, now: Facts, when: str = "") -> tuple[Picture, ...]:
    """Return the pictures of one state; ``when`` is appended to their titles."""
    wrong = misfits(wanted, now)
    drawn: tuple[Picture, ...] = (
        *(_matrix(table, wanted, now) for table in _TABLES),
        _ways(wanted, now, wrong),
        _topology(world, wanted, now, wrong),
    )
    if not when:
        return drawn
    return tuple(one.model_copy(update={"title": f"{one.title}{when}"}) for one in drawn)


def _matrix(table: _Table, wanted: Facts, now: Facts) -> Matrix:
    """Return the matrix of one kind of facts.

    The rows and columns cover both intended and current facts, so that leaked routes also appear.
    """
    marks = {
        _place(fact): _mark(wanted, now, fact)
        for fact in dict.fromkeys((*wanted, *now))
        if fact.sort == table.sort
    }
    rows = tuple(dict.fromkeys(row for row, _ in marks))
    columns = tuple(dict.fromkeys(column for _, column in marks))
    if {*rows} == {*columns}:
        columns = rows
    cells = tuple(tuple(marks.get((row, column), Mark.NONE) for column in columns) for row in rows)
    return Matrix(title=table.title, rows=rows, columns=columns, cells=cells)


def _place(fact: Fact) -> tuple[str, str]:
    """Return the row and column of a fact; the row of a route combines the receiver
    and the sender."""
    if fact.sort != "route":
        return fact.source, fact.target
    prefix, _, peer = fact.target.partition(" from ")
    return f"{fact.source} from {peer}", prefix


def _mark(wanted: Facts, now: Facts, fact: Fact) -> Mark:
    """Return the mark of a fact in a matrix.

    A test that is intended to fail has a mark even if it fails as intended. An unintended route
    that does not exist has no mark.
    """
    value, seen = wanted.get(fact), now.get(fact)
    if value == seen:
        return {FAILS: Mark.APART, None: Mark.NONE}.get(value, Mark.WORKS)
    return Mark.EXPOSED if value in {FAILS, None} else Mark.BROKEN


def _ways(wanted: Facts, now: Facts, wrong: Sequence[Fact]) -> Difference:
    """Return the documented pairs whose traffic takes a different path than intended."""
    return Difference(
        title="Paths that differ from the documentation",
        titles=("documented", "observed"),
        changes=tuple(
            Change(element=str(fact), before=wanted[fact], after=now[fact], right=False)
            for fact in wrong
            if fact.sort == "way"
        ),
    )


def _topology(world: World, wanted: Facts, now: Facts, wrong: Sequence[Fact]) -> Topology:
    return Topology(
        title="Network",
        nodes=(*_nodes(world),),
        links=(*_links(world),),
        pairs=tuple(
            (fact.source, fact.target, _mark(wanted, now, fact))
            for fact in wrong
            if fact.sort == "ping"
        ),
    )


def _links(world: World) -> Iterator[Link]:
    hosts = {host.name: host.port.address for host in world.hosts}
    for link in world.links:
        yield Link(ends=(link.one[0], link.other[0]), label=hosts.get(link.other[0], ""))


def _nodes(world: World) -> Iterator[Node]:
    kinds: Mapping[str, str] = {one.router: f"{one.kind}, AS {one.asn}" for one in world.outsiders}
    for router in world.outside:
        yield Node(name=router.name, role=kinds.get(router.name, "outside"), rank=_OUTSIDE)
    for router in world.routers:
        role = "firewall router" if router.name == world.firewall else "router"
        yield Node(name=router.name, role=role, rank=_OURS)
    for host in world.hosts:
        yield Node(name=host.name, role=f"host of {host.zone}", rank=_HOSTS)
