from __future__ import annotations

import json

import pytest
from netarena_toy import Toy, Waterworks
from stage import Fragile, fail_at

from netarena.errors import ConfigError, EnvironmentFailed
from netarena.model import State
from netarena.training.session import Session

pytestmark = pytest.mark.anyio


class Noted(Waterworks):
    """A waterworks whose state can be restored."""

    async def snapshot(self) -> State:
        return await self.observe()

    async def restore(self, snapshot: object) -> None:
        assert isinstance(snapshot, dict)
        for valve, is_open in snapshot.items():
            await self.turn("open" if is_open else "close", valve)


class Works(Toy):
    def __init__(self):
        super().__init__(training=True)

    def environment(self, query, config):
        return Noted(query)

    def progress(self, query, state):
        return sum(state.values()) / len(state)


def make(rewards="default", **values) -> Session:
    toy = Works()
    return Session(toy, toy.config_type.parse({"num_queries": 5, **values}), rewards)


@pytest.fixture
async def session():
    made = make()
    yield made
    await made.close()


async def solve(session: Session, *, first: int = 0):
    for reply in session._application.solve(session.query)[first:]:
        acted = await session.act(reply)
    return acted


async def test_session_plays_an_episode_like_the_engine(session):
    observation = await session.start(3, 1)
    assert session.query.id == f"train-toy-1-{session._config.shape_hash()}-3-1"
    assert observation.startswith("You run a waterworks.")
    acted = await session.act("jump")
    assert (acted.info["kind"], acted.done) == ("refused", False)
    assert "Your last reply was not executed" in acted.observation
    acted = await solve(session)
    assert acted.done
    assert acted.observation == ""
    assert acted.info | {"parts": None} == {
        "kind": "solved", "parts": None, "harm": [],
        "outcome": "solved", "solved": True, "safe": True, "turns": 3,
    }  # fmt: skip
    assert acted.reward == sum(acted.info["parts"].values())
    with pytest.raises(ConfigError, match="the episode is over"):
        await session.act("open v1")


async def test_observations_reveal_nothing_hidden(session):
    """Neither the prompt nor the result of a step contains an id, seed, fault or solution."""
    observation = await session.start(424_242, 2)
    first = await session.act("open v9")
    told = json.dumps([observation, first.observation, first.info])
    hidden = [session.query.id, "424242", *session._application.solve(session.query)]
    assert [word for word in hidden if word in told] == []


async def test_harm_is_reported_and_costs_reward(session):
    await session.start(3, 0)
    shut = session.query.actions[0].parameters["valve"]
    other = "v1" if shut != "v1" else "v2"
    acted = await session.act(f"close {other}")
    assert acted.info["harm"] == [f"{other} closed"]
    assert acted.info["parts"] == {"turn": -1.0, "harm": -50.0, "progress": pytest.approx(-2.5)}


async def test_snapshot_can_be_restored_several_times(session):
    await session.start(3, 2)
    replies = session._application.solve(session.query)
    first = await session.act(replies[0])
    kept = await session.snapshot()
    ended = await solve(session, first=1)
    for _ in range(2):  # restoring works during the episode and after its end
        assert await session.restore(kept) == first.observation
        assert [step.move for step in session.steps] == [replies[0]]
        harmed = await session.act(replies[0].replace("open", "close"))
        assert harmed.info["harm"]
    assert await session.restore(kept) == first.observation
    assert await solve(session, first=1) == ended
    await session.start(3, 1)
    with pytest.raises(ConfigError, match="belongs to another world"):
        await session.restore(kept)


async def test_environment_without_restore_refuses_a_snapshot():
    toy = Toy()
    session = Session(toy, toy.config_type())
    await session.start(3, 0)
    with pytest.raises(EnvironmentFailed, match="do not support restoring"):
        await session.snapshot()
    await session.close()


@pytest.mark.parametrize(("rewards", "better"), [("paper", "looks"), ("default", "fix")])
async def test_agent_that_only_inspects_earns_less_than_an_agent_that_repairs(rewards, better):
    session = make(rewards, max_iterations=12)
    earned = {}
    await session.start(3, 0)
    shut = str(session.query.actions[0].parameters["valve"])
    other = "v1" if shut != "v1" else "v2"
    earned["fix"] = (await session.act(f"open {shut}")).reward
    await session.start(3, 0)
    acted, earned["looks"] = None, 0.0
    while acted is None or not acted.done:
        acted = await session.act(f"open {other}")
        earned["looks"] += acted.reward
    assert acted.info["outcome"] == "unsolved"
    assert max(earned, key=earned.__getitem__) == better
    await session.close()


async def test_environment_failure_earns_no_reward():
    toy = Fragile(fail_at("open", tries=1))
    session = Session(toy, toy.config_type())
    await session.start(3, 0)  # the second attempt to build a world
    toy.plan = fail_at("execute", tries=9, proven_ours=True)
    acted = await session.act("open v1")
    assert (acted.reward, acted.done) == (0.0, True)
    assert acted.info == {"outcome": "invalid", "error": "broke"}
    await session.close()
    assert toy.live == 0
    toy = Fragile(fail_at("open", tries=2))
    with pytest.raises(EnvironmentFailed, match="broke"):
        await Session(toy, toy.config_type()).start(3, 0)
    assert toy.live == 0


async def test_false_alarm_declared_without_inspection_is_not_solved():
    session = make(briefing="ticket")
    drawn = Toy().generate(session._config, 3)
    quiet = next(query.index for query in drawn if not query.actions)
    await session.start(3, quiet)
    acted = await session.act("done")
    assert (acted.info["kind"], acted.info["solved"], acted.info["safe"]) == ("valid", False, False)
    await session.start(3, quiet)
    await session.act("open v1")
    acted = await session.act("done")
    assert (acted.info["kind"], acted.info["solved"], acted.info["safe"]) == ("solved", True, True)
    await session.close()


async def test_ticket_ends_with_a_declaration():
    session = make(briefing="ticket")
    await session.start(3, 1)
    for reply in session._application.solve(session.query):
        acted = await session.act(reply)
        assert not acted.done
    acted = await session.act("done")
    assert acted.done
    assert acted.info["solved"]
    await session.start(3, 1)
    acted = await session.act("done")
    assert (acted.done, acted.info["outcome"]) == (True, "unsolved")
    await session.close()


def open_valve(session: Session) -> str:
    """Return a valve that no fault has closed."""
    shut = {action.parameters["valve"] for action in session.query.actions}
    return next(valve for valve in ("v1", "v2", "v3") if valve not in shut)


async def test_ticket_reward_counts_harm_and_progress_at_its_end():
    """Observations and rewards within a ticket do not depend on the effect of a turn."""
    earned = {}
    for briefing in ("full", "ticket"):
        session = make(briefing=briefing, max_iterations=6)
        await session.start(3, 1)
        other = open_valve(session)
        turns = [await session.act(f"{verb} {other}") for verb in ("open", "close", "open")]
        turns += [await session.act(reply) for reply in session._application.solve(session.query)]
        if briefing == "ticket":
            assert {turn.reward for turn in turns} == {turns[0].reward}
            assert {json.dumps(turn.info) for turn in turns} == {json.dumps(turns[0].info)}
            assert turns[0].info == {"kind": "valid", "parts": {"turn": pytest.approx(-10 / 6)}}
            kept = await session.snapshot()
            owed = session.forfeit()
            turns.append(await session.act("done"))
            assert turns[-1].info["parts"]["harm"] == -50.0
            await session.restore(kept)
            assert session.forfeit() == owed
            assert (await session.act("done")).reward == turns[-1].reward
        parts = [turn.info["parts"] for turn in turns]
        earned[briefing] = {
            name: sum(part.get(name, 0.0) for part in parts) for name in ("harm", "progress")
        }
        await session.close()
    assert earned["ticket"] == pytest.approx(earned["full"])
    assert earned["full"]["harm"] == -50.0


async def test_agent_that_leaves_a_ticket_early_is_still_penalised_for_harm():
    session = make(briefing="ticket", max_iterations=6)
    await session.start(3, 1)
    untouched = session.forfeit()
    other = open_valve(session)
    acted = await session.act(f"close {other}")
    assert acted.reward + session.forfeit() < untouched - 40
    await session.close()


async def test_unknown_task_is_refused(session):
    with pytest.raises(ConfigError, match="must be from 0 to 14, not 15"):
        await session.start(3, 15)
    with pytest.raises(ConfigError, match="no episode is running"):
        _ = session.query
