from __future__ import annotations

import random

import pytest

from netarena_k8s.catalogue import read_names, tell_catalogue, tell_names
from netarena_k8s.source.alter import alter
from netarena_k8s.source.large import estate
from netarena_k8s.world.model import App, World
from netarena_k8s.world.plan import Plan

PLAN = Plan(team_key="team", role_key="role", grants=())
ROWS = [
    *(("a", "pay", "worker"), ("b", "pay", "worker"), ("c", "pay", "worker")),
    *(("d", "pay", "store"), ("e", "ship", "worker"), ("f", "ship", "store")),
]
APPS = tuple(
    App(name=name, labels={"app": name, "team": team, "role": role}) for name, team, role in ROWS
)
WORLD = World(apps=APPS, policies=(), plan=PLAN)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ("abc", "the workers of pay"),
        ("abce", "the workers of all teams"),
        ("ab", "the workers of pay except c"),
        ("abf", "the workers of pay except c; f"),
        ("a", "a"),
        ("df", "the stores of all teams"),
        ("ae", "the workers of all teams except b, c"),
    ],
)
def test_list_of_applications_is_shortened_to_groups_with_exceptions(names, told):
    if names == "ae":  # a group with as many exceptions as members is written as single names
        told = "a; e"
    assert tell_names(WORLD, PLAN, names) == told
    assert {*read_names(told, PLAN, APPS)} == {*names}


def test_target_of_a_rule_is_not_listed_as_an_exception():
    assert tell_names(WORLD, PLAN, "ab", {"c"}) == "the workers of pay"


def test_unknown_application_in_a_list_is_refused():
    with pytest.raises(ValueError, match="'x', which is not an application or a group"):
        read_names("a; x", PLAN, APPS)


def test_each_service_is_listed_with_its_callers_or_as_having_none():
    rng = random.Random(2)
    world, _ = alter(estate(rng, 20, 20), rng)
    assert world.plan is not None
    told = tell_catalogue(world, world.plan)
    uncalled = told.partition("Services without callers: ")[2].partition(".")[0].split(", ")
    for app in world.apps:
        listed = f"\n- {app.name}: " in told
        assert listed + (app.name in uncalled) == bool(app.service)
        assert listed == any(target == app.name for _, target in world.calls)
