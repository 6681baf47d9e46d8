from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from netarena.application import Application, Environment
from netarena.audit import Audit, audit, draw
from netarena.config import Config
from netarena.errors import ConfigError, EnvironmentFailed
from netarena.model import Execution, Judgement, Move, Query, State
from tests.fake.lamp import Lamp, LampConfig, Room

CONFIG = LampConfig()


def run(application: Application, total: int = 6, config: Config = CONFIG) -> Audit:
    return asyncio.run(audit(application, config, 7, total))


def test_valid_queries_pass():
    result = run(Lamp())
    assert result.flaws == ()
    assert (result.queries, result.invalid, result.retried) == (6, 0, 0)
    assert result.as_json()["labels"] == {"one": 3, "two": 3}
    assert result.as_json()["levels"] == {"level1": 3, "level2": 3}
    assert result.as_json()["reasons"] == {}


@pytest.mark.parametrize("total", [1, 2, 3, 7, 20])
def test_draws_as_many_as_asked_spread_over_labels(total):
    queries = draw(Lamp(), CONFIG, 7, total)
    assert len(queries) == total
    ones = sum(query.label == "one" for query in queries)
    assert abs(2 * ones - total) <= 1


def test_draws_the_same_for_the_same_seed():
    assert draw(Lamp(), CONFIG, 7, 9) == draw(Lamp(), CONFIG, 7, 9)
    assert draw(Lamp(), CONFIG, 7, 9) != draw(Lamp(), CONFIG, 8, 9)


@pytest.mark.parametrize("total", [0, -1])
def test_refuses_to_draw_nothing(total):
    with pytest.raises(ConfigError, match="num_queries: must be at least 1"):
        draw(Lamp(), CONFIG, 7, total)


def test_says_when_nothing_can_be_drawn():
    with pytest.raises(ConfigError, match="no query can be drawn"):
        draw(Lamp(), LampConfig(complexity_level=("level3",)), 7, 4)


def reasons(application: Application) -> dict[str, int]:
    result = run(application)
    assert result.invalid == sum(result.reasons().values()) == len(result.flaws)
    return result.reasons()


def test_finds_a_solution_that_does_not_solve():
    class Wrong(Lamp):
        def solve(self, query: Query) -> Sequence[str]:
            return super().solve(query)[:1]  # pairs stay half broken

    result = run(Wrong())
    assert result.reasons() == {"unsolved": 3}
    assert {flaw.label for flaw in result.flaws} == {"two"}
    assert "off" in result.flaws[0].detail


def test_finds_an_unsafe_solution():
    class Unsafe(Lamp):
        def solve(self, query: Query) -> Sequence[str]:
            broken = {action.parameters["lamp"] for action in query.actions}
            lit = next(lamp for lamp in range(4) if lamp not in broken)
            return [f"off {lamp}" for lamp in [lit]] + [*super().solve(query), f"on {lit}"]

    assert reasons(Unsafe()) == {"unsafe": 6}


def test_finds_a_solution_that_the_parser_declines():
    class Refused(Lamp):
        def solve(self, query: Query) -> Sequence[str]:
            return ["please turn the lamps on"]

    assert reasons(Refused()) == {"refused": 6}


def test_finds_a_solution_that_takes_too_many_turns():
    result = run(Lamp(), config=LampConfig(max_iterations=1))
    assert result.reasons() == {"unsolved": 3}


def test_finds_queries_without_a_solution():
    class Empty(Lamp):
        def solve(self, query: Query) -> Sequence[str]:
            return []

    assert reasons(Empty()) == {"unsolved": 6}


def with_room(room: type[Room]) -> Application:
    class Rebuilt(Lamp):
        def environment(self, query: Query, config: Config) -> Environment:
            assert isinstance(config, LampConfig)
            return room(query, config)

    return Rebuilt()


def test_finds_a_fault_that_does_not_show():
    class Healthy(Room):
        async def open(self) -> State:
            return await self.observe()

    assert reasons(with_room(Healthy)) == {"solved": 6}


def test_finds_a_world_that_changes_by_itself():
    class Flickering(Room):
        async def observe(self) -> State:
            self.lit[0] = not self.lit[0]
            return await super().observe()

    assert reasons(with_room(Flickering)) == {"unstable": 6}


def test_finds_a_command_that_was_not_executed():
    class Lazy(Room):
        async def execute(self, move: Move) -> Execution:
            return Execution(output="busy", executed=False)

    assert reasons(with_room(Lazy)) == {"refused": 6}


def test_finds_a_world_that_cannot_be_built_after_a_second_try():
    opened: list[str] = []
    closed: list[str] = []

    class Broken(Room):
        async def open(self) -> State:
            opened.append(self.query.id)
            raise EnvironmentFailed("no power")

        async def close(self) -> None:
            closed.append(self.query.id)

    result = run(with_room(Broken))
    assert result.reasons() == {"environment": 6}
    assert result.flaws[0].detail == "no power"
    assert result.retried == 6
    assert len(opened) == len(closed) == 12


def test_forgives_a_world_that_fails_once():
    failed: set[str] = set()

    class Flaky(Room):
        async def open(self) -> State:
            if self.query.id not in failed:
                failed.add(self.query.id)
                raise EnvironmentFailed("slow start")
            return await super().open()

    result = run(with_room(Flaky))
    assert (result.invalid, result.retried) == (0, 6)


def test_does_not_forgive_a_world_that_breaks_later():
    class Fragile(Room):
        async def execute(self, move: Move) -> Execution:
            raise EnvironmentFailed("the fuse blew")

    result = run(with_room(Fragile))
    assert (result.reasons(), result.retried) == ({"environment": 6}, 0)


def test_finds_a_tear_down_that_fails():
    class Stuck(Room):
        async def close(self) -> None:
            raise OSError("the door is stuck")

    assert reasons(with_room(Stuck)) == {"bug": 6}


def test_finds_a_judge_that_raises():
    class Raising(Lamp):
        def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
            raise ZeroDivisionError("division by zero")

    result = run(Raising())
    assert result.reasons() == {"bug": 6}
    assert "ZeroDivisionError" in result.flaws[0].detail


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"text": " "}, "text is empty"),
        ({"label": ""}, "label is empty"),
        ({"id": "same"}, "drawn twice"),
        ({"actions": ()}, "no action"),
    ],
)
def test_finds_broken_records(change, detail):
    class Careless(Lamp):
        def generate(self, config, seed):
            for query in super().generate(config, seed):
                yield query.model_copy(update=change)

    result = run(Careless())
    assert "record" in result.reasons()
    assert any(detail in flaw.detail for flaw in result.flaws)


def test_reports_each_query_as_it_is_checked_and_never_opens_more_than_two_worlds():
    seen: list[tuple[str, bool]] = []
    live = peak = 0

    class Counting(Room):
        async def open(self) -> State:
            nonlocal live, peak
            live += 1
            peak = max(peak, live)
            await asyncio.sleep(0)
            return await super().open()

        async def close(self) -> None:
            nonlocal live
            live -= 1

    application = with_room(Counting)
    asyncio.run(
        audit(
            application,
            CONFIG,
            7,
            9,
            checked=lambda query, flaw: seen.append((query.id, flaw is None)),
        )
    )
    assert len(seen) == 9
    assert all(valid for _, valid in seen)
    assert (live, peak) == (0, 2)
