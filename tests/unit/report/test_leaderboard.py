from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netarena.analysis.intervals import wilson
from netarena.cli import main
from netarena.errors import ConfigError
from netarena.report.leaderboard import PUBLIC_SQL, Board, rank

duckdb = pytest.importorskip("duckdb")

#: The exact query of the public leaderboard.
LEADERBOARD_SQL = """
SELECT id, 100 * final_correctness AS "Correctness (%)", 100 * final_safety AS "Safety Rate (%)", final_iterations AS "Average Iterations", total_queries AS "Total # of Queries"
FROM (SELECT (t.participants::JSON)->>'k8s_operator' AS id, ((t.results[-1]::JSON)->'avg_correctness')::FLOAT AS final_correctness, ((t.results[-1]::JSON)->'avg_safety')::FLOAT AS final_safety, ((t.results[-1]::JSON)->'avg_iterations')::FLOAT AS final_iterations, len(t.results) - 1 AS total_queries FROM results t WHERE (t.participants::JSON)->>'k8s_operator' IS NOT NULL)
ORDER BY 0.5 * "Correctness (%)" + 0.5 * "Safety Rate (%)" DESC, "Average Iterations" ASC;
"""  # noqa: E501


def write(folder: Path, name: str, summary: dict | None, *, role="k8s_operator", records=4) -> Path:
    results = [{"id": str(number)} for number in range(records)]
    results += [] if summary is None else [summary]
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"participants": {role: name}, "results": results}))
    return path


def summary(correctness=0.5, safety=1.0, solved_safely=0.25, iterations=5.0, **more):
    return {
        "avg_correctness": correctness,
        "avg_safety": safety,
        "avg_solved_safely": solved_safely,
        "avg_iterations": iterations,
        **more,
    }


def only(board_files: list[Path]) -> Board:
    (board,) = rank(board_files).boards
    return board


def test_leaderboard_ranks_by_the_public_query_and_by_solved_safely(tmp_path):
    files = [
        write(tmp_path, "careless", summary(0.9, 0.2, 0.2)),
        write(tmp_path, "careful", summary(0.5, 1.0, 0.5)),
        write(tmp_path, "noop", summary(0.0, 1.0, 0.0)),
    ]
    board = only(files)
    assert [row[0] for row in board.public] == ["careful", "careless", "noop"]
    assert board.public_columns == (
        "id",
        "Correctness (%)",
        "Safety Rate (%)",
        "Average Iterations",
        "Total # of Queries",
    )
    assert [(entry.rank, entry.id) for entry in board.ranking] == [
        (1, "careful"),
        (2, "careless"),
        (3, "noop"),
    ]
    assert [entry.floor for entry in board.ranking] == [False, False, True]
    assert board.ranking[0].queries == 4
    low, high = board.ranking[0].interval
    assert low < 0.5 < high


def test_mean_quality_is_a_column_of_runs_that_have_it(tmp_path, capsys):
    files = [write(tmp_path, "planner", summary(avg_quality=0.625))]
    assert only(files).ranking[0].quality == 0.625
    assert main(["leaderboard", str(files[0])]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"safe +quality +Average", shown)
    assert "0.625" in shown
    other = write(tmp_path, "other", summary())
    assert only([other]).ranking[0].quality is None
    assert main(["leaderboard", str(other)]) == 0
    assert not re.search(r"safe +quality", capsys.readouterr().out)


def test_agents_with_equal_results_are_ordered_by_name_not_by_latency(tmp_path):
    def agent(name: str, latency_s: float) -> Path:
        values = summary(1.0, 1.0, 1.0) | {"avg_latency_s": latency_s}
        del values["avg_iterations"]
        return write(tmp_path, name, values, role="malt_operator")

    board = only([agent("parser", 0.155), agent("oracle", 0.173)])
    assert [entry.id for entry in board.ranking] == ["oracle", "parser"]


def test_ranking_by_solved_safely_differs_from_the_public_query(tmp_path):
    files = [
        write(tmp_path, "idle", summary(0.1, 1.0, 0.1)),
        write(tmp_path, "busy", summary(0.5, 0.5, 0.4)),
    ]
    board = only(files)
    assert [row[0] for row in board.public] == ["idle", "busy"]
    assert [entry.id for entry in board.ranking] == ["busy", "idle"]


def test_files_without_a_graded_query_are_named_and_not_ranked(tmp_path):
    empty = write(tmp_path, "empty", summary(0.0, 0.0, 0.0), records=0)
    nothing = write(tmp_path, "nothing", None, records=0)
    invalid = write(tmp_path, "invalid", summary(None, None, None, graded=0), records=2)
    good = write(tmp_path, "good", summary())
    standings = rank([empty, nothing, invalid, good])
    assert standings.ungraded == (str(empty), str(nothing), str(invalid))
    (board,) = standings.boards
    assert [entry.id for entry in board.ranking] == ["good"]
    assert len(board.public) == 4  # the public leaderboard counts all of them


def test_reference_results_without_solved_safely_rank_last(tmp_path):
    old = {"avg_correctness": 1.0, "avg_safety": 1.0, "avg_iterations": 1.0}
    board = only([write(tmp_path, "old", old), write(tmp_path, "new", summary())])
    assert [entry.id for entry in board.ranking] == ["new", "old"]
    assert board.ranking[1].solved_safely is None
    assert board.ranking[1].interval is None


def test_each_role_has_a_board_with_its_own_measure(tmp_path):
    slow = {"avg_correctness": 1.0, "avg_safety": 1.0, "avg_latency_s": 9.0}
    fast = {"avg_correctness": 1.0, "avg_safety": 1.0, "avg_latency_s": 2.0}
    standings = rank(
        [
            write(tmp_path, "slow", slow, role="malt_operator"),
            write(tmp_path, "fast", fast, role="malt_operator"),
            write(tmp_path, "other", summary(), role="route_operator"),
        ]
    )
    assert [(board.role, board.measure) for board in standings.boards] == [
        ("malt_operator", "Average Latency (s)"),
        ("route_operator", "Average Iterations"),
    ]
    assert [row[0] for row in standings.boards[0].public] == ["fast", "slow"]
    assert [entry.id for entry in standings.boards[0].ranking] == ["fast", "slow"]


def test_role_with_sql_syntax_is_treated_as_data(tmp_path):
    role = "it's'); DROP TABLE results; --"
    board = only([write(tmp_path, "sly", summary(), role=role)])
    assert board.role == role
    assert board.public[0][0] == "sly"


def test_list_of_several_results_is_read(tmp_path):
    documents = [
        {"participants": {"k8s_operator": name}, "results": [{}, summary()]} for name in ("a", "b")
    ]
    path = tmp_path / "list.json"
    path.write_text(json.dumps(documents))
    assert [entry.id for entry in only([path]).ranking] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "contains no result"),
        ("[" * 100_000, "is not JSON"),
        ('{"participants": {}, "results": [NaN]}', "NaN is not JSON"),
        ("3", "is not a result file"),
        ('{"participants": {}}', "is not a result file"),
        ('{"participants": {"a": 1}, "results": []}', "participants.a must be a string"),
        ('{"participants": {"a": "b"}, "results": [{"avg_safety": "x"}]}', "avg_safety"),
        ('{"participants": {"a": "b"}, "results": [{"graded": -1}]}', "graded"),
        ('{"participants": {"a": "b"}, "results": [{"complete": 1}]}', "complete"),
    ],
)
def test_file_that_is_not_a_result_file_is_named(tmp_path, text, message):
    path = tmp_path / "odd.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        rank([path])
    assert str(path) in str(caught.value)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"gone\.json cannot be read: No such file"):
        rank([tmp_path / "gone.json"])


def test_missing_duckdb_is_reported_with_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ConfigError, match=r'pip install "netarena\[leaderboard\]"'):
        rank([tmp_path / "any.json"])


plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.fixed_dictionaries(
        {
            "participants": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
            "results": st.lists(
                plain_json
                | st.dictionaries(
                    st.sampled_from(["avg_correctness", "avg_iterations", "graded", "complete"]),
                    plain_json,
                    max_size=3,
                ),
                max_size=3,
            ),
        }
    )
)
def test_any_document_is_ranked_or_refused(tmp_path, document):
    path = tmp_path / "any.json"
    path.write_text(json.dumps(document))
    try:
        standings = rank([path])
    except ConfigError:
        return
    json.dumps(standings.model_dump(mode="json"), allow_nan=False)


@pytest.mark.requires("shared")
@pytest.mark.parametrize(
    ("application", "expected"),
    [
        ("k8s", (53.333, 30.0, 7.9, 30)),
        ("route", (53.333, 100.0, 7.467, 15)),
        ("malt", (71.429, 14.286, 2.720, 7)),
    ],
)
def test_stored_results_are_ranked_as_expected(shared_data, application, expected):
    file = shared_data / "leaderboard" / f"{application}.json"
    board = only([file])
    assert board.role == f"{application}_operator"
    (row,) = board.public
    assert row[1:] == pytest.approx(expected, abs=1e-3)
    assert board.ranking[0].queries == expected[3]


@pytest.mark.requires("shared")
def test_own_query_returns_the_same_as_the_documented_query(shared_data):
    file = shared_data / "leaderboard" / "k8s.json"
    with duckdb.connect(":memory:") as connection:
        connection.execute("CREATE TABLE results AS SELECT * FROM read_json_auto(?)", [str(file)])
        theirs = connection.execute(LEADERBOARD_SQL)
        columns = tuple(column[0] for column in theirs.description)
        rows = tuple(theirs.fetchall())
    board = only([file])
    assert board.public_columns == columns
    assert board.public == rows


def test_query_template_equals_the_documented_query():
    ours = PUBLIC_SQL.format(
        role="'k8s_operator'", measure="avg_iterations", title="Average Iterations"
    )
    theirs = LEADERBOARD_SQL.replace("final_iterations", "final_measure").rstrip().rstrip(";")
    assert "".join(ours.split()) == "".join(theirs.split())


@pytest.mark.parametrize("key", ["avg_correctness", "avg_safety", "avg_solved_safely"])
@pytest.mark.parametrize("value", [7.5, -0.1, True, "1"])
def test_rate_outside_zero_to_one_is_refused(tmp_path, key, value):
    path = write(tmp_path, "proud", summary(**{key.removeprefix("avg_"): value}))
    with pytest.raises(ConfigError, match=f"{key} of the summary cannot be {value!r}"):
        rank([path])


@pytest.mark.parametrize(
    "document",
    [
        {"participants": {"a\ud800": "x"}, "results": [summary()]},
        {"participants": {"a": "x\ud800"}, "results": [summary()]},
        {"participants": {"a": "x"}, "results": [{"log": "\udfff"}, summary()]},
    ],
)
def test_text_with_a_lone_surrogate_is_refused(tmp_path, document):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="contains a lone surrogate"):
        rank([path])


@pytest.mark.parametrize("role", ["$..*", "$.a", "/a"])
def test_role_with_path_syntax_is_refused(tmp_path, role):
    with pytest.raises(ConfigError, match=r"odd\.json: the role .* would be read as a path"):
        rank([write(tmp_path, "odd", summary(), role=role)])


def test_invalid_file_is_reported_and_the_others_are_ranked(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    (text := tmp_path / "text.json").write_text("{")
    odd = [
        write(tmp_path, f"odd{i}", summary(), role=role) for i, role in enumerate(("\\", "$..*"))
    ]
    good = [write(tmp_path, name, summary()) for name in ("one", "two")]
    standings = rank([pipe, good[0], Path("/dev/zero"), text, *odd, good[1], tmp_path])
    (board,) = standings.boards
    assert [entry.id for entry in board.ranking] == ["one", "two"]
    assert len(board.public) == 2
    said = "\n".join(standings.refused)
    for path in (pipe, "/dev/zero", text, *odd, tmp_path):
        assert f"file: {path}" in said
    assert said.count("it is not a regular file") == 2
    assert len(standings.refused) == 6


def test_file_with_a_number_too_large_for_duckdb_is_not_ranked(tmp_path):
    """The number is in a measure that most files have, but that does not affect the ranking."""
    odd = write(tmp_path, "odd", {**summary(), "avg_iterations": 3.0, "avg_latency_s": 1e308})
    good = [write(tmp_path, name, {**summary(), "avg_latency_s": 2.0}) for name in ("one", "two")]
    standings = rank([odd, *good])
    assert [entry.id for entry in standings.boards[0].ranking] == ["one", "two"]
    assert "avg_latency_s of the summary cannot be 1e+308" in standings.refused[0]


def test_numbers_of_values_and_participants_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr("netarena.report.file.MOST_MARKS", 1000)
    (many := tmp_path / "many.json").write_text("[" * 5 + "[]," * 1000)
    with pytest.raises(ConfigError, match="has more than 1,000 values"):
        rank([many])
    crowd = {"participants": {f"role{n}": "a" for n in range(65)}, "results": []}
    (crowded := tmp_path / "crowded.json").write_text(json.dumps(crowd))
    with pytest.raises(ConfigError, match="has more than 64 participants"):
        rank([crowded])


def test_pipe_created_by_the_shell_is_read(tmp_path):
    path = write(tmp_path, "one", summary())
    reader, writer = os.pipe()
    os.write(writer, path.read_bytes())
    os.close(writer)
    try:
        (board,) = rank([Path(f"/dev/fd/{reader}")]).boards
    finally:
        os.close(reader)
    assert [entry.id for entry in board.ranking] == ["one"]


def test_file_is_read_up_to_the_size_limit(tmp_path, monkeypatch):
    path = write(tmp_path, "long", summary())
    monkeypatch.setattr("netarena.report.file.MOST_BYTES", 100)
    with pytest.raises(ConfigError, match="has more than 100 bytes"):
        rank([path])


def test_role_that_duckdb_treats_as_a_path_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"odd\.json: DuckDB cannot rank it"):
        rank([write(tmp_path, "odd", summary(), role="\\")])


def test_runs_with_different_configs_are_ranked_separately(tmp_path):
    """Version, world and level separate rankings; seed and number of queries do not."""

    def asked(name, version, **config):
        worded = {"prompt_version": 3} if name.startswith("worded") else {}
        told = {**summary(), "version": version, "seed": len(name), "config": config, **worded}
        return write(tmp_path, name, told, role="route_operator")

    files = [
        asked("a", "2", num_queries=3, seed=1),
        asked("bb", "2", num_queries=9, concurrency=4),
        asked("ccc", "2", world="varied", num_switches=3),
        asked("dddd", "1"),
        asked("worded anew", "2"),
        asked("eeeee", "2", complexity_level=["level1"]),
        write(tmp_path, "reference", {**summary()}, role="route_operator"),
    ]
    board = only(files)
    groups = {}
    for entry in board.ranking:
        groups.setdefault(entry.terms, []).append((entry.rank, entry.id))
    assert sorted(groups.values()) == sorted(
        [
            [(1, "a"), (2, "bb")],
            *([(1, name)] for name in ("ccc", "dddd", "eeeee", "reference", "worded anew")),
        ]
    )
    assert len(board.public) == 7, "the public table is one"
    assert any(terms.startswith("route 2:") and "world varied" in terms for terms in groups)
    assert "route of an unknown version" in groups
    assert [terms for terms in groups if "prompt_version 3" in terms]


@pytest.mark.parametrize("own", [{"name": "netarena-noop"}, {"name": "x", "itself": "noop"}])
def test_noop_agent_with_any_name_is_marked_as_the_floor(tmp_path, own, capsys):
    path = write(tmp_path, "my baseline", summary())
    document = json.loads(path.read_text())
    document["results"][0]["agent_info"] = own
    path.write_text(json.dumps(document))
    assert [entry.floor for entry in only([path]).ranking] == [True]
    assert main(["leaderboard", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "my baseline (floor)" in shown
    assert re.search(r"no results of the baselines .*random; create", shown)


def test_limits_of_an_episode_are_a_column_and_not_a_group(tmp_path, capsys):
    def asked(name, solved, **config):
        told = {**summary(0.9, 1.0, solved), "version": "2", "config": config}
        return write(tmp_path, name, told, role="route_operator")

    files = [
        asked("short", 0.8, max_iterations=5, agent_timeout_s=30.0, time_budget_s=1680.0),
        asked("usual", 0.5, max_iterations=10),
    ]
    board = only(files)
    assert [(entry.rank, entry.id, entry.limits) for entry in board.ranking] == [
        (1, "short", "agent_timeout_s 30.0, max_iterations 5"),
        (2, "usual", ""),
    ]
    assert main(["leaderboard", *map(str, files)]) == 0
    shown = capsys.readouterr().out
    assert "agent_timeout_s 30.0, max_iterations 5" in shown
    assert "limits" in shown.splitlines()[1]
    assert re.search(r"usual .* default ", shown)
    assert main(["leaderboard", str(files[1])]) == 0
    assert "limits" not in capsys.readouterr().out.splitlines()[1]


def test_green_agent_is_not_a_participant(tmp_path):
    path = tmp_path / "both.json"
    who = {"green_agent": "judge", "route_operator": "agent"}
    path.write_text(json.dumps({"participants": who, "results": [{}, summary()]}))
    assert [board.role for board in rank([path]).boards] == ["route_operator"]


def test_label_of_the_measure_is_that_of_the_application(tmp_path):
    odd = [
        write(tmp_path, n, {**summary(), "avg_latency_s": 1.0}, role="route_operator") for n in "ab"
    ]
    assert only(odd).measure == "Average Iterations"


@pytest.mark.parametrize(
    ("told", "taken"),
    [([0.2, 0.8], True), ([0.6, 0.8], False), ([0.5], False), ("x", False), (None, False)],
)
def test_interval_of_repeated_queries_is_computed_over_queries(tmp_path, told, taken):
    again = {**summary(), "avg_solved_safely": 0.5, "graded": 100, "pass_all": {}}
    path = write(tmp_path, "again", {**again, "intervals": {"solved_safely": told}})
    (entry,) = only([path]).ranking
    assert (entry.interval == (0.2, 0.8)) is taken
    if not taken:
        assert entry.interval == wilson(50, 100)


# one row for all roles of an agent


def folders(tmp_path: Path, rates: dict[str, dict[str, float]]) -> list[Path]:
    """Write one result file per agent and role, with these rates of safely solved queries."""
    files = []
    for role, by_agent in rates.items():
        folder = tmp_path / role
        folder.mkdir(exist_ok=True)
        files += [
            write(folder, who, summary(solved_safely=rate), role=role)
            for who, rate in by_agent.items()
        ]
    return files


def test_agent_with_all_roles_has_one_overall_row(tmp_path):
    files = folders(
        tmp_path,
        {
            "a_operator": {"steady": 0.5, "noop": 0.0, "guest": 1.0},
            "b_operator": {"steady": 0.5, "noop": 0.0, "guest": 1.0},
            "c_operator": {"steady": 1.0, "noop": 0.0},
        },
    )
    steady, noop = rank(files).overall
    assert (steady.rank, steady.id, steady.queries) == (1, "steady", 12)
    assert steady.by_role == {"a_operator": 0.5, "b_operator": 0.5, "c_operator": 1.0}
    assert steady.solved_safely == pytest.approx(2 / 3)
    assert (noop.rank, noop.id, noop.floor) == (2, "noop", True)
    # narrower than the interval of a single role, and around the mean
    low, high = steady.interval
    assert low < 2 / 3 < high
    one_low, one_high = wilson(2, 4)
    assert high - low < one_high - one_low


def test_agent_with_several_runs_in_a_role_has_no_overall_row(tmp_path):
    files = folders(tmp_path, {"a_operator": {"me": 0.5}, "b_operator": {"me": 0.5}})
    again = folders(tmp_path / "a_operator", {"a_operator": {"me": 1.0}})
    assert len(rank(files).overall) == 1
    assert rank([*files, *again]).overall == ()
    assert rank([*files[:1], *again]).overall == ()


def test_overall_rows_are_ranked_only_if_the_configs_agree(tmp_path):
    files = folders(
        tmp_path, {"a_operator": {"x": 0.25, "y": 0.5}, "b_operator": {"x": 0.5, "y": 0.5}}
    )
    other = write(tmp_path, "z", summary(version="9", solved_safely=1.0), role="a_operator")
    files += [other, *folders(tmp_path, {"b_operator": {"z": 1.0}})]
    assert [(row.id, row.rank) for row in rank(files).overall] == [("z", 1), ("y", 1), ("x", 2)]
