"""Pictures of a backbone's states."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import pytest
from backbone_requests import load, plan_of

from netarena.model import Episode, JsonValue, Step
from netarena.task.picture import Difference, Mark, Matrix, Picture, Topology
from netarena_backbone.picture import draw
from netarena_backbone.query import Case, case_of
from netarena_backbone.world.contingency import during
from netarena_backbone.world.intent import expected
from netarena_backbone.world.lab_spec import Heard, Observation
from netarena_backbone.world.model import World


def _drawn(
    world: World, seen: Observation, trials: JsonValue = None
) -> dict[str, Matrix | Topology | Difference]:
    state = seen.model_dump(mode="json")
    episode = cast(
        "Episode", type("E", (), {"initial_state": state, "steps": (), "trials": trials})
    )
    return {one.title: one for one in draw(Case(world), episode, 0)}


def _wrong(matrix: Matrix) -> list[tuple[str, str, Mark]]:
    return [
        (row, column, mark)
        for row, cells in zip(matrix.rows, matrix.cells, strict=True)
        for column, mark in zip(matrix.columns, cells, strict=True)
        if mark.wrong
    ]


def test_picture_of_the_intended_state_has_all_machines_and_no_errors(world: World) -> None:
    drawn = _drawn(world, expected(world))
    matrices = [one for one in drawn.values() if isinstance(one, Matrix)]
    assert len(matrices) == 6
    assert not [_wrong(one) for one in matrices if _wrong(one)]
    assert all(one.rows and one.columns for one in matrices)
    network = cast("Topology", drawn["Network"])
    assert {node.name for node in network.nodes} == {*world.machines}
    assert {end for link in network.links for end in link.ends} <= {*world.machines}
    assert not network.pairs
    assert not cast("Difference", drawn["Paths that differ from the documentation"]).changes


@pytest.mark.parametrize("which", range(5))
def test_errors_are_drawn_in_their_matrix(world: World, which: int) -> None:
    healthy = expected(world)
    names = [name for name, _ in world.endpoints]
    one, other = world.ways[0]
    i, j = names.index(one), names.index(other)
    cut = tuple(
        f"{row[:j]}{1 - int(row[j])}{row[j + 1 :]}" if place == i else row
        for place, row in enumerate(healthy.small)
    )
    leaked = (Heard("203.0.113.0/24", "64512", "192.0.2.1", "192.0.2.1", used=True),)
    told = healthy.heard[0][0]
    change, title, shown = (
        ({"small": cut}, "Pings between machines", (one, other, Mark.BROKEN)),
        (
            {"heard": ((*healthy.heard[0], *leaked), *healthy.heard[1:])},
            "Announcements to other autonomous systems",
            (f"{world.outside[0].name} from 192.0.2.1", "203.0.113.0/24", Mark.EXPOSED),
        ),
        (
            {"heard": (healthy.heard[0][1:], *healthy.heard[1:])},
            "Announcements to other autonomous systems",
            (f"{world.outside[0].name} from {told.peer}", told.prefix, Mark.BROKEN),
        ),
        # pairs whose small packets fail are also marked at full size, although they count once
        (
            {"small": cut, "full": cut},
            "Pings of full size",
            (one, other, Mark.BROKEN),
        ),
        (
            {"ways": (("nowhere",), *healthy.ways[1:])},
            "Paths that differ from the documentation",
            None,
        ),
    )[which]
    drawn = _drawn(world, healthy.model_copy(update=change))
    found = drawn[title]
    if isinstance(found, Matrix):
        assert _wrong(found) == [shown]
    else:
        (turned,) = cast("Difference", found).changes
        assert (turned.element, turned.after) == (f"path {one} -> {other}", "nowhere")
    pairs = cast("Topology", drawn["Network"]).pairs
    assert pairs == (((one, other, Mark.BROKEN),) if which in {0, 3} else ())


def test_pictures_of_the_last_step_include_the_failed_contingency(contingent: World) -> None:
    case = Case(contingent)
    one = case.contingencies[0]
    less = during(contingent, one)
    deaf = expected(less).model_copy(update={"neighbours": ()}).model_dump(mode="json")
    trials: JsonValue = [{"name": one.name, "state": deaf, "restored": None}]
    drawn = _drawn(contingent, expected(contingent), trials)
    sessions, then = drawn["BGP sessions"], drawn[f"BGP sessions ({one.name})"]
    assert isinstance(sessions, Matrix)
    assert isinstance(then, Matrix)
    assert not _wrong(sessions)
    assert _wrong(then)
    network = drawn[f"Network ({one.name})"]
    assert isinstance(network, Topology)
    assert one.cable is not None
    assert {*one.cable} not in [{*link.ends} for link in network.links]


def _drawn_step(name: str, states: list[Observation], number: int) -> list[Picture]:
    """Return the pictures of a change request after a step; the first state is the initial one."""
    first, *others = (one.model_dump(mode="json") for one in states)
    steps = [Step(prompt="", executed=True, state=state) for state in others]
    ended = Step(prompt="", state=others[-1])  # a declaration runs no command
    parts = {"initial_state": first, "steps": (*steps, ended), "trials": None}
    episode = cast("Episode", type("E", (), parts))
    return [*draw(case_of(load(name)), episode, number)]


def _titled(pictures: list[Picture], title: str) -> list[Picture]:
    return [one for one in pictures if one.title == title]


def test_step_of_a_change_request_shows_links_that_traffic_left_or_now_uses() -> None:
    plan = plan_of(load("ordered"))
    order = next(plan.stages.safe_orders())
    lefts = [plan.stages.every, *(after for _, after in plan.stages.steps(order))]
    states = [expected(plan.stages.at(left)) for left in lefts]
    marked = 0
    for number, (then, now) in enumerate(pairwise(states), start=1):
        left, taken = set[tuple[frozenset[str], str]](), set[tuple[frozenset[str], str]]()
        for (one, other), old, new in zip(plan.world.ways, then.ways, now.ways, strict=True):
            cables = [{*map(frozenset, pairwise((one, *way, other)))} for way in (old, new)]
            left |= {(cable, f"{one} -> {other}") for cable in cables[0] - cables[1]}
            taken |= {(cable, f"{one} -> {other}") for cable in cables[1] - cables[0]}
        pictures = _drawn_step("ordered", states, number)
        assert bool(_titled(pictures, "Paths before and after this step")) == (
            then.ways != now.ways
        )
        drawn = _titled(pictures, "Traffic that this step moved")
        links = [link for one in drawn if isinstance(one, Topology) for link in one.links]
        assert {(frozenset(link.ends), pair) for link in links for pair in link.before} == left
        assert {(frozenset(link.ends), pair) for link in links for pair in link.after} == taken
        assert bool(drawn) == bool(left or taken)
        marked += bool(drawn)
    assert marked
    assert marked < len(order)  # a step that moves no traffic has no such picture


def test_step_of_a_change_request_shows_seconds_of_loss_per_pair_and_in_total() -> None:
    plan = plan_of(load("ordered"))
    seen, pairs = expected(plan.world), [f"{one} -> {to}" for one, to in plan.world.probed]
    assert len(pairs) == 8
    losses = [(0.0,) * 8, (0.5, 1.25, *(0.0,) * 6), (0.05, *(0.0,) * 7), (0.0,) * 8]
    states = [seen.model_copy(update={"lost_s": lost_s}) for lost_s in losses]
    shown, prominent = [], []
    for number in range(5):
        drawn = _titled(_drawn_step("ordered", states, number), "Seconds of loss")
        found = [one for one in drawn if isinstance(one, Difference)]
        shown.append([(row.element, row.before, row.after) for one in found for row in one.changes])
        prominent += [one.prominent for one in found]
    initial, first, second, third, declared = shown
    assert initial == declared == []
    assert prominent == [True, True, False]
    assert [row[1:] for row in third] == [("0.00", row[2]) for row in second]
    assert [pair for pair, _, _ in first] == [*pairs, "all pairs"]
    assert [row[1:] for row in first[:3]] == [("0.50", "0.50"), ("1.25", "1.25"), ("0.00", "0.00")]
    assert first[-1] == ("all pairs", "1.75", "1.75")
    assert [row[1:] for row in second[:2]] == [("0.05", "0.55"), ("0.00", "1.25")]
    assert second[-1] == ("all pairs", "0.05", "1.80")


def test_loss_picture_is_absent_if_the_loss_is_not_measured() -> None:
    seen = expected(plan_of(load("ordered")).world)
    assert not _titled(_drawn_step("ordered", [seen, seen], 1), "Seconds of loss")
