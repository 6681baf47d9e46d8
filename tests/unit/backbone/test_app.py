"""The backbone application, whose ids and records are those of a world of route."""

from __future__ import annotations

from netarena.model import Cause
from netarena.task.application import configured, load
from netarena_backbone.app import Backbone
from netarena_backbone.query import case_of

APP = Backbone()
KEYS = {"error_types": ["ospf_cost"]}


def test_application_draws_the_queries_of_the_world_of_route() -> None:
    assert isinstance(load("backbone"), Backbone)
    alias, config = configured(load("route"), {**KEYS, "world": "backbone"})
    own = APP.config_type.parse(KEYS)
    drawn, same = next(APP.generate(own, 3)), next(alias.generate(config, 3))
    assert drawn.model_dump_json() == same.model_dump_json()
    assert drawn.id.startswith("route-4-")
    assert drawn.application == APP.recorded_name == "route"
    assert APP.solve(drawn) == alias.solve(same)


def test_cause_may_name_a_machine_with_or_without_prefix() -> None:
    query = next(APP.generate(APP.config_type.parse(KEYS), 11))
    router = case_of(query).world.routers[1].name
    causes = [Cause(router.partition("_")[2], "cost"), Cause(router, "cost"), Cause("r99", "cost")]
    assert [one.place for one in APP.tickets.resolve(query, causes)] == [router, router, "r99"]


def test_attacks_include_those_on_the_routing_daemons() -> None:
    assert {*load("route").baselines.hostile_replies()} < {*APP.baselines.hostile_replies()}
