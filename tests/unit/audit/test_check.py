from __future__ import annotations

import asyncio
import json
import math
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pytest

from netarena.audit.check import Depth, _difference, audit
from netarena.audit.result import Audit
from netarena.cli import main, screen
from netarena.cli.audit import _letters, _tabulate
from netarena.config import Config, shapes
from netarena.errors import EnvironmentFailed
from netarena.model import Execution, Judgement, Move, Query, State
from netarena.task.application import Application, Environment
from tests.fake.lamp import Dim, Lamp, LampConfig, Room

CONFIG = LampConfig()


def run(application: Application, total: int = 6, config: Config = CONFIG) -> Audit:
    return asyncio.run(audit(application, config, 7, total))


def test_audit_of_valid_queries_finds_no_flaws():
    result = run(Lamp())
    assert result.flaws == ()
    assert (result.queries, result.invalid, result.retried) == (6, 0, 0)
    assert result.as_json()["labels"] == {"one": 3, "two": 3}
    assert result.as_json()["levels"] == {"level1": 3, "level2": 3}
    assert result.as_json()["reasons"] == {}


class FolderConfig(LampConfig):
    data: str = shapes(default="")


class Rooms(Lamp):
    """Lamps with variants that differ in the number of lamps."""

    def variants(self, config: Config) -> Sequence[Config]:
        if "lamps" in config.model_fields_set:
            return (config,)
        return [config.model_copy(update={"lamps": lamps}) for lamps in (3, 5)]

    def unearned(self, query: Query, initial: State) -> Sequence[State]:
        assert isinstance(initial, list)
        return [initial[::-1]]


def test_audit_spreads_queries_over_the_variants_of_unset_keys():
    result = run(Rooms(), 10)
    assert result.invalid == 0
    assert result.drawn == {
        "lamps=3": {"one": 3, "two": 2},
        "lamps=5": {"one": 2, "two": 3},
    }
    assert result.labels == {"one": 5, "two": 5}
    assert result.as_json()["variants"] == {"lamps=3": 5, "lamps=5": 5}
    # a small number of queries still covers all variants and labels
    assert run(Rooms(), 2).drawn == {"lamps=3": {"one": 1}, "lamps=5": {"two": 1}}
    assert run(Rooms(), 4, LampConfig(lamps=4)).drawn == {"": {"one": 2, "two": 2}}


def test_progress_counts_only_the_queries_of_the_audit():
    told: list[None] = []
    result = asyncio.run(audit(Rooms(), CONFIG, 7, 6, drawn=lambda: told.append(None)))
    assert len(told) == result.queries == 6


def test_flaw_of_one_variant_is_reported_with_the_name_of_the_variant():
    class Dark(Rooms):
        def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
            assert isinstance(initial, list)
            found = super().judge(query, initial, before, after)
            return found.model_copy(update={"correct": found.correct and len(initial) == 3})

    result = run(Dark(), 8)
    assert result.reasons() == {"unsolved": 4}
    assert {flaw.variant for flaw in result.flaws} == {"lamps=5"}


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (("a" * 40, "b" * 40), [f"data={'a' * 24}…", f"data={'b' * 24}…"]),
        # shortened values would be equal
        (("a" * 40, "a" * 41), [f"data={'a' * 40}", f"data={'a' * 41}"]),
    ],
)
def test_long_values_are_cut_in_the_name_of_a_variant(paths, names):
    class Folders(Lamp):
        config_type = FolderConfig

        def variants(self, config: Config) -> Sequence[Config]:
            return [config.model_copy(update={"data": path}) for path in paths]

    assert list(run(Folders(), 4, FolderConfig()).variants) == names


def test_query_that_is_solved_by_returning_its_input_is_a_flaw():
    class Lenient(Rooms):
        def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
            if after is not initial and after == initial[::-1]:  # type: ignore[index]
                return Judgement(correct=True)
            return super().judge(query, initial, before, after)

    result = run(Lenient(), 4)
    assert result.reasons() == {"solved": 4}
    assert "returned unchanged" in result.flaws[0].detail


def test_audit_table_replaces_the_text_between_the_markers_of_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("netarena.cli.audit.load", lambda name: Rooms())
    page = tmp_path / "page.md"
    page.write_text("# Lamps\n<!-- audit lamp -->\nold\n<!-- /audit lamp -->\nthe end\n")
    arguments = ["audit", "lamp", "--num-queries", "6", "--seed", "1", "--markdown", str(page)]
    assert main(arguments) == 0
    text = page.read_text()
    assert main(arguments) == 0
    assert page.read_text() == text
    before, _, after = text.partition("lamp 1, seed 1: 6 queries, 0 invalid.")
    assert before == "# Lamps\n<!-- audit lamp -->\n\n"
    assert after.endswith("| 1 | 2 | 3 | 0 |\n\n<!-- /audit lamp -->\nthe end\n")
    assert "| label | lamps=3 | lamps=5 | queries | invalid |" in after
    page.write_text(before + "no end of it")
    assert main(arguments) == 2
    assert "one line <!-- audit lamp -->" in capsys.readouterr().err


def test_variants_of_several_keys_are_listed_once_and_abbreviated_with_letters():
    names = [f"lamps={n}, world={world}" for n in (3, 5) for world in ("standard", "varied")]
    drawn = {name: {"one": number} for number, name in enumerate(names, start=1)}
    found = Audit(
        application="lamp", version="1", seed=7, drawn=drawn, levels={}, retried=0, flaws=()
    )
    (head, legend), (labels, rows) = _tabulate(found)
    assert head == ["variant", "keys", "queries"]
    assert legend == [
        ["A", names[0], 1],
        ["B", names[1], 2],
        ["C", names[2], 3],
        ["D", names[3], 4],
    ]
    assert labels == ["label", "A", "B", "C", "D", "queries", "invalid"]
    assert rows == [["one", 1, 2, 3, 4, 10, 0]]
    assert [_letters(number) for number in (0, 25, 26, 52)] == ["A", "Z", "AA", "BA"]


class Stopped(Dim):
    """Lamps of which only the first two worlds ever finish opening.

    The process receives the signal ``number`` when the fourth world opens, after two have been
    checked. With ``early``, it receives the signal while it draws queries.
    """

    def __init__(self, number: int, *, early: bool = False) -> None:
        self.number = number
        self.early = early
        self.opened = 0

    def generate(self, config: Config, seed: int) -> Iterator[Query]:
        for query in super().generate(config, seed):
            yield query
            while self.early and query.index == 2:
                os.kill(os.getpid(), self.number)
                yield query

    def environment(self, query: Query, config: Config) -> Environment:
        assert isinstance(config, LampConfig)
        self.opened += 1
        if self.opened == 4:
            os.kill(os.getpid(), self.number)
        return (Room if self.opened < 3 else Stuck)(query, config)


class Stuck(Room):
    async def open(self) -> State:
        await asyncio.Event().wait()
        raise AssertionError("it was set")


@pytest.fixture
def usual_sigint() -> Iterator[None]:
    """Restore the default handling of SIGINT, which background processes of shells ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("usual_sigint")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_audit_reports_the_flaws_found_so_far(number, status, monkeypatch, capsys):
    monkeypatch.setattr("netarena.cli.audit.load", lambda name: Stopped(number))
    arguments = ["audit", "lamp", "--num-queries", "9", "--seed", "1"]

    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert "lamp 1, seed 1: 2 queries and 7 not checked, 1 invalid" in out
    assert "(two): unsolved: the reference solution does not solve it: lamp 2 off\n" in err
    assert "the reference solution does not solve it" in out
    assert err.splitlines()[-1] == "netarena: stopped"
    assert main([*arguments, "--json"]) == status
    told = json.loads(capsys.readouterr().out)
    assert (told["queries"], told["not_checked"], told["reasons"]) == (2, 7, {"unsolved": 1})


@pytest.mark.usefixtures("usual_sigint")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_audit_stopped_while_drawing_reports_all_queries_as_not_checked(
    number, status, monkeypatch, capsys
):
    monkeypatch.setattr("netarena.cli.audit.load", lambda name: Stopped(number, early=True))

    assert main(["audit", "lamp", "--num-queries", "9", "--seed", "1", "--json"]) == status
    told = json.loads(capsys.readouterr().out)
    assert (told["queries"], told["not_checked"], told["invalid"]) == (0, 9, 0)


def reasons(application: Application) -> dict[str, int]:
    result = run(application)
    assert result.invalid == sum(result.reasons().values()) == len(result.flaws)
    return result.reasons()


def test_incomplete_reference_solution_is_reported_as_unsolved():
    class Wrong(Lamp):
        def solve(self, query: Query) -> Sequence[str]:
            return super().solve(query)[:1]  # the solution lacks a reply

    result = run(Wrong())
    assert result.reasons() == {"unsolved": 3}
    assert {flaw.label for flaw in result.flaws} == {"two"}
    assert "off" in result.flaws[0].detail


def test_unsafe_reference_solution_is_reported_as_unsafe():
    class Unsafe(Lamp):
        def solve(self, query: Query) -> Sequence[str]:
            broken = {action.parameters["lamp"] for action in query.actions}
            lit = next(lamp for lamp in range(4) if lamp not in broken)
            return [f"off {lamp}" for lamp in [lit]] + [*super().solve(query), f"on {lit}"]

    assert reasons(Unsafe()) == {"unsafe": 6}


def test_reference_solution_that_the_parser_rejects_is_reported_as_refused():
    class Refused(Lamp):
        def solve(self, query: Query) -> Sequence[str]:
            return ["please turn the lamps on"]

    assert reasons(Refused()) == {"refused": 6}


def test_reference_solution_with_too_many_turns_is_reported_as_unsolved():
    result = run(Lamp(), config=LampConfig(max_iterations=1))
    assert result.reasons() == {"unsolved": 3}


def test_query_without_a_reference_solution_is_reported_as_unsolved():
    class Empty(Lamp):
        def solve(self, query: Query) -> Sequence[str]:
            return []

    assert reasons(Empty()) == {"unsolved": 6}


def test_flaw_in_any_order_of_the_reference_solution_is_reported():
    class Ordered(Lamp):
        def solutions(self, query: Query) -> Iterable[Sequence[str]]:
            replies = self.solve(query)
            return [replies, replies[::-1], [*replies, "please"][-len(replies) :]]

    class Careless(Lamp):
        def solutions(self, query: Query) -> Iterable[Sequence[str]]:
            raise LookupError("no order")

    class Silent(Lamp):
        def solutions(self, query: Query) -> Iterable[Sequence[str]]:
            return []

    # the third order is wrong, the other orders are right
    assert reasons(Ordered()) == {"refused": 6}
    assert reasons(Careless()) == {"bug": 6}
    assert reasons(Silent()) == {"unsolved": 6}


def test_hasty_order_that_is_safe_is_reported():
    class Hurried(Lamp):
        """Lamps with a hasty order for each given reply, which is the last reply of the order."""

        def __init__(self, *last: str) -> None:
            self.last = last

        def hasty(self, query: Query) -> Iterable[Sequence[str]]:
            return [[*self.solve(query), last] for last in self.last]

    assert reasons(Hurried(*(f"off {lamp}" for lamp in range(4)))) == {}
    assert reasons(Hurried("off 0", "on 0")) == {"order": 6}
    assert reasons(Hurried("please")) == {"refused": 6}


class Turned(Lamp):
    """Lamps with several orders of the solution; the first one occurs twice.

    ``room`` is the class of the worlds.
    """

    def __init__(self, room: type[Room]) -> None:
        self.room = room

    def solutions(self, query: Query) -> Iterable[Sequence[str]]:
        replies = self.solve(query)
        return [replies, replies[::-1], replies]

    def environment(self, query: Query, config: Config) -> Environment:
        assert isinstance(config, LampConfig)
        return self.room(query, config)


def test_orders_of_one_query_are_tried_concurrently():
    live: Counter[str] = Counter()
    peak = 0

    class Counting(Room):
        async def open(self) -> State:
            nonlocal peak
            live[self.query.id] += 1
            peak = max(peak, live[self.query.id])
            await asyncio.sleep(0)
            return await super().open()

        async def close(self) -> None:
            live[self.query.id] -= 1

    result = asyncio.run(audit(Turned(Counting), CONFIG, 7, 1, concurrency=8))
    assert (result.queries, result.invalid) == (1, 0)
    assert (peak, live.total()) == (3, 0)


@pytest.mark.parametrize(
    ("depth", "worlds", "looks"),
    [
        # if nothing has been changed, each world except the first is observed once
        (Depth(), 3, 1),
        (Depth(looks=4), 3, 4),
        (Depth(orders=1), 1, 1),
        (Depth(looks=2, orders=2), 2, 2),
        (Depth(orders=math.inf), 4, 1),
    ],
)
def test_depth_sets_the_number_of_orders_and_of_observations_per_state(depth, worlds, looks):
    seen: list[tuple[int, object]] = []
    opened = 0

    class Counting(Room):
        async def open(self) -> State:
            nonlocal opened
            opened += 1
            self.number = opened
            return await super().open()

        async def observe(self) -> State:
            state = await super().observe()
            seen.append((self.number, json.dumps(state)))
            return state

    class Every(Turned):
        def every_solution(self, query: Query) -> Iterable[Sequence[str]]:
            return [*self.solutions(query), self.solve(query)]

    result = asyncio.run(audit(Every(Counting), CONFIG, 7, 1, concurrency=1, depth=depth))
    assert (result.queries, result.invalid, opened) == (1, 0, worlds)
    first, *others = Counter(one for one in seen if one[0] == 1).values()
    assert {*others} == {looks}
    assert first - looks in {0, 1}  # opening is an observation too


def test_first_flawed_order_is_reported_even_if_a_later_one_fails_earlier():
    opened: Counter[str] = Counter()

    class Slow(Room):
        """A query's first world works, its second fails late, and its third fails immediately."""

        async def open(self) -> State:
            opened[self.query.id] += 1
            self.number = opened[self.query.id]
            if self.number == 2:
                for _ in range(99):
                    await asyncio.sleep(0)
            return await super().open()

        async def execute(self, move: Move) -> Execution:
            if self.number > 1:
                raise EnvironmentFailed(f"world {self.number}")
            return await super().execute(move)

    # with concurrency 1, no further world is opened after a failure
    for concurrency, worlds in ((1, 2), (3, 3)):
        opened.clear()
        result = asyncio.run(audit(Turned(Slow), CONFIG, 7, 2, concurrency=concurrency))
        assert [flaw.detail for flaw in result.flaws] == ["after the build: world 2"] * 2
        assert (set(opened.values()), result.retried) == ({worlds}, 0)


def test_each_state_is_observed_as_often_as_the_application_requests():
    seen: Counter[str] = Counter()

    class Watched(Room):
        async def observe(self) -> State:
            seen[self.query.id] += 1
            return await super().observe()

    class Tired(Watched):
        async def observe(self) -> State:
            state = await super().observe()
            return [*self.lit[1:], True] if seen[self.query.id] == 11 else state

    application = with_room(Watched)
    type(application).looks = 10
    assert reasons(application) == {}
    # one observation at opening, ten at the start, and ten after each of the one or two turns
    assert set(seen.values()) == {1 + 10 + 10, 1 + 10 + 20}
    seen.clear()
    application = with_room(Tired)
    type(application).looks = 10
    assert reasons(application) == {"unstable": 6}


@pytest.mark.parametrize("concurrency", [1, 2])
def test_unchanged_world_is_observed_repeatedly_in_one_order_only(concurrency):
    rooms: list[Watched] = []

    class Watched(Room):
        async def open(self) -> State:
            rooms.append(self)
            self.seen, self.untouched = -1, 0
            return await super().open()

        async def execute(self, move: Move) -> Execution:
            self.untouched = self.untouched or self.seen
            return await super().execute(move)

        async def observe(self) -> State:
            self.seen += 1
            return await super().observe()

    class Often(Turned):
        looks = 10

    asyncio.run(audit(Often(Watched), CONFIG, 7, 2, concurrency=concurrency))
    seen = {(room.untouched, (room.seen - room.untouched) % 10) for room in rooms}
    assert seen == {(10, 0), (1, 0)}
    assert len([room for room in rooms if room.untouched == 10]) == 2


def with_room(room: type[Room]) -> Application:
    class Rebuilt(Lamp):
        def environment(self, query: Query, config: Config) -> Environment:
            assert isinstance(config, LampConfig)
            return room(query, config)

    return Rebuilt()


def test_fault_without_a_visible_effect_is_reported_as_solved():
    class Healthy(Room):
        async def open(self) -> State:
            return await self.observe()

    assert reasons(with_room(Healthy)) == {"solved": 6}


def test_world_that_changes_by_itself_is_reported_as_unstable():
    class Flickering(Room):
        async def observe(self) -> State:
            self.lit[0] = not self.lit[0]
            return await super().observe()

    assert reasons(with_room(Flickering)) == {"unstable": 6}


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"a": [1, [2, "x"]]}, {"a": [1, [2, "y"]]}, '.a[1][1] was "x", but is now "y"'),
        ([1, 3], [1, 2], "[1] was 3, but is now 2"),
        ({"a": [1, 3]}, {"a": [2, 1, 4]}, ".a: removed [3], added [2, 4]"),
        ({"a": 1}, {"b": 1}, 'the state was {"a": 1}, but is now {"b": 1}'),
        ({"a": "x" * 300}, {"a": None}, f'.a was "{"x" * 199}, but is now null'),
    ],
)
def test_description_of_a_difference_contains_its_position(before, after, told):
    assert _difference(before, after) == told


def test_command_that_is_not_executed_is_reported_as_refused():
    class Lazy(Room):
        async def execute(self, move: Move) -> Execution:
            return Execution(output="busy", executed=False)

    assert reasons(with_room(Lazy)) == {"refused": 6}


def test_failure_to_open_a_world_twice_is_reported_as_an_environment_failure():
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


def test_failure_to_open_a_world_once_is_retried_and_not_reported():
    failed: set[str] = set()

    class Flaky(Room):
        async def open(self) -> State:
            if self.query.id not in failed:
                failed.add(self.query.id)
                raise EnvironmentFailed("slow start")
            return await super().open()

    result = run(with_room(Flaky))
    assert (result.invalid, result.retried) == (0, 6)


def test_world_that_breaks_after_its_build_is_reported_without_a_retry():
    class Fragile(Room):
        async def execute(self, move: Move) -> Execution:
            raise EnvironmentFailed("the fuse blew")

    result = run(with_room(Fragile))
    assert (result.reasons(), result.retried) == ({"environment": 6}, 0)


def test_failing_tear_down_is_reported_as_a_bug():
    class Stuck(Room):
        async def close(self) -> None:
            raise OSError("the door is stuck")

    assert reasons(with_room(Stuck)) == {"bug": 6}


def test_judge_that_raises_an_error_is_reported_as_a_bug():
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
        ({"id": "same"}, "another query has the same id"),
        ({"actions": ()}, "no action"),
    ],
)
def test_malformed_query_is_reported_as_a_record_flaw(change, detail):
    class Careless(Lamp):
        def generate(self, config, seed):
            for query in super().generate(config, seed):
                yield query.model_copy(update=change)

    result = run(Careless())
    assert "record" in result.reasons()
    assert any(detail in flaw.detail for flaw in result.flaws)


def test_each_query_is_reported_and_at_most_two_worlds_are_open():
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


def test_progress_of_a_slow_query_is_reported_with_its_current_step(monkeypatch, capsys):
    told = asyncio.Event()
    lines: list[str] = []

    class Waiting(Room):
        async def execute(self, move: Move) -> Execution:
            await asyncio.wait_for(told.wait(), 60)
            return await super().execute(move)

    def tell(self: screen.Meter, text: str) -> None:
        real(self, text)
        lines.append(text)
        if len(lines) == 3:
            told.set()

    real = screen.Meter.tell
    monkeypatch.setattr(screen.Meter, "tell", tell)
    monkeypatch.setattr("netarena.audit.check.SLOW_S", 0.01)
    monkeypatch.setattr("netarena.cli.audit.load", lambda name: with_room(Waiting))

    assert main(["audit", "lamp", "--num-queries", "1", "--seed", "1"]) == 0
    at = "turn 1 of 1, executing the reply"
    assert [line.partition(" has taken ")[2] for line in lines[:3]] == [
        f"{spent_s} s so far: {at}" for spent_s in ("0.01", "0.02", "0.04")
    ]
    assert f"audit lamp: {lines[0]}\n" in capsys.readouterr().err
