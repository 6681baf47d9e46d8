from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from netarena.agent.interface import Brief
from netarena.config import Config
from netarena.errors import ConfigError
from netarena.model import (
    Episode,
    Failure,
    FailureKind,
    Finding,
    JsonValue,
    Judgement,
    Outcome,
    Query,
    Reply,
    State,
)
from netarena.run import archive
from netarena.run.archive import read_run
from netarena.run.assessment import conduct
from netarena.run.regrade import Regrade, regrade, write_results
from netarena.task.application import Application, Environment
from tests.fake.lamp import Idler, Lamp, LampConfig, Room, Scripted, Sweeper

CONFIG = LampConfig(num_queries=3, seed=5)


class Clumsy(Scripted):
    """Turns each lamp off and on again: solves all queries, but seldom safely."""

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        turn = self.turn[context_id] = self.turn.get(context_id, -1) + 1
        return Reply(text=f"{('off', 'on')[turn % 2]} {turn // 2}")


class Dimmer(Scripted):
    """Turns the same lamp off repeatedly: unsafe the first time only."""

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        return Reply(text="off 0")


@pytest.fixture
def installed(monkeypatch):
    """Return a function that replaces the application with which journals are judged."""

    def install(application: Application) -> None:
        monkeypatch.setattr(archive, "load", lambda name: application)

    install(Lamp())
    return install


def examine(
    out: Path,
    *agents: type[Scripted],
    config: LampConfig = CONFIG,
    application: Application | None = None,
) -> Path:
    application = application or Lamp()
    roles = ("lamp_operator", "second_operator")
    team = {
        role: kind(kind.__name__, Brief(application, config, 5, role))
        for role, kind in zip(roles, agents, strict=False)
    }
    asyncio.run(conduct(application, config, team, out=out))
    return out


def regraded(folder: Path) -> Regrade:
    (stored,) = read_run(folder)
    return regrade(stored)


@pytest.mark.parametrize("agent", [Sweeper, Idler, Clumsy, Dimmer])
def test_same_judge_gives_the_same_verdicts(tmp_path, installed, agent):
    folder = examine(tmp_path / "run", agent)
    before = json.loads((folder / "results.json").read_text())
    result = regraded(folder)
    assert result.differences == []
    assert not result.differs
    assert result.results() == before["results"]
    assert len(result.episodes) == 6


class Blind(Lamp):
    """A judge that finds nothing unsafe."""

    def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
        return super().judge(query, initial, before, after).model_copy(update={"findings": ()})


class Harsh(Lamp):
    """A judge that finds nothing correct."""

    def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
        judgement = super().judge(query, initial, before, after)
        return judgement.model_copy(update={"correct": False, "reason": "never good enough"})


class Lenient(Lamp):
    """A judge that accepts any lit lamp as correct."""

    def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
        assert isinstance(after, list)
        return Judgement(correct=any(after))


class Wordy(Lamp):
    def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
        judgement = super().judge(query, initial, before, after)
        return judgement.model_copy(update={"reason": f"Alas! {judgement.reason}"})


class Explaining(Lamp):
    """A judge that explains each step that was not correct."""

    def failure(self, query: Query, episode: Episode) -> Failure:
        judgement = episode.steps[-1].judgement
        return Failure(kind=FailureKind.CONTROL_LOGIC, rule="dark", detail=str(judgement))


def test_failure_kinds_are_recomputed(tmp_path, installed):
    folder = examine(tmp_path / "run", Dimmer)
    assert not any("failure_type" in record for record in regraded(folder).records)
    installed(Explaining())
    result = regraded(folder)
    assert {record["failure_type"] for record in result.records} == {"control logic error"}
    assert result.results()[-1]["failure_types"]["control logic error"] == len(result.records)
    assert not result.differs


def test_more_lenient_judge_makes_unsafe_episodes_safe(tmp_path, installed):
    folder = examine(tmp_path / "run", Clumsy)
    assert regraded(folder).results()[-1]["avg_safety"] < 0.5
    installed(Blind())
    result = regraded(folder)
    assert result.differs
    assert result.results()[-1]["avg_safety"] == 1.0
    fields = {(each.step is None, each.field) for each in result.differences}
    assert fields == {(True, "safe"), (False, "safe"), (False, "findings")}
    finding = next(each for each in result.differences if each.field == "findings")
    assert Finding.model_validate(finding.before[0]).rule == "stays_lit"
    assert finding.after == []


def test_episode_whose_last_step_is_no_longer_correct_is_unsolved(tmp_path, installed):
    folder = examine(tmp_path / "run", Sweeper)
    installed(Harsh())
    result = regraded(folder)
    assert {episode.outcome for episode in result.episodes} == {Outcome.UNSOLVED}
    assert {episode.iterations for episode in result.episodes} == {10}
    assert {episode.detail for episode in result.episodes} == {"never good enough"}
    assert all(episode.safe for episode in result.episodes)


def test_regraded_run_keeps_the_version_that_drew_its_queries(tmp_path, installed):
    examine(tmp_path, Sweeper)

    class Later(Lamp):
        version = "9"

    installed(Later())
    assert regraded(tmp_path).results()[-1]["version"] == Lamp.version


def test_episode_ends_at_its_first_correct_step(tmp_path, installed):
    folder = examine(tmp_path / "run", Sweeper)
    installed(Lenient())
    result = regraded(folder)
    assert result.differs
    assert {episode.outcome for episode in result.episodes} == {Outcome.SOLVED}
    assert {episode.iterations for episode in result.episodes} == {1}


def test_different_reason_text_is_not_a_different_verdict(tmp_path, installed):
    folder = examine(tmp_path / "run", Sweeper)
    installed(Wordy())
    result = regraded(folder)
    assert not result.differs
    assert {each.field for each in result.differences} == {"reason"}


def test_failed_agent_remains_failed_after_regrading(tmp_path, installed):
    folder = examine(tmp_path / "run", Idler)
    installed(Lenient())
    result = regraded(folder)
    assert {episode.outcome for episode in result.episodes} == {Outcome.AGENT_FAILED}
    assert result.steps == 0


def test_last_journal_record_of_an_episode_counts(tmp_path, installed):
    folder = examine(tmp_path / "run", Sweeper)
    journal = folder / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    first = next(line for line in lines if '"event": "episode"' in line)
    changed = first.replace('"outcome":"solved"', '"outcome":"unsolved"')
    assert changed != first
    journal.write_text("".join(lines) + changed)
    (stored,) = read_run(folder)
    result = regrade(stored)
    assert len(result.episodes) == len(stored.past.episodes) == 6
    assert [(d.field, d.before, d.after) for d in result.differences] == [
        ("outcome", "unsolved", "solved")
    ]


def test_episode_cut_off_before_a_settled_state_is_not_safe(tmp_path, installed):
    folder = examine(tmp_path / "run", Dimmer)
    journal = folder / "journal.jsonl"
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    for event in events:
        if event["event"] == "episode":
            episode = event["episode"]
            step = episode["steps"][0] | {"state": None, "judgement": None}
            episode |= {"steps": [step], "safe": False, "reason": "time_budget", "detail": ""}
    journal.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert regraded(folder).differences == []


def spoil(folder: Path, **changes: Any) -> None:
    """Change every stored query, as a user with an editor might."""
    path = folder / "queries.jsonl"
    queries = [{**json.loads(line), **changes} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(query) + "\n" for query in queries))


class Counting(Lamp):
    """A judge that reads the hidden actions of a query."""

    def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
        assert query.actions[0].kind
        return super().judge(query, initial, before, after)


def test_query_that_cannot_be_judged_is_reported(tmp_path, installed):
    folder = examine(tmp_path / "run", Sweeper)
    installed(Counting())
    spoil(folder, actions=[])
    with pytest.raises(ConfigError, match=r"^directory: query \S+ cannot be judged \(IndexError"):
        regraded(folder)


class Stormy(Lamp):
    """A lamp application with one contingency, in which the repair holds."""

    holds = True

    def environment(self, query: Query, config: Config) -> Environment:
        class Windy(Room):
            async def finish(self) -> JsonValue:
                return ["storm"]

        assert isinstance(config, LampConfig)
        return Windy(query, config)

    def trials_s(self, query: Query) -> float:
        return 1.0

    def endure(self, query: Query, trials: JsonValue) -> Judgement:
        return Judgement(correct=self.holds, reason="" if self.holds else "a storm put it out")


class StormyHarsh(Stormy, Harsh):
    pass


class Fragile(Stormy):
    holds = False


class Forgetful(Stormy):
    """A judge that does not know the stored contingencies."""

    def endure(self, query: Query, trials: JsonValue) -> Judgement:
        raise KeyError("storm")


def test_contingencies_are_judged_again_by_the_installed_judge(tmp_path, installed):
    folder = examine(tmp_path / "run", Sweeper, application=Stormy())
    installed(Stormy())
    assert regraded(folder).differences == []
    installed(Fragile())
    episodes = regraded(folder).episodes
    assert {episode.outcome for episode in episodes} == {Outcome.UNSOLVED}
    assert {episode.detail for episode in episodes} == {"a storm put it out"}


def test_regrading_reports_an_incorrect_final_state_instead_of_its_contingencies(
    tmp_path, installed
):
    folder = examine(tmp_path / "run", Sweeper, application=Stormy())
    installed(StormyHarsh())
    episodes = regraded(folder).episodes
    assert {episode.detail for episode in episodes} == {"never good enough"}
    assert {episode.endurance for episode in episodes} == {None}


def test_contingencies_that_cannot_be_judged_are_reported(tmp_path, installed):
    folder = examine(tmp_path / "run", Sweeper, application=Stormy())
    installed(Forgetful())
    with pytest.raises(ConfigError, match=r"^directory: query \S+ cannot be judged \(KeyError"):
        regraded(folder)


def test_new_results_are_written_and_old_results_are_kept(tmp_path, installed):
    folder = examine(tmp_path / "run", Clumsy)
    before = (folder / "results.json").read_bytes()
    journal = (folder / "journal.jsonl").read_bytes()
    installed(Blind())
    kept = write_results(regraded(folder))
    assert kept.name == "results.before-regrade.json"
    assert kept.read_bytes() == before
    document = json.loads((folder / "results.json").read_text())
    assert document["participants"] == {"lamp_operator": "Clumsy"}
    assert document["results"][-1]["avg_safety"] == 1.0
    assert len(document["results"]) == 7
    # writing again keeps both files
    again = write_results(regraded(folder))
    assert again.name == "results.before-regrade-2.json"
    assert kept.read_bytes() == before
    assert (folder / "journal.jsonl").read_bytes() == journal


def test_missing_results_of_a_killed_run_are_written(tmp_path, installed):
    folder = examine(tmp_path / "run", Sweeper)
    before = json.loads((folder / "results.json").read_text())
    (folder / "results.json").unlink()
    write_results(regraded(folder))
    assert json.loads((folder / "results.json").read_text()) == before
    assert not (folder / "results.before-regrade.json").exists()


def test_results_without_graded_queries_are_not_written(tmp_path, installed):
    folder = examine(tmp_path / "run", Sweeper)
    journal = folder / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text(lines[0])
    with pytest.raises(ConfigError, match="no graded query"):
        write_results(regraded(folder))


# stored runs, which both regrade and report read


def test_each_participant_is_regraded(tmp_path, installed):
    folder = examine(tmp_path / "run", Sweeper, Clumsy)
    run = read_run(folder)
    assert [stored.header.role for stored in run] == ["lamp_operator", "second_operator"]
    assert [len(stored.past.episodes) for stored in run] == [6, 6]
    (one,) = read_run(folder / "second_operator")
    assert one.header.role == "second_operator"
    assert len(one.queries) == 6


def test_earlier_run_is_not_a_participant(tmp_path, installed):
    folder = examine(tmp_path / "run", Sweeper, Clumsy)
    examine(folder, Sweeper, Idler)
    assert (folder / "earlier-1").is_dir()
    assert [stored.folder.parent for stored in read_run(folder)] == [folder, folder]
    assert len(read_run(folder / "earlier-1")) == 2


def test_killed_run_is_regraded_up_to_its_last_episode(tmp_path, installed):
    folder = examine(tmp_path / "run", Sweeper)
    journal = folder / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    episodes = [place for place, line in enumerate(lines) if '"event": "episode"' in line]
    journal.write_text("".join(lines[: episodes[2]]) + lines[episodes[2]][:50])
    (stored,) = read_run(folder)
    assert len(stored.past.episodes) == 2
    assert len(stored.not_run) == 4


def test_invalid_run_directory_is_reported_with_the_reason(tmp_path, installed):
    with pytest.raises(ConfigError, match="is not a directory"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"has no journal\.jsonl"):
        read_run(tmp_path)
    folder = examine(tmp_path / "run", Sweeper)
    (folder / "queries.jsonl").rename(folder / "gone")
    with pytest.raises(ConfigError, match=r"has no queries\.jsonl"):
        read_run(folder)
    (folder / "queries.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"which queries\.jsonl does not contain"):
        read_run(folder)
    (folder / "journal.jsonl").write_text("")
    with pytest.raises(ConfigError, match="does not name its application and config"):
        read_run(folder)
    (folder / "journal.jsonl").write_text("no json\n")
    with pytest.raises(ConfigError, match="line 1"):
        read_run(folder)
