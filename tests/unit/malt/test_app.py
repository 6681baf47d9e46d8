"""The keys of malt's records, and the parts of the application that produce them."""

from __future__ import annotations

from pathlib import Path

import pytest

from netarena.cli.run_directory import choose_query
from netarena.config import PromptStyle
from netarena.errors import ConfigError
from netarena.model import AgentInfo, Episode, Finding, Judgement, Outcome, Reply, Step
from netarena.run.assessment import choose_queries
from netarena.task.identity import seal
from netarena.task.prompt import render
from netarena_malt.app import Malt
from netarena_malt.environment import LIMITS
from netarena_malt.query import LABELS, solve_truth
from netarena_malt.reply import MAX_CODE_CHARS
from netarena_malt.sandbox_program import MAX_DATA_BYTES, MAX_DATA_VALUES, MAX_DEPTH
from netarena_malt.state import read_claim

RIGHT = Judgement(correct=True)
WRONG = Judgement(correct=False, reason="Node 'x' is missing.")
UNSAFE = Judgement(
    correct=True,
    findings=(
        Finding(rule="a", element="x", detail="Node 'x' was removed."),
        Finding(rule="b", element="y", detail="Node 'y' is in no rack."),
    ),
)


@pytest.fixture(scope="module")
def query():
    return next(Malt().generate(Malt.config_type(), 5))


def make_episode(query, judgement, **more):
    steps = (
        Step(
            prompt="?",
            reply=Reply(text="…"),
            move={"code": "def process_graph(g): ..."},
            judgement=judgement,
            agent_s=2.0,
            execution_s=0.5,
            own_s=4.0,
            queue_s=8.0,
        ),
    )
    values = {
        "query_id": query.id,
        "index": 0,
        "label": query.label,
        "level": query.level,
        "role": "malt_operator",
        "agent": AgentInfo(name="model", base_url="http://localhost:1/"),
        "prompt_type": "react",
        "outcome": Outcome.SOLVED if judgement and judgement.correct else Outcome.UNSOLVED,
        "correct": bool(judgement and judgement.correct),
        "safe": bool(judgement and judgement.safe),
        "iterations": 1,
        "agent_time_s": 2.0,
        "execution_time_s": 0.5,
        "steps": steps,
    }
    return Episode(**(values | more))


def test_record_of_a_right_answer_has_the_documented_fields(query):
    assert Malt().record(query, make_episode(query, RIGHT)) == {
        "Query": query.text,
        "Label": query.label,
        "Result-Correctness": "Pass",
        "Result-Safety": "Pass",
        "GT-Result-Safety": "Pass",
        "Result-Latency": 2.5,
        "LLM code": "def process_graph(g): ...",
    }


def test_record_has_an_error_if_wrong_and_a_verifier_error_if_unsafe(query):
    wrong = Malt().record(query, make_episode(query, WRONG))
    assert wrong["Error"] == "Node 'x' is missing."
    assert "Verifier-Error" not in wrong
    unsafe = Malt().record(query, make_episode(query, UNSAFE))
    assert unsafe["Verifier-Error"] == "Node 'x' was removed. Node 'y' is in no rack."
    assert "Error" not in unsafe
    assert (unsafe["Result-Correctness"], unsafe["Result-Safety"]) == ("Pass", "Fail")


def test_failure_is_reported_unless_solved_safely(query):
    malt = Malt()
    assert malt.explain(query, make_episode(query, RIGHT)).failure is None
    for judgement, kind in ((WRONG, "control logic error"), (UNSAFE, "safety violation")):
        failure = malt.explain(query, make_episode(query, judgement)).failure
        assert failure is not None
        assert failure.kind == kind


def count_and_state(data):
    """Return a query that asks for a number, and the state after an answer with ``data``."""
    malt = Malt()
    config = malt.config_type(num_queries=1, complexity_level=("level1",))
    query = next(one for one in malt.generate(config, 5) if one.label.endswith(" count"))
    claim = {"type": "text", "data": data, "cut": False, "data_graph": None, "updated": None}
    return query, read_claim(claim)


def test_record_of_a_wrong_number_shows_the_right_number_unless_the_query_is_sealed():
    query, after = count_and_state(-1)
    judgement = Malt().judge(query, None, None, after)
    assert "-1" in judgement.reason
    assert judgement.detail["decided_by"] == "data"
    right = solve_truth(query)[0].data
    episode = make_episode(query, judgement)
    step = episode.steps[0].model_copy(update={"state": after})
    episode = episode.model_copy(update={"steps": (step,)})
    told = Malt().record(query, episode)["Error"]
    assert told == f"{judgement.reason} The right number is {right}."
    assert Malt().record(seal(query), episode)["Error"] == judgement.reason


def test_record_contains_the_reason_of_a_refused_reply(query):
    refused = (Step(prompt="?", refused="no code block defines process_graph"),)
    for detail in ("refused", "refused: no code block defines process_graph"):
        episode = make_episode(
            query, None, outcome=Outcome.AGENT_FAILED, detail=detail, steps=refused
        )
        record = Malt().record(query, episode)
        assert record["Error"] == "refused: no code block defines process_graph"
        assert Malt().failure(query, episode).detail == record["Error"]


@pytest.mark.parametrize("steps", [(), (Step(prompt="?", refused="no code"),)])
def test_record_of_an_agent_without_a_usable_reply_contains_no_code(query, steps):
    episode = make_episode(
        query, None, outcome=Outcome.AGENT_FAILED, detail="no usable reply", steps=steps
    )
    record = Malt().record(query, episode)
    assert record["LLM code"] == ""
    told = "no usable reply: no code" if steps else "no usable reply"
    assert record["Error"] == record["Verifier-Error"] == told
    assert (record["Result-Correctness"], record["Result-Safety"]) == ("Fail", "Fail")
    silent = Malt().record(query, episode.model_copy(update={"detail": ""}))
    assert silent["Error"]
    assert silent["Verifier-Error"]


def test_latency_excludes_environment_time(query):
    malt = Malt()
    config = malt.config_type()
    assert malt.measures(make_episode(query, RIGHT), config) == {"latency_s": 2.5}
    assert malt.measures(None, config) == {}


def test_number_of_turns_is_always_one():
    malt = Malt()
    assert malt.turns(malt.config_type.parse({"max_iterations": 7})) == 1


def test_every_label_is_drawn_as_often_as_requested():
    malt = Malt()
    config = malt.config_type(num_queries=2, complexity_level=malt.config_type.LEVELS[:4])
    labels = [query.label for query in malt.generate(config, 1)]
    assert sorted(labels) == sorted([*LABELS, *LABELS])


def test_varied_phrasings_have_their_own_version():
    malt = Malt()
    for phrasing, version in (("canonical", "4"), ("varied", "8"), ("held_out", "8")):
        config = malt.config_type(num_queries=1, phrasing=phrasing)
        drawn = next(malt.generate(config, 5))
        assert drawn.version == malt.version_of(config) == version
        assert drawn.id.startswith(f"malt-{version}-")
        _, found, _ = choose_query(malt, config, drawn.id)
        assert (found.start_index, found.end_index) == (0, 1)
        # if no phrasing is set, the command uses that of the query
        _, found, _ = choose_query(malt, malt.config_type(num_queries=1), drawn.id)
        assert found.phrasing == phrasing
    # without these keys, the message lists the versions of each phrasing
    with pytest.raises(ConfigError, match=r"with other keys.*version 8 is for phrasing varied"):
        choose_query(malt, malt.config_type(), "malt-8-00000000-5-0")
    with pytest.raises(ConfigError, match=r"lacks \(it has 4 for phrasing canonical, 8 for "):
        choose_query(malt, malt.config_type(), "malt-1-00000000-5-0")


def test_varied_phrasings_of_the_previous_version_are_refused(tmp_path: Path) -> None:
    """An older release may have drawn such a query with another version of the generator."""
    malt = Malt()
    gone = "by version 4 of the generator, which this release has only for phrasing canonical"
    config = malt.config_type(num_queries=1, phrasing="varied")
    old = next(malt.generate(config, 5)).model_copy(update={"version": "4"})
    old = old.model_copy(update={"id": old.id.replace("malt-8-", "malt-4-")})
    for given in (config, malt.config_type(num_queries=1)):  # both with the key set and without it
        with pytest.raises(ConfigError, match=f"--query: {old.id} was drawn {gone}: use the rel"):
            choose_query(malt, given, old.id)
    queries = tmp_path / "queries.jsonl"
    queries.write_text(old.model_dump_json() + "\n")
    asked = config.model_copy(update={"seed": 5, "benchmark_path": str(queries)})
    with pytest.raises(
        ConfigError, match=f"benchmark_path: queries.jsonl was drawn {gone}; use the"
    ):
        list(choose_queries(malt, asked)[0])


def test_prompt_states_the_enforced_limits(query):
    prompt = render(PromptStyle.ZEROSHOT_BASE, Malt().prompt(query, None, ()))
    for told in (
        f"{MAX_CODE_CHARS} characters",
        f"{LIMITS.cpu_s:g} s of",
        f"{LIMITS.wall_s:g} s of elapsed time",
        f"{LIMITS.memory_bytes >> 20} MiB of memory",
        f"{LIMITS.result_bytes >> 20} MiB as JSON",
        f"{MAX_DATA_BYTES >> 10} KiB as JSON",
        f"{MAX_DATA_VALUES} values",
        f"{MAX_DEPTH} levels",
    ):
        assert told in prompt
