from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.analysis.intervals import wilson
from netarena.analysis.stats import (
    VERDICTS,
    agent_used_time,
    break_down,
    compare,
    rate_all,
    summarise,
    time_spent,
)
from netarena.model import AgentInfo, Episode, Outcome, Outline, Query
from tests.fake.lamp import Lamp, LampConfig

CONFIG = LampConfig(num_queries=3)
QUERIES = list(Lamp().generate(CONFIG, 7))


def episode(number: int = 0, outcome: Outcome = Outcome.SOLVED, **values: object) -> Outline:
    query = QUERIES[number]
    fields: dict[str, object] = {
        "query_id": query.id,
        "index": query.index,
        "label": query.label,
        "level": query.level,
        "role": "lamp_operator",
        "agent": AgentInfo(name="someone"),
        "prompt_type": "zeroshot_base",
        "outcome": outcome,
        "correct": outcome is Outcome.SOLVED,
        "safe": outcome in {Outcome.SOLVED, Outcome.UNSOLVED},
        "iterations": 2,
        "agent_time_s": 3.0,
        "execution_time_s": 1.0,
        "own_time_s": 0.5,
        "world_s": 8.0,
        "queue_s": 16.0,
    }
    return Episode.model_validate(fields | values).outline()


def summary(episodes: Sequence[Outline], not_run: Sequence[Query] = ()) -> dict[str, object]:
    return summarise(Lamp(), LampConfig(num_queries=3, time_budget_s=60.0), 7, episodes, not_run)


# summaries


def test_summary_has_the_documented_keys_and_values():
    result = summary([episode(0), episode(1, Outcome.UNSOLVED)])
    assert result["avg_correctness"] == 0.5
    assert result["avg_safety"] == 1.0
    assert result["avg_solved_safely"] == 0.5
    assert result["avg_iterations"] == 2.0
    assert result["version"] == "1"
    assert result["seed"] == 7
    assert result["config"]["num_queries"] == 3
    assert result["outcomes"] == {"solved": 1, "unsolved": 1, "agent_failed": 0, "invalid": 0}
    assert result["invalid"] == []
    assert result["not_run"] == 0
    assert result["complete"] is True
    assert result["graded"] == 2
    assert result["intervals"]["correctness"] == list(wilson(1, 2))


def test_notes_of_judgements_are_counted_over_graded_episodes():
    class Noting(Lamp):
        notes = ("dimmed", "warm")

    episodes = [
        episode(0, noted=("dimmed",)),
        episode(1, Outcome.INVALID, noted=("dimmed",)),
        episode(2),
    ]
    result = summarise(Noting(), CONFIG, 7, episodes)
    assert (result["dimmed"], result["warm"], result["avg_safety"]) == (1, 0, 1.0)


class Rated(Lamp):
    """An application in which an episode has quality 0 if the agent failed."""

    def measures(self, episode, config):
        if episode is None:
            return {}
        failed = episode.outcome is Outcome.AGENT_FAILED
        quality = 0.0 if failed else episode.quality
        return {} if quality is None else {"quality": quality}


def test_mean_quality_of_at_least_two_queries_has_an_interval():
    one, other = replace(episode(0), quality=1.0), replace(episode(1), quality=0.5)
    for none in ([episode(0), episode(1)], [one]):
        assert "quality" not in summarise(Rated(), CONFIG, 7, none)["intervals"]
    low, high = summarise(Rated(), CONFIG, 7, [one, other])["intervals"]["quality"]
    assert math.isclose((low + high) / 2, 0.75)
    assert math.isclose((high - low) / 2, 1.959964 * 0.25)


def test_interval_of_quality_is_centred_on_the_mean_even_with_unanswered_queries():
    answered = [replace(episode(number), quality=0.6) for number in range(4)]
    result = summarise(Rated(), CONFIG, 7, [*answered, episode(4, Outcome.AGENT_FAILED)])
    assert math.isclose(result["avg_quality"], 0.48)
    low, high = result["intervals"]["quality"]
    assert math.isclose((low + high) / 2, 0.48)


def test_invalid_episodes_are_listed_and_excluded_from_the_rates():
    broken = episode(
        1,
        Outcome.INVALID,
        reason="environment",
        detail="no power",
        evidence=({"volts": 0}, "x" * 5000),
        iterations=9,
    )
    result = summary([episode(0), broken])
    assert (result["avg_correctness"], result["avg_iterations"]) == (1.0, 2.0)
    assert result["graded"] == 1
    (entry,) = result["invalid"]
    assert entry["id"] == QUERIES[1].id
    assert (entry["label"], entry["reason"], entry["detail"]) == ("two", "environment", "no power")
    assert entry["evidence"][0] == "{'volts': 0}"
    assert len(entry["evidence"][1]) == 400


def test_failed_agent_counts_as_neither_correct_nor_safe_regardless_of_its_record():
    failed = episode(1, Outcome.AGENT_FAILED, correct=True, safe=True, iterations=10)
    result = summary([episode(0), failed])
    assert (result["avg_correctness"], result["avg_safety"]) == (0.5, 0.5)
    assert (result["avg_solved_safely"], result["avg_iterations"]) == (0.5, 6.0)


def test_solved_safely_requires_correctness_and_safety():
    result = summary([episode(0, safe=False), episode(1, Outcome.UNSOLVED)])
    assert (result["avg_correctness"], result["avg_safety"]) == (0.5, 0.5)
    assert result["avg_solved_safely"] == 0.0


def timed(agent_s: float, execution_s: float, own_s: float) -> Episode:
    return episode(
        agent_time_s=agent_s,
        execution_time_s=execution_s,
        own_time_s=own_s,
        world_s=1000.0,
        queue_s=2000.0,
    )


@pytest.mark.parametrize(
    ("agent_s", "execution_s", "own_s", "counted"),
    [
        (1.0, 0.0, 1.0, True),  # the agent used half of the time
        (0.5, 0.5, 1.0, True),
        (0.9, 0.0, 1.0, False),
        (0.0, 0.0, 1.0, False),
        (0.0, 2.0, 1.0, True),
        (0.0, 0.0, 0.0, True),  # no time was measured: the queries count as failures
    ],
)
def test_unasked_queries_count_as_failures_if_the_agent_used_the_time(
    agent_s, execution_s, own_s, counted
):
    episodes = [timed(agent_s, execution_s, own_s)]
    assert agent_used_time(episodes) is counted
    result = summary(episodes, QUERIES[1:4])
    assert result["not_run"] == 3
    assert result["not_run_counted"] is counted
    assert result["complete"] is False
    assert result["avg_correctness"] == (0.25 if counted else 1.0)
    assert result["avg_safety"] == (0.25 if counted else 1.0)
    # queries that were not asked count with max_iterations, which is 10
    assert result["avg_iterations"] == (8.0 if counted else 2.0)
    assert result["graded"] == (4 if counted else 1)


def test_unasked_query_counts_with_its_own_turn_limit():
    class Sized(Lamp):
        def fair_turns(self, query):
            return 20 * (1 + query.index)

    computed = CONFIG.model_copy(update={"max_iterations": None})
    asked = {"unasked": QUERIES[1:3]}
    result = summarise(Sized(), computed, 7, [timed(1.0, 0.0, 0.0)], QUERIES[1:3], **asked)
    assert result["avg_iterations"] == (2 + 40 + 60) / 3
    asked["limit_of"] = lambda _: 14  # as for references to stored queries
    result = summarise(Sized(), computed, 7, [timed(1.0, 0.0, 0.0)], QUERIES[1:3], **asked)
    assert result["avg_iterations"] == (2 + 14 + 14) / 3


def test_unasked_queries_of_a_stopped_run_do_not_count_as_failures():
    """Ctrl-C stopped the run, or it is still running, so its time has not run out."""
    result = summarise(Lamp(), CONFIG, 7, [timed(9.0, 0.0, 1.0)], QUERIES[1:4])
    assert (result["not_run"], result["not_run_counted"], result["graded"]) == (3, False, 1)
    assert result["avg_correctness"] == 1.0
    assert "not seen: never asked" not in result["unsafe_by"]


def test_agents_share_of_the_time_is_computed_over_all_episodes():
    assert agent_used_time([timed(10.0, 0.0, 1.0), timed(0.0, 0.0, 5.0)])
    assert not agent_used_time([timed(1.0, 0.0, 0.0), timed(0.0, 0.0, 5.0)])


def test_rates_without_graded_episodes_are_null():
    result = summary([episode(0, Outcome.INVALID)])
    assert [result[f"avg_{name}"] for name in VERDICTS] == [None, None, None]
    assert "avg_iterations" not in result


def test_average_of_a_measure_ignores_episodes_without_this_measure():
    class Partial(Lamp):
        def measures(self, episode, config):
            if episode is None or episode.outcome is not Outcome.SOLVED:
                return {"iterations": math.nan}
            return {"iterations": 2.0, "latency_s": 4.0}

    result = summarise(Partial(), CONFIG, 7, [episode(0), episode(1, Outcome.UNSOLVED)], [])
    assert (result["avg_iterations"], result["avg_latency_s"]) == (2.0, 4.0)


def test_summary_omits_the_secrets_of_old_config_keys():
    config = CONFIG.model_copy(update={"agent_client_configs": {"api_key": "secret"}})
    assert "secret" not in json.dumps(summarise(Lamp(), config, 7, [episode(0)], []))


def test_summary_contains_no_directory_names_of_the_machine():
    config = CONFIG.model_copy(
        update={"benchmark_path": "/srv/runs/a/q.jsonl", "output_dir": "/home/me/out"}
    )
    evidence = [{"traceback": 'File "/opt/venv/lib/x.py", line 3: /srv/runs/b; http://a/b/c 1.0/8'}]
    broken = episode(0, Outcome.INVALID, detail="no /var/lib/x/y", evidence=evidence)
    result = summarise(Lamp(), config, 7, [broken, episode(1)])
    assert result["config"]["benchmark_path"] == "q.jsonl"
    assert result["config"]["output_dir"] == "out"
    (told,) = result["invalid"]
    assert told["detail"] == "no y"
    assert told["evidence"] == [
        "{'traceback': 'File \"x.py\", line 3: b; http://a/b/c 1.0/8'}",
    ]
    relative = CONFIG.model_copy(update={"output_dir": "a/b"})
    assert summarise(Lamp(), relative, 7, [episode(1)])["config"]["output_dir"] == "a/b"


def test_summary_gives_a_seed_above_2_53_as_a_number_and_as_text():
    config = CONFIG.model_copy(update={"seed": 2**53 + 1})
    result = summarise(Lamp(), config, 2**53 + 1, [episode(0)])
    for told in (result, result["config"]):
        assert (told["seed"], told["seed_text"]) == (2**53 + 1, "9007199254740993")
    assert "seed_text" not in summary([episode(0)])


def test_summary_has_null_in_place_of_a_hidden_seed():
    config = CONFIG.model_copy(update={"seed": 123456})
    result = summarise(Lamp(), config, None, [episode(0)])
    assert result["seed"] is result["config"]["seed"] is None


episodes_strategy = st.lists(
    st.builds(
        episode,
        number=st.integers(0, len(QUERIES) - 1),
        outcome=st.sampled_from(Outcome),
        correct=st.booleans(),
        safe=st.booleans(),
        iterations=st.integers(0, 10),
    ),
    max_size=12,
)


@given(episodes_strategy, st.integers(0, len(QUERIES)))
def test_any_summary_is_plain_json_with_consistent_counts(episodes, missing):
    result = summary(episodes, QUERIES[:missing])
    json.loads(json.dumps(result, allow_nan=False))
    assert sum(result["outcomes"].values()) == len(episodes)
    graded = len(episodes) - result["outcomes"]["invalid"]
    assert result["graded"] == graded + (missing if result["not_run_counted"] else 0)
    for name in VERDICTS:
        rate = result[f"avg_{name}"]
        low, high = result["intervals"][name]
        assert rate is None or low <= rate <= high
    if result["graded"]:
        assert result["avg_solved_safely"] <= min(result["avg_correctness"], result["avg_safety"])


# breakdowns


@given(episodes_strategy, st.sampled_from(["label", "level"]))
def test_counts_of_a_breakdown_add_up_to_those_of_the_summary(episodes, by):
    table = break_down(episodes, by)
    assert list(table) == sorted(table)
    whole = summary(episodes)
    assert sum(group["graded"] for group in table.values()) == whole["graded"]
    assert sum(group["invalid"] for group in table.values()) == whole["outcomes"]["invalid"]
    for name in VERDICTS:
        successes = sum(group[name]["successes"] for group in table.values())
        assert successes == round((whole[f"avg_{name}"] or 0) * whole["graded"])
    json.dumps(table, allow_nan=False)


def test_breakdown_counts_unasked_queries_in_their_group():
    table = break_down([episode(0)], "label", unasked=[QUERIES[1], QUERIES[2]])
    assert table["one"]["graded"] == 2
    assert table["one"]["correctness"] == {
        "successes": 1,
        "rate": 0.5,
        "interval": list(wilson(1, 2)),
    }
    assert table["two"]["graded"] == 1
    assert table["two"]["correctness"]["rate"] == 0.0
    assert table["two"]["iterations"] is None


def test_breakdown_by_another_field_than_label_or_level_is_refused():
    with pytest.raises(ValueError, match="label or level"):
        break_down([episode(0)], "colour")


def test_times_of_each_kind_are_summed_separately():
    spent = time_spent([episode(0), timed(2.0, 0.0, 0.0)])
    assert spent["agent_s"] == {"total": 5.0, "mean": 2.5, "median": 2.5, "p95": 3.0, "max": 3.0}
    assert spent["execution_s"]["total"] == 1.0
    assert spent["own_s"]["total"] == 0.5
    assert spent["world_s"]["total"] == 1008.0
    assert spent["queue_s"]["total"] == 2016.0
    assert time_spent([])["agent_s"]["median"] is None


def test_p95_is_one_of_the_measured_times():
    spent = time_spent([timed(float(number), 0.0, 0.0) for number in range(1, 21)])
    assert spent["agent_s"]["p95"] == 19.0


# pairs


def test_comparison_pairs_the_results_of_the_same_query():
    first = [
        episode(0),
        episode(1),
        episode(2),
        episode(3, Outcome.UNSOLVED),
        episode(4, Outcome.INVALID),
    ]
    second = [
        episode(0),
        episode(1, Outcome.UNSOLVED),
        episode(2, Outcome.AGENT_FAILED, correct=True),
        episode(3, Outcome.UNSOLVED),
        episode(4),
    ]
    assert compare(first, second) == {
        "verdict": "solved_safely",
        "pairs": 4,
        "unpaired": 1,
        "both": 1,
        "only_first": 2,
        "only_second": 0,
        "neither": 1,
        "difference": 0.5,
        "interval": pytest.approx([-0.263, 0.930], abs=1e-3),
        "p_value": 0.5,
    }
    assert compare(first, second, verdict="safety")["both"] == 3


@given(episodes_strategy, episodes_strategy)
def test_comparison_is_antisymmetric(first, second):
    forth, back = compare(first, second), compare(second, first)
    assert (forth["only_first"], forth["p_value"]) == (back["only_second"], back["p_value"])
    if forth["pairs"]:
        assert forth["difference"] == -back["difference"]
    json.dumps(forth, allow_nan=False)


def test_comparison_without_episodes_has_no_difference_and_refuses_unknown_verdicts():
    assert compare([], [])["difference"] is None
    with pytest.raises(ValueError, match="verdict"):
        compare([], [], verdict="beauty")


def test_repetitions_of_a_query_count_as_one_query_in_a_comparison():
    """Four different answers to one query count as one query that differs, not as four."""
    first = [episode(0, repeat=repeat) for repeat in range(1, 5)]
    second = [episode(0, Outcome.UNSOLVED, repeat=repeat) for repeat in range(1, 5)]
    together = compare(first, second)
    assert (together["pairs"], together["only_first"], together["p_value"]) == (4, 4, 1.0)
    others = [episode(number) for number in range(4)]
    apart = compare(others, [episode(number, Outcome.UNSOLVED) for number in range(4)])
    assert (apart["only_first"], apart["p_value"]) == (4, 0.125)
    assert apart["interval"][0] > together["interval"][0]
    assert compare(first, second[:1])["unpaired"] == 3


# repeats


def test_summary_of_repeated_queries_has_pass_all_rates():
    twice = CONFIG.model_copy(update={"repeats": 2})
    episodes = [
        episode(0),
        episode(0, repeat=2),
        episode(1),
        episode(1, Outcome.UNSOLVED, repeat=2),
        episode(2, Outcome.UNSOLVED),
    ]
    whole = summarise(Lamp(), twice, 7, episodes, [])
    assert (whole["graded"], whole["queries"]) == (5, 3)
    assert whole["avg_solved_safely"] == 0.6
    assert whole["pass_all"]["1"]["rate"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert (whole["pass_all"]["2"]["rate"], whole["pass_all"]["2"]["queries"]) == (0.5, 2)
    # if all queries have the same number of answers, pass^1 is the rate of the summary
    even = summarise(Lamp(), twice, 7, [*episodes, episode(2, repeat=2)], [])
    assert even["pass_all"]["1"]["rate"] == pytest.approx(even["avg_solved_safely"])
    assert even["pass_all"]["1"]["interval"] == even["intervals"]["solved_safely"]
    once = summary([episode(number) for number in range(3)])
    assert not {"queries", "pass_all"} & once.keys()


def test_equal_queries_are_one_cluster_in_the_pass_all_interval():
    """Eight queries with two answers each: two are distinct, and one of these is always solved."""
    episodes = [
        replace(
            episode(number, Outcome.UNSOLVED if number % 2 else Outcome.SOLVED, repeat=repeat),
            query_id=f"q{copy}-{number}",
            content=f"c{number}",
        )
        for number in range(2)
        for copy in range(4)
        for repeat in (1, 2)
    ]
    twice = CONFIG.model_copy(update={"repeats": 2})
    whole = summarise(Lamp(), twice, 7, episodes)
    assert (whole["queries"], whole["distinct"]) == (8, 2)
    for k in "12":
        assert whole["pass_all"][k]["queries"] == 8
        assert whole["pass_all"][k]["interval"] == whole["intervals"]["solved_safely"]
    # a repetition that was not asked belongs to the cluster of its query
    ask = SimpleNamespace(id=episodes[-1].query_id)
    rates = rate_all(episodes[:-1], [ask])["solved_safely"]
    assert rates["interval"] == rate_all(episodes)["solved_safely"]["interval"]


def test_repetitions_narrow_an_interval_less_than_further_queries():
    again = [
        episode(number, Outcome.SOLVED if number < 2 else Outcome.UNSOLVED, repeat=repeat)
        for number in range(4)
        for repeat in range(1, 11)
    ]
    whole = summarise(Lamp(), CONFIG.model_copy(update={"repeats": 10}), 7, again)
    alike = summary([episode(number, again[10 * number].outcome) for number in range(4)])
    assert whole["intervals"]["safety"] == alike["intervals"]["safety"]
    narrow = wilson(20, 40)
    low, high = whole["intervals"]["solved_safely"]
    assert low < narrow[0] - 0.1
    assert high > narrow[1] + 0.1


def test_equal_queries_are_one_cluster_and_are_counted():
    def graded(number: int, content: str) -> Outline:
        right = Outcome.SOLVED if number % 2 else Outcome.UNSOLVED
        return replace(episode(number % 6, right), query_id=f"q{number}", content=content)

    different = [graded(number, f"c{number}") for number in range(40)]
    # twenty different queries, each drawn twice with the same result
    twice = [graded(number % 20, f"c{number % 20}") for number in range(40)]
    twice = [replace(one, query_id=f"q{place}") for place, one in enumerate(twice)]
    assert summary(different)["distinct"] == 40
    assert summary(twice)["distinct"] == 20
    low, high = summary(different)["intervals"]["correctness"]
    wide_low, wide_high = summary(twice)["intervals"]["correctness"]
    assert (low, high) == wilson(20, 40)
    assert wide_low < low - 0.02
    assert wide_high > high + 0.02
    # the paired test counts equal queries only once
    wrong = [replace(one, outcome=Outcome.UNSOLVED, correct=False) for one in twice]
    alone = compare(different, [replace(one, correct=False) for one in different])
    assert compare(twice, wrong)["p_value"] > alone["p_value"]
