"""The prompt: intended neighbours, differences from the intended state, and the folder of logs."""

from __future__ import annotations

import pytest

from netarena.sdk import read_text
from netarena_backbone.prompt import document, tell_misfits
from netarena_backbone.query import Case
from netarena_backbone.real.frr import LOGS
from netarena_backbone.state import Fact, Facts
from netarena_backbone.world.intent import expected
from netarena_backbone.world.lab_spec import Neighbour
from netarena_backbone.world.model import World


@pytest.mark.parametrize("name", ["rules", "ticket"])
def test_prompt_names_the_log_directory(name: str) -> None:
    assert f"'log file {LOGS}/" in read_text("netarena_backbone", name)


def test_each_session_is_documented_once(world: World, wanted: Facts) -> None:
    lines = [*document(Case(world))]
    (start,) = (place for place, line in enumerate(lines) if line.startswith("OSPF adjacencies: "))
    told = []
    for line in lines[start + 1 :]:
        if not line.startswith("- "):
            break
        source, _, targets = line.removeprefix("- ").partition(" with ")
        told += [Fact("session", source, target) for target in targets.split(", ")]
    assert told == [fact for fact in wanted if fact.sort == "session"]


@pytest.mark.parametrize(
    ("protocol", "said", "is_lost", "is_new"),
    [
        ("ospf", "the OSPF adjacency", "is missing", "exists, and must not"),
        ("bgp", "the BGP session", "is not established", "is established, and must not be"),
    ],
)
def test_lost_and_new_neighbours_are_reported(
    world: World, wanted: Facts, protocol: str, said: str, is_lost: str, is_new: str
) -> None:
    seen = expected(world)

    def told(kept: tuple[Neighbour, ...], wanted: Facts) -> list[str]:
        state = seen.model_copy(update={"neighbours": kept}).model_dump(mode="json")
        return tell_misfits(world, wanted, state).splitlines()[1:]

    sort = {"ospf": "adjacency", "bgp": "session"}[protocol]
    facts = [fact for fact in wanted if fact.sort == sort]
    lost = told(tuple(one for one in seen.neighbours if one[1] != protocol), wanted)
    assert lost == [f"- {said} of {one.source} and {one.target} {is_lost}" for one in facts]
    others = {fact: value for fact, value in wanted.items() if fact not in facts}
    new = told(seen.neighbours, others)
    assert new == [f"- {said} of {one.source} and {one.target} {is_new}" for one in facts]


def test_routes_that_a_contingency_withdraws_are_documented(contingent: World) -> None:
    case = Case(contingent)
    lines = [*document(case)]
    for one in case.contingencies:
        (line,) = [line for line in lines if line.startswith(f"- {one.name}: ")]
        lasting = case.wanted_in(one)
        lost = [fact for fact in case.wanted if fact.sort == "route" and fact not in lasting]
        assert ("no longer receives" in line) == bool(lost)
        for fact in lost:
            told = line.partition(f"{fact.source} no longer receives ")[2].partition(";")[0]
            assert fact.target in told.removesuffix(".").split(", ")
    assert any("no longer receives" in line for line in lines)
