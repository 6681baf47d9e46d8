"""Tickets describe a symptom instead of the true cause, and end when the agent declares it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from netarena_toy import VALVES, Toy, ToyConfig, ToyTickets
from stage import Scripted, assess

from a2a_purple.scripted import Eager, Noop, Oracle
from netarena.agent.interface import Brief
from netarena.errors import ConfigError
from netarena.model import (
    Cause,
    Episode,
    FailureKind,
    Finding,
    Judgement,
    Outcome,
    Query,
)
from netarena.report.document import make_report
from netarena.report.entrant import from_run
from netarena.report.markdown import render_markdown
from netarena.run.archive import read_run
from netarena.run.regrade import regrade
from netarena.task.ticket import localise

TICKET = {"briefing": "ticket", "quiet": True, "max_iterations": 12}


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netarena.run.archive.load", lambda name: Toy())


def brief(**values: Any) -> Brief:
    config = ToyConfig.parse({"briefing": "ticket", "seed": 7, **values})
    return Brief(Toy(), config, 7, Toy.role)


def one(out: Path, *replies: str, label: str = "close-2", **values: Any) -> Episode:
    """Return the episode of this label with these replies."""
    agent = Scripted(lambda prompt, turn: replies[turn] if turn < len(replies) else "open v1")
    _, episodes = assess(Toy(), agent, out, **{**TICKET, **values})
    return next(episode for episode in episodes if episode.label == label)


def shut(label: str = "close-2") -> list[str]:
    queries = Toy().generate(ToyConfig.parse({"quiet": True}), 7)
    query = next(query for query in queries if query.label == label)
    return [str(action.parameters["valve"]) for action in query.actions]


def repaired(label: str = "close-2") -> list[str]:
    return [f"open {valve}" for valve in shut(label)]


def test_ticket_briefing_has_its_own_defaults_and_the_same_queries() -> None:
    told = ToyConfig.parse({"briefing": "ticket"})
    assert (told.max_iterations, told.quiet) == (None, True)
    assert ToyConfig.parse({"briefing": "ticket", "max_iterations": 3}).max_iterations == 3
    full = ToyConfig.parse({"quiet": True})
    assert list(Toy().generate(told, 3)) == list(Toy().generate(full, 3))
    assert ToyConfig.parse({}).briefing == "full"


def test_application_without_tickets_refuses_the_briefing() -> None:
    malt = pytest.importorskip("netarena_malt.app").Malt()
    with pytest.raises(ConfigError, match=r"config\.briefing: must be one of full for"):
        malt.config_type.parse({"briefing": "ticket"})


def test_oracle_declares_right_causes_and_blanket_agents_solve_nothing(
    tmp_path: Path,
) -> None:
    two = {"num_queries": 2}
    results, episodes = assess(Toy(), Oracle(brief(**two)), tmp_path / "o", **TICKET, **two)
    assert all(e.correct and e.safe and e.claimed and e.claim_right for e in episodes)
    summary = results[-1]
    assert summary["claims"] == {"right": 8, "false": 0, "none": 0}
    assert summary["localised"]["cause"] == {"recall": 1.0, "precision": 1.0}
    told = render_markdown(make_report(from_run(read_run(tmp_path / "o"))))
    assert "| correct | 8 |" in told
    assert "| by place and word | 100.0 % | 100.0 % |" in told
    for kind in (Eager, Noop):
        results, _ = assess(Toy(), kind(brief()), tmp_path / kind.__name__, **TICKET)
        assert results[-1]["avg_solved_safely"] == 0.0
    # in a false alarm everything is as intended, so Eager's declaration is correct without any work
    assert summary["graded"] == 8
    eager = [e for e in read(tmp_path / "Eager") if e.correct]
    assert [e.label for e in eager] == ["close-0"]
    assert not eager[0].safe


def read(out: Path) -> list[Episode]:
    return list(read_run(out)[0].episodes())


def test_episode_ends_only_with_a_declaration_the_turn_limit_or_the_time_limit(
    tmp_path: Path,
) -> None:
    silent = one(tmp_path / "silent", *repaired())
    assert (silent.outcome, silent.correct, silent.safe) == (Outcome.SOLVED, True, True)
    assert (silent.claimed, silent.claim_right, silent.localised) == (False, None, None)
    assert (len(silent.steps), silent.iterations) == (12, 12)
    assert silent.turns_healthy == 10

    told = one(tmp_path / "told", *repaired(), "done")
    assert (told.correct, told.claimed, told.claim_right) == (True, True, True)
    assert (len(told.steps), told.iterations, told.turns_healthy) == (3, 3, 0)
    assert told.localised is None, "no cause was named"
    assert not told.steps[-1].executed


def test_false_declaration_is_a_separate_failure(tmp_path: Path) -> None:
    early = one(tmp_path, repaired()[0], f"done {shut()[0]}")
    assert (early.outcome, early.claimed, early.claim_right) == (Outcome.UNSOLVED, True, False)
    assert early.safe, "no step did harm"
    assert early.failure is not None
    assert (early.failure.kind, early.failure.rule) == (FailureKind.FALSE_CLAIM, "false_claim")
    assert early.localised is not None
    assert early.localised.cause.model_dump() == {"recall": 0.5, "precision": 1.0}


def test_declaration_before_any_command_is_not_safe(tmp_path: Path) -> None:
    blind = one(tmp_path, "done", label="close-0")
    assert (blind.correct, blind.claim_right, blind.safe) == (True, True, False)
    looked = one(tmp_path / "looked", "open v1", "done", label="close-0")
    assert (looked.correct, looked.safe, looked.turns_healthy) == (True, True, 1)


def test_repair_without_a_fault_is_a_separate_failure(tmp_path: Path) -> None:
    needless = one(tmp_path, "close v3", "done v3", label="close-0")
    assert needless.failure is not None
    assert needless.failure.kind is FailureKind.NEEDLESS_REPAIR
    mended = one(tmp_path / "mended", "close v3", "open v3", "done", label="close-0")
    assert (mended.correct, mended.safe) == (True, False)
    assert mended.failure is not None
    assert mended.failure.kind is FailureKind.NEEDLESS_REPAIR


def test_fault_introduced_after_the_repair_is_not_correct(tmp_path: Path) -> None:
    worse = one(tmp_path, *repaired(), f"close {shut()[0]}", "done")
    assert (worse.correct, worse.safe, worse.claim_right) == (False, False, False)
    assert worse.failure is None, (
        "harm takes precedence, and this application has no failure kind for it"
    )


@pytest.mark.parametrize("label", ["close-0", "close-2"])
def test_broken_world_is_not_correct(label: str, tmp_path: Path) -> None:
    smashed = one(tmp_path, *(repaired(label) or ["open v1"]), "smash v1", label=label)
    assert (smashed.outcome, smashed.reason) == (Outcome.UNSOLVED, "world_broken")
    assert (smashed.correct, smashed.safe, smashed.turns_healthy) == (
        False,
        False,
        1 + (not shut(label)),
    )
    (stored,) = read_run(tmp_path)
    assert not regrade(stored).differences


class RememberingTickets(ToyTickets):
    """Tickets with leftovers in one query."""

    def leftover(self, query: Query, episode: Episode) -> list[str]:
        return ["rust"] if query.label == "close-2" else []


class Remembering(Toy):
    """A toy application with leftovers in one query.

    It judges a step as unsafe if an earlier step changed something and this step does not.
    """

    tickets = RememberingTickets()

    def judge(self, query: Query, initial: Any, before: Any, after: Any) -> Judgement:
        judged = super().judge(query, initial, before, after)
        finding = Finding(rule="again", element="v1", detail="again")
        if before == after and before != initial:
            judged = judged.model_copy(update={"findings": (finding,)})
        return judged


def test_declaration_changes_nothing_and_is_never_harmful(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netarena.run.archive.load", lambda name: Remembering())
    agent = Scripted(lambda prompt, turn: repaired()[0] if turn == 0 else "done")
    _, episodes = assess(Remembering(), agent, tmp_path, **TICKET)
    early = next(episode for episode in episodes if episode.label == "close-2")
    assert not early.steps[-1].judgement.findings  # type: ignore[union-attr] # a claim is judged
    assert (early.safe, early.failure and early.failure.rule) == (True, "false_claim")
    (stored,) = read_run(tmp_path)
    assert not regrade(stored).differences


def test_leftover_changes_in_the_intended_state_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netarena.run.archive.load", lambda name: Remembering())
    agent = Scripted(lambda prompt, turn: f"open v{turn + 1}" if turn < 8 else "done")
    results, _ = assess(Remembering(), agent, tmp_path / "right", **TICKET)
    assert results[-1]["leftover"] == 1
    assert results[-1]["turns_healthy"] > 0
    (stored,) = read_run(tmp_path / "right")
    assert regrade(stored).results()[-1]["leftover"] == 1
    results, _ = assess(Remembering(), Scripted(lambda *_: "open v1"), tmp_path / "no", **TICKET)
    assert results[-1]["leftover"] == 0, "leftovers count only in correct final states"
    results, _ = assess(Remembering(), agent, tmp_path / "full", max_iterations=8)
    assert "leftover" not in results[-1]


def test_full_briefing_has_no_declaration(tmp_path: Path) -> None:
    agent = Scripted(lambda prompt, turn: "done" if turn == 0 else f"open v{turn}")
    _, (episode,) = assess(Toy(), agent, tmp_path, complexity_level=["level1"])
    assert episode.steps[0].refused == (
        "There is nothing to declare: the task ends by itself as soon as all is as intended."
    )
    assert (episode.correct, episode.claimed, episode.turns_healthy) == (True, None, None)


def test_ticket_prompt_is_the_same_in_each_turn_and_reveals_no_state(tmp_path: Path) -> None:
    agent = Scripted(lambda prompt, turn: f"open v{turn + 1}" if turn < 8 else "done")
    assess(Toy(), agent, tmp_path, **TICKET)
    by_context: dict[str, list[str]] = {}
    for context, prompt in zip(agent.contexts, agent.prompts, strict=True):
        by_context.setdefault(context, []).append(prompt)
    for prompts in by_context.values():
        assert len({prompt.split("## Task")[1] for prompt in prompts}) == 1
        assert not any("True" in prompt or "False" in prompt for prompt in prompts)


def test_regraded_tickets_have_the_same_verdicts(tmp_path: Path) -> None:
    rng = random.Random(3)

    def any_reply(prompt: str, turn: int) -> str:
        return rng.choice([*(f"open {v}" for v in VALVES), "close v2", "done", "done v1", "what?"])

    assess(Toy(), Scripted(any_reply), tmp_path, num_queries=10, **TICKET)
    (stored,) = read_run(tmp_path)
    again = regrade(stored)
    assert not again.differences
    kept = [episode.turns_healthy for episode in stored.episodes()]
    assert [episode.turns_healthy for episode in again.episodes] == kept
    assert len({*kept}) > 2
    assert len({(e.correct, e.safe, e.claim_right) for e in again.episodes}) > 4


causes = st.lists(st.builds(Cause, st.sampled_from("abc"), st.sampled_from("xy")), max_size=6)


@given(causes, causes)
def test_recall_and_precision_are_between_zero_and_one(
    named: list[Cause], injected: list[Cause]
) -> None:
    fit = localise(named, injected)
    for one_fit in (fit.place, fit.cause):
        for share in (one_fit.recall, one_fit.precision):
            assert share is None or 0 <= share <= 1
    if fit.cause.recall is not None and fit.place.recall is not None:
        assert localise(injected, injected).cause.recall == 1
    assert (fit.cause.recall is None) is (not injected)
    assert (fit.cause.precision is None) is (not named)
