"""Tickets that request changes: a change that cannot be made must be declared as refused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from netarena_toy import VALVES, Toy, ToyTickets, Waterworks
from orders import Orders, OrderTickets
from stage import Scripted, assess

from a2a_purple.scripted import Eager, Oracle
from netarena.agent.interface import Brief
from netarena.config import Config
from netarena.errors import ReplyRefused
from netarena.model import (
    Cause,
    Claim,
    Episode,
    FailureKind,
    JsonValue,
    Judgement,
    Outcome,
    Query,
    Refusal,
    State,
    Step,
)
from netarena.run.archive import read_run
from netarena.run.regrade import regrade
from netarena.task.application import Application, Environment
from netarena.task.ticket import NO_CHANGE, check_refused, read_change
from netarena.training.session import Session

TICKET = {
    "briefing": "ticket",
    "quiet": False,
    "max_iterations": 6,
    "complexity_level": ["level2"],
    "num_queries": 2,
}
#: sentences of ``Tickets.unsettled``
SILENT = "A requested change must be refused, but the agent did not send a declaration."
NONE_REFUSED = "The agent did not refuse a requested change that cannot be made."
ONE_TOO_MANY = "The agent refused a requested change that can be made."
OTHER_WORD = "The agent refused the right change for a wrong reason."


class Lasting(Orders):
    """``Orders`` with a contingency that every state survives."""

    def __init__(self) -> None:
        super().__init__()
        #: ids of the queries whose contingency was tried
        self.tried: list[str] = []

    def environment(self, query: Query, config: Config) -> Environment:
        tried = self.tried

        class Works(Waterworks):
            async def finish(self) -> JsonValue:
                tried.append(query.id)
                return "tried"

        return Works(query)

    def trials_s(self, query: Query) -> float:
        return 1.0

    def endure(self, query: Query, trials: JsonValue) -> Judgement:
        return Judgement(correct=trials == "tried")


@pytest.fixture(autouse=True)
def orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netarena.run.archive.load", lambda name: Orders())


def asked(index: int = 0) -> Query:
    """Return a query of two possible changes; index 0 adds an impossible one as change 1."""
    config = Orders.config_type.parse({**TICKET, "seed": 7})
    return next(islice(Orders().generate(config, 7), index, None))


def play(out: Path, *end: str, index: int = 0, app: Toy | None = None, **values: Any) -> Episode:
    """Return the episode of a query whose possible changes are made, with these last replies."""
    repaired = [f"open {action.parameters['valve']}" for action in asked(index).actions]
    replies = [*repaired, *end]
    agent = Scripted(lambda prompt, turn: replies[turn] if turn < len(replies) else "open v1")
    _, episodes = assess(app or Orders(), agent, out, **{**TICKET, **values})
    return next(episode for episode in episodes if episode.index == index)


def test_serialized_declaration_has_no_key_for_refused_changes_if_there_are_none() -> None:
    assert Claim().model_dump_json() == '{"causes":null}'
    assert Claim().model_dump() == {"causes": None}
    old = Claim(causes=(Cause("a", "b"),))
    assert old.model_dump_json() == '{"causes":[["a","b"]]}'
    step = Step(prompt="", claim=old)
    assert '"refused":' not in step.model_dump_json().replace('"refused":null', "")
    new = Claim(refused=(Refusal(change=2, because="rust"),))
    assert new.model_dump_json() == '{"causes":null,"refused":[{"change":2,"because":"rust"}]}'
    for claim in (Claim(), old, new):
        assert Claim.model_validate_json(claim.model_dump_json()) == claim
        assert Claim.model_validate(claim.model_dump()) == claim
    assert Claim.model_validate_json('{"causes":null}') == Claim()


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (2, 2), ("2", 2), (" 2 ", 2), ("#2", 2), ("change 2", 2), ("Change #2", 2), ("change2", 2),
        ("2.0", 2), ("+2", 2), ("007", 7), (0, 0), ("0", 0), (-3, -3), ("-3", -3), (True, None),
        (False, None), (2.0, None), (float("nan"), None), (None, None), ([2], None), ("", None),
        ("two", None), ("2 and 3", None), ("2, 3", None), ("2-3", None), ("change", None),
        ("changes 2", None), ("2.5", None), ("1e3", None), ("٢", None), ("NaN", None),
        (10**9, None), ("1" * 10, None), ("1" * 5000, None), (10**5000, None), ("# 2", 2),
    ],
    ids=count(),
)  # fmt: skip
def test_number_of_a_change_is_parsed_only_if_it_is_unambiguous(value: object, number: int) -> None:
    found = read_change(value)
    assert (found, type(found)) == (number, type(number))


@given(st.integers(-(10**9) + 1, 10**9 - 1), st.sampled_from(["{}", "#{}", "change {}", " {}.0 "]))
def test_change_number_is_parsed_in_every_form(number: int, form: str) -> None:
    assert read_change(form.format(number)) == read_change(number) == number


@given(st.text(max_size=40))
def test_parsed_number_of_a_change_occurs_in_the_text(text: str) -> None:
    found = read_change(text)
    assert found is None or any(
        str(abs(found)) in digits for digits in (text, text.replace("0", ""))
    )


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        ([(1, "no_valve")], ""),
        ([], NONE_REFUSED),
        ([(2, "no_valve")], ONE_TOO_MANY),
        ([(1, "no_valve"), (2, "no_valve")], ONE_TOO_MANY),
        ([(1, "rust")], OTHER_WORD),
        (None, SILENT),
    ],
)
def test_message_about_wrong_refusals_describes_the_mistake_but_names_no_change(
    refused: list[tuple[int, str]] | None, told: str
) -> None:
    said = None
    if refused is not None:
        some = tuple(Refusal(change=change, because=word) for change, word in refused)
        said = Claim(refused=some)
    assert OrderTickets().unsettled(asked(0), said) == told
    # If all changes can be made, every refusal is wrong and no refusal is needed.
    assert OrderTickets().unsettled(asked(1), said) == (ONE_TOO_MANY if refused else "")


def test_ticket_without_requested_changes_is_settled_by_any_declaration() -> None:
    for claim in (None, Claim(), Claim(causes=(Cause("v1", "closed"),))):
        assert not ToyTickets().unsettled(asked(), claim)
    assert (ToyTickets().requested(asked()), ToyTickets().refusals(asked())) == (0, ())
    assert not ToyTickets().refuses(Config())
    assert ToyTickets().declare_refused((Cause("v1", "closed"),), ()) == "done v1"
    with pytest.raises(NotImplementedError):
        ToyTickets().declare_refused((), (Refusal(change=1, because="rust"),))


@pytest.mark.parametrize(
    ("requested", "change", "told"),
    [
        (0, 1, NO_CHANGE),
        (1, 2, "change 2 cannot be refused: only change 1 were requested"),
        (3, 4, "change 4 cannot be refused: only changes 1 to 3 were requested"),
        (3, 0, "change 0 cannot be refused: only changes 1 to 3 were requested"),
    ],
)
def test_change_that_is_not_requested_cannot_be_refused(
    requested: int, change: int, told: str
) -> None:
    check_refused(Claim(), requested)
    with pytest.raises(ReplyRefused) as refused:
        check_refused(Claim(refused=(Refusal(change=change, because="rust"),)), requested)
    assert str(refused.value) == told


def test_right_refusal_solves_the_ticket_and_its_contingencies_are_tried(tmp_path: Path) -> None:
    app = Lasting()
    episode = play(tmp_path, "done; 1: no_valve", app=app)
    assert (episode.outcome, episode.correct, episode.safe) == (Outcome.SOLVED, True, True)
    assert (episode.claimed, episode.claim_right, episode.detail) == (True, True, "")
    assert (episode.iterations, episode.failure, episode.trials) == (3, None, "tried")
    assert episode.query_id in app.tried
    assert episode.steps[-1].claim == Claim(refused=(Refusal(change=1, because="no_valve"),))
    assert episode.steps[-1].judgement == Judgement(correct=True)


@pytest.mark.parametrize(
    ("end", "index", "told"),
    [
        ("done", 0, NONE_REFUSED),
        ("done; 2: no_valve", 0, ONE_TOO_MANY),
        ("done; 1: no_valve; 2: no_valve; 3: no_valve", 0, ONE_TOO_MANY),
        ("done; 1: rust", 0, OTHER_WORD),
        ("done; 1: no_valve", 1, ONE_TOO_MANY),
    ],
)
def test_wrong_refusals_leave_a_correct_world_unsolved(
    tmp_path: Path, end: str, index: int, told: str
) -> None:
    app = Lasting()
    episode = play(tmp_path, end, index=index, app=app)
    assert (episode.outcome, episode.correct, episode.safe) == (Outcome.UNSOLVED, False, True)
    assert (episode.claim_right, episode.detail, episode.iterations) == (False, told, 6)
    # the contingencies are not tried, because they could not change the verdict
    assert (episode.trials, episode.endurance) == (None, None)
    assert episode.query_id not in app.tried
    assert episode.failure is not None
    assert (episode.failure.kind, episode.failure.rule) == (FailureKind.FALSE_CLAIM, "false_claim")
    assert episode.failure.detail == told


def test_missing_declaration_leaves_a_correct_world_unsolved(tmp_path: Path) -> None:
    silent = play(tmp_path / "needed")
    assert (silent.outcome, silent.detail, silent.claimed) == (Outcome.UNSOLVED, SILENT, False)
    assert (silent.claim_right, silent.turns_healthy) == (None, 4)
    assert silent.failure is not None
    assert silent.failure.model_dump(mode="json") == {
        "kind": "control logic error", "rule": "undeclared", "detail": SILENT,
    }  # fmt: skip
    settled = play(tmp_path / "not needed", index=1)
    assert (settled.outcome, settled.claimed, settled.detail) == (Outcome.SOLVED, False, "")


def test_right_refusal_does_not_solve_a_ticket_with_unfinished_changes(tmp_path: Path) -> None:
    valve = asked().actions[0].parameters["valve"]
    episode = play(tmp_path, f"close {valve}", "done; 1: no_valve")
    assert (episode.outcome, episode.detail) == (Outcome.UNSOLVED, f"{valve} is closed")
    assert (episode.claim_right, episode.safe) == (False, False)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("done; 4: no_valve", "change 4 cannot be refused: only changes 1 to 3 were requested"),
        ("done; 1: thirst", "1: thirst is not a change and one of no_valve, rust"),
    ],
)
def test_malformed_refusal_uses_a_turn_and_does_not_end_the_ticket(
    tmp_path: Path, end: str, told: str
) -> None:
    episode = play(tmp_path, end, "done; 1: no_valve")
    step = episode.steps[2]
    assert (step.refused, step.move, step.claim, step.judgement) == (told, None, None, None)
    assert (episode.outcome, len(episode.steps)) == (Outcome.SOLVED, 4)


def test_ticket_without_requests_refuses_a_declaration_with_refused_changes(
    tmp_path: Path,
) -> None:
    class Plain(OrderTickets):
        def requested(self, query: Query) -> int:
            return 0

        def refusals(self, query: Query) -> tuple[Refusal, ...]:
            return ()

    app = Orders()
    app.tickets = Plain()
    episode = play(tmp_path, "done; 1: no_valve", "done", app=app)
    assert episode.steps[2].refused == NO_CHANGE
    assert (episode.outcome, len(episode.steps)) == (Outcome.SOLVED, 4)


def test_task_without_a_ticket_needs_no_refusal(tmp_path: Path) -> None:
    episode = play(tmp_path, briefing="full")
    assert (episode.outcome, episode.claimed, len(episode.steps)) == (Outcome.SOLVED, None, 2)
    (stored,) = read_run(tmp_path)
    assert not regrade(stored).differences


def test_error_in_the_check_of_refusals_leaves_the_episode_unsolved(tmp_path: Path) -> None:
    class Failing(OrderTickets):
        def unsettled(self, query: Query, claim: Claim | None) -> str:
            raise LookupError("no such change")

    app = Orders()
    app.tickets = Failing()
    episode = play(tmp_path, "done", app=app)
    assert (episode.outcome, episode.reason) == (Outcome.UNSOLVED, "world_broken")
    assert "no such change" in episode.detail


def test_only_oracle_solves_queries_that_need_a_refusal(
    tmp_path: Path,
) -> None:
    keys = {**TICKET, "num_queries": 6}
    brief = Brief(Orders(), Orders.config_type.parse({**keys, "seed": 7}), 7, Orders.role)
    results, _ = assess(Orders(), Oracle(brief), tmp_path / "oracle", **keys)
    assert results[-1]["avg_solved_safely"] == 1.0
    assert results[-1]["claims"] == {"right": 6, "false": 0, "none": 0}
    results, _ = assess(Orders(), Eager(brief), tmp_path / "eager", **keys)
    assert results[-1]["avg_solved_safely"] == 0.0
    for place, end in enumerate(["done", "done; 1: no_valve"]):
        blanket = Scripted(lambda prompt, turn, end=end: f"open v{turn + 1}" if turn < 8 else end)
        out = tmp_path / str(place)
        results, episodes = assess(Orders(), blanket, out, **{**keys, "max_iterations": 12})
        right = [episode.index for episode in episodes if episode.correct]
        assert right == [[1, 3, 5], [0]][place]


def any_reply(seed: int) -> Callable[[str, int], str]:
    """Return an agent that opens all valves, and often sends another reply in between."""
    rng = random.Random(seed)
    ends = ["done", "done; 1: no_valve", "done; 2: no_valve", "done; 1: rust", "done; 9: rust"]

    def reply(prompt: str, turn: int) -> str:
        usual = (
            f"open v{turn + 1}" if turn < len(VALVES) else rng.choice([*ends, "open v1", "open v1"])
        )
        return usual if rng.random() < 0.9 else rng.choice([*ends, "close v2", "what?"])

    return reply


def test_regrading_repeats_verdicts_and_applies_a_changed_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # with a concurrency of 1, the replies are drawn in the same order each time
    values = {**TICKET, "num_queries": 40, "max_iterations": 9, "concurrency": 1}
    _, episodes = assess(Orders(), Scripted(any_reply(3)), tmp_path, **values)
    (stored,) = read_run(tmp_path)
    again = regrade(stored)
    assert not again.differences
    assert len(again.episodes) == 40
    details = {episode.detail for episode in episodes}
    assert {NONE_REFUSED, ONE_TOO_MANY, OTHER_WORD, SILENT, ""} < details

    class Generous(OrderTickets):
        def unsettled(self, query: Query, claim: Claim | None) -> str:
            return ""

    generous = Orders()
    generous.tickets = Generous()
    monkeypatch.setattr("netarena.run.archive.load", lambda name: generous)
    (stored,) = read_run(tmp_path)
    changed = regrade(stored)
    unsettled = {
        episode.query_id for episode in episodes if episode.detail.startswith(("The", "A"))
    }
    assert {one.query_id for one in changed.differences} == unsettled
    assert all(one.correct for one in changed.episodes if one.query_id in unsettled)

    class Strict(OrderTickets):
        def unsettled(self, query: Query, claim: Claim | None) -> str:
            return "Nothing is ever settled."

    strict = Orders()
    strict.tickets = Strict()
    monkeypatch.setattr("netarena.run.archive.load", lambda name: strict)
    (stored,) = read_run(tmp_path)
    solved = {episode.query_id for episode in episodes if episode.correct}
    told = {one.detail for one in regrade(stored).episodes if one.query_id in solved | unsettled}
    assert told == {"Nothing is ever settled."}


def test_regrading_ignores_contingencies_of_an_unsettled_ticket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, end in enumerate(["done; 1: no_valve", "done; 1: rust"]):
        app = Lasting()
        play(tmp_path / str(place), end, app=app)
        monkeypatch.setattr("netarena.run.archive.load", lambda name, app=app: app)
        (stored,) = read_run(tmp_path / str(place))
        assert not regrade(stored).differences


@pytest.mark.parametrize(("end", "solved"), [("done; 1: no_valve", True), ("done", False)])
def test_training_session_has_the_same_verdict_as_the_engine(end: str, solved: bool) -> None:
    async def train() -> tuple[dict[str, Any], bool]:
        app: Application = Orders(training=True)
        session = Session(app, Orders.config_type.parse(TICKET))
        async with app:
            try:
                await session.start(7, 0)
                for reply in app.solve(session.query):
                    assert not (await session.act(reply)).done
                acted = await session.act(end)
            finally:
                await session.close()
        return acted.info, acted.done

    info, done = asyncio.run(train())
    assert done
    outcome = "solved" if solved else "unsolved"
    assert (info["outcome"], info["solved"], info["safe"]) == (outcome, solved, True)


def test_refusal_does_not_change_the_state(tmp_path: Path) -> None:
    states: list[State] = []

    class Watching(Orders):
        def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
            states.append(after)
            return super().judge(query, initial, before, after)

    play(tmp_path, "done; 1: no_valve", app=Watching(), num_queries=1)
    assert states[-1] == states[-2] == dict.fromkeys(VALVES, True)
