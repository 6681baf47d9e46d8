"""Real backbones on which requested changes are made correctly and incorrectly."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from backbone_requests import (
    APP,
    config_of,
    load,
    own_prefix_request,
    plan_of,
    service_request,
    session_request,
)

from netarena.model import Judgement, Query, Refusal
from netarena.training.session import Session
from netarena_backbone import solution
from netarena_backbone.state import MAX_NAMED
from netarena_network.action import faults_of

pytestmark = [pytest.mark.requires("backbone"), pytest.mark.xdist_group("backbone")]

_MAXIMUM = re.compile(r" -c '(neighbor \S+ maximum-prefix \d+)'")


def _episode(query: Query, replies: Sequence[str]) -> dict[str, Any]:
    """Return the result of an episode with these replies, as the engine decides it."""

    async def run() -> dict[str, Any]:
        async with APP:
            session = Session(APP, config_of(query.label))
            try:
                await session.start_query(query)
                acted = [await session.act(reply) for reply in replies]
            finally:
                await session.close()
        assert [one.done for one in acted] == [False] * (len(acted) - 1) + [True]
        return acted[-1].info

    return asyncio.run(run())


def _judged(query: Query, *turns: Sequence[str]) -> list[Judgement]:
    """Return the judgements on a live network after each group of replies."""

    async def run() -> list[Judgement]:
        async with APP:
            environment = APP.environment(query, config_of(query.label))
            found = []
            try:
                before = first = await environment.open()
                for replies in turns:
                    for reply in replies:
                        execution = await environment.execute(APP.parse(reply))
                        assert "[exit status" not in execution.output, execution.output
                    now = await environment.observe()
                    found.append(APP.judge(query, first, before, now))
                    before = now
            finally:
                await environment.close()
        return found

    return asyncio.run(run())


def _reply(machine: str, command: str) -> str:
    return json.dumps({"machine": machine, "command": command})


def _wrong(judgement: Judgement) -> int:
    """Return the number of facts that differ from the documentation after the changes."""
    assert isinstance(judgement.detail, dict)
    number = judgement.detail["wrong"]
    assert isinstance(number, int)
    return number


def test_reference_order_is_safe_and_survives_all_contingencies() -> None:
    query = load("ordered")
    assert APP.trials_s(query) > 0
    info = _episode(query, [*APP.solve(query), APP.tickets.reference(query)])
    assert (info["solved"], info["safe"]) == (True, True)


def test_moved_service_and_raised_mtu_survive_all_contingencies() -> None:
    query = service_request()
    info = _episode(query, [*APP.solve(query), APP.tickets.reference(query)])
    assert (info["solved"], info["safe"]) == (True, True)


def test_order_of_the_text_loses_documented_traffic_at_the_computed_step() -> None:
    query = load("ordered")
    stages = plan_of(query).stages
    assert not stages.faults
    order, left = stages.straightforward(), stages.every
    computed: list[list[tuple[str, str]]] = []
    for place in order:
        harm = stages.harms(left, left - {place})
        assert harm is not None
        computed.append([(rule, str(fact)) for rule, fact in harm])
        left -= {place}
        if harm:
            break
    turns = [[one.reply] for one in solution.changes(query, order)][: len(computed)]
    found = [[(one.rule, one.element) for one in told.findings] for told in _judged(query, *turns)]
    # a judgement names at most MAX_NAMED harms of a step
    assert [one[:MAX_NAMED] for one in found] == [one[:MAX_NAMED] for one in computed]
    assert "pair_broken" in {rule for rule, _ in computed[-1]}


def test_refusal_of_the_wrong_change_does_not_solve_a_request() -> None:
    query = load("refused")
    ((number, word),) = plan_of(query).refused.items()
    wrong = Refusal(change=3 - number, because=word)
    info = _episode(query, [*APP.solve(query), APP.tickets.declare_refused((), [wrong])])
    assert (info["solved"], info["safe"]) == (False, True)


def test_settings_of_a_refused_change_must_not_exist_even_without_effect() -> None:
    """The neighbour of the refused change is configured, but its session is shut down."""
    query = own_prefix_request()
    plan = plan_of(query)
    (refused,) = [one for one in plan.requests if one.because]
    machine, address = refused.change.key.split()
    peer = f"neighbor {address}"
    foreign = next(
        one.asn
        for one in refused.change.edit(plan.target).router(machine).bgp.peers
        if one.address == address
    )
    bgp = f"vtysh -c 'configure terminal' -c 'router bgp {plan.world.asn}'"
    made = f"{bgp} -c '{peer} remote-as {foreign}' -c '{peer} shutdown'"
    right, wrong, again = _judged(
        query,
        APP.solve(query),
        [_reply(machine, made)],
        [_reply(machine, f"{bgp} -c 'no {peer}'")],
    )
    assert right.correct
    assert _wrong(wrong) == 0
    assert wrong.safe
    assert not wrong.correct
    assert wrong.reason.startswith(f"Not as requested: {machine}: this change must be refu")
    assert again.correct


def test_requested_setting_without_a_visible_effect_is_required() -> None:
    """A new session works even without its requested maximum number of prefixes."""
    query = session_request()
    (machine,) = {command.machine for one in faults_of(query) for command in one.repair}
    replies = [*APP.solve(query)]
    (setting,) = {found for reply in replies for found in _MAXIMUM.findall(reply)}
    less = [_MAXIMUM.sub("", reply) for reply in replies]
    bgp = f"vtysh -c 'configure terminal' -c 'router bgp {plan_of(query).world.asn}'"
    rest = f"{bgp} -c 'address-family ipv4 unicast' -c '{setting}'"
    without, whole = _judged(query, less, [_reply(machine, rest)])
    assert _wrong(without) == 0
    assert not without.correct
    assert without.reason.startswith("Not as requested: ")
    assert whole.correct
    assert whole.safe
