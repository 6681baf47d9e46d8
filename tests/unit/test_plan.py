"""Options that size a run before it starts: ``--estimate``, ``--fraction`` and ``--max-cost``."""

from __future__ import annotations

import json
import re
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
from netarena_toy import Toy
from stage import Fragile, fail_at

from netarena.agent.interface import AGENT_GROUP
from netarena.cli import main
from netarena.cli.estimate import Asked, estimate, take_sample
from netarena.cli.model import Model, find_model, price_of, read_prices, tokenizer
from netarena.cli.plan import Plan
from netarena.errors import ConfigError

PARTY = """
[[participants]]
role = "{role}"
exec = "{program}"
env = {{ MODEL_NAME = "{model}" }}
config = {{ prompt_type = "{style}" }}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MODEL_NAME", raising=False)


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the named agent ``asker``, which another package provides."""
    asker = EntryPoint("asker", "asker.agent:Asker", AGENT_GROUP)
    monkeypatch.setattr(
        "netarena.agent.interface.entry_points",
        lambda group: [*entry_points(group=group), *[asker] * (group == AGENT_GROUP)],
    )


def write(name: str, *parties: tuple[str, str, str, str], config: str = "") -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    keys = ("role", "program", "model", "style")
    told = "".join(PARTY.format(**dict(zip(keys, party, strict=True))) for party in parties)
    path.write_text(
        f'[green_agent]\napplication = "toy"\n{told}\n[config]\nnum_queries = 4\nseed = 7\n{config}'
    )
    return name


def estimated(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["run", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("fraction", "number", "asked"),
    [(0.02, 417, 8), (0.02, 150, 3), (0.02, 134, 3), (0.001, 10, 1), (1.0, 134, 134), (None, 5, 5)],
)
def test_fraction_selects_the_same_share_of_each_label(
    fraction: float | None, number: int, asked: int
) -> None:
    assert Plan(fraction=fraction).part({"num_queries": number})["num_queries"] == asked


def test_run_with_a_fraction_can_be_resumed_to_the_whole_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["run", "toy", "--seed", "7", "--num-queries", "4", "--out", "run"]
    assert main([*command, "--fraction", "0.5"]) == 0
    part = json.loads(Path("run/results.json").read_text())["results"]
    assert part[-1]["graded"] == 6
    assert main([*command, "--resume"]) == 0
    whole = json.loads(Path("run/results.json").read_text())["results"]
    assert whole[-1]["graded"] == 12
    assert {one["id"] for one in part[:-1]} < {one["id"] for one in whole[:-1]}
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["toy", "--fraction", "0"], "--fraction"),
        (["toy", "--fraction", "0.5", "--set", "end_index=2"], "cannot be combined with end_index"),
        (["toy", "--price", "1"], "--price: must be IN,OUT or ROLE=IN,OUT in USD per million"),
        (["toy", "--price", "1,2"], "--price: is allowed only with --estimate or --max-cost"),
        (
            ["toy", "--agent-exec", "true", "--max-cost", "1"],
            "MODEL_NAME is not set: give it in USD per million tokens with --price toy_operator=",
        ),
        (["toy", "--agent", "http://127.0.0.1:1", "--max-cost", "1"], "at a URL does not name its"),
        (["toy", "--estimate-from", "none", "--agent", "oracle"], "does not exist"),
    ],
)
def test_wrong_plan_is_refused_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_estimate_sends_no_prompt_and_counts_calls(capsys: pytest.CaptureFixture[str]) -> None:
    told = estimated(
        ["toy", "--agent-exec", "false", "--num-queries", "10", "--estimate", "--price", "1,2"],
        capsys,
    )
    (row,) = told["agents"]
    assert (row["queries"], row["turns"], row["calls"]) == (30, 8.75, 262)
    assert row["cost_usd"] == pytest.approx(
        (row["input_tokens"] + 2 * row["output_tokens"]) / 1e6, rel=1e-3
    )
    assert row["input_tokens"] > row["calls"] * 20
    assert told["harness_s"] > 0
    assert told["disk_bytes"] > 1000
    assert not Path("netarena-runs").exists()


def test_estimate_of_a_scenario_uses_the_prompt_type_of_each_participant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write("a.toml", ("plain", "x", "", "zeroshot_base"), ("cot", "x", "", "zeroshot_cot"))
    told = estimated([path, "--estimate", "--fraction", "0.5"], capsys)
    plain, cot = told["agents"]
    assert (plain["queries"], plain["prompt_type"], cot["prompt_type"]) == (
        6,
        "zeroshot_base",
        "zeroshot_cot",
    )
    assert cot["input_tokens"] > plain["input_tokens"]
    assert cot["cost_usd"] is None
    assert main(["run", path, "--estimate"]) == 0
    out = capsys.readouterr().out
    reason = "2 of 2 costs unknown: MODEL_NAME is not set (set it with --price)"
    assert f"Total: {reason}; " in out
    assert out.count("unknown") >= 2


def test_estimate_from_an_earlier_run_uses_its_turns(capsys: pytest.CaptureFixture[str]) -> None:
    usage = json.dumps({"usage": {"input_tokens": 9, "output_tokens": 77}})
    report = f"echo '{usage}' >&2; echo open v1"
    Path("agent.sh").write_text(report)
    command = ["run", "toy", "--agent-exec", "sh agent.sh", "--out", "run", "--set"]
    assert main([*command, "max_iterations=2"]) == 0
    capsys.readouterr()
    stored = json.loads(Path("run/results.json").read_text())["results"][-1]
    told = estimated(["toy", "--estimate-from", "run"], capsys)
    (row,) = told["agents"]
    assert row["turns"] == round(stored["avg_iterations"], 2) <= 2
    assert row["output_tokens"] == pytest.approx(77 * row["calls"], rel=0.01)


def test_output_tokens_of_an_earlier_run_apply_only_to_agents_with_its_prompt_type(
    capsys: pytest.CaptureFixture[str],
) -> None:
    usage = json.dumps({"usage": {"input_tokens": 9, "output_tokens": 7777}})
    Path("agent.sh").write_text(f"echo '{usage}' >&2; echo open v1")
    command = ["run", "toy", "--agent-exec", "sh agent.sh", "--out", "run", "--num-queries", "1"]
    assert main([*command, "--set", "prompt_type=react", "--set", "max_iterations=1"]) == 0
    capsys.readouterr()
    path = write("a.toml", ("plain", "x", "", "zeroshot_base"), ("react", "x", "", "react"))
    plain, react = estimated([path, "--estimate-from", "run"], capsys)["agents"]
    assert plain["output_tokens"] < 100 * plain["calls"]
    assert react["output_tokens"] == pytest.approx(7777 * react["calls"], rel=0.01)
    # other applications have other numbers of turns and other replies
    assert main(["run", "malt", "--estimate-from", "run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--estimate-from: run is a run of toy, not of malt" in line


def test_sample_is_drawn_from_all_labels_if_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netarena.cli.estimate.SAMPLE", 1)
    labels: set[str] = set()
    for seed in range(1, 5):
        (one,) = take_sample(Toy(), Toy.config_type.parse({"seed": seed, "end_index": 1})).episodes
        labels.add(one.label)
    assert len(labels) > 1


def test_estimate_without_a_playable_query_is_refused() -> None:
    broken = Fragile(fail_at("open", tries=9))
    config = Toy.config_type.parse({"seed": 7})
    with pytest.raises(ConfigError, match="--estimate: no query of the sample could be run on"):
        estimate(broken, [Asked("toy_operator", Model(), config)], {})


def test_series_that_max_cost_ended_can_be_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one/a.toml", "two/a.toml"):
        write(name, ("r", "echo open v1", "m", "react"), config="max_iterations = 1\n")
    Path("all.toml").write_text('scenarios = ["one/a.toml", "two/a.toml"]')
    command = ["run", "all.toml", "--price", "1000,0"]
    assert main([*command, "--max-cost", "2"]) == 0
    err = capsys.readouterr().err
    assert "--max-cost 2 ended the run: 1." in err
    assert "the same command with --out netarena-runs/all --resume continues" in err
    first, second = (Path(f"netarena-runs/all/{name}-a/results.json") for name in ("one", "two"))
    summary = json.loads(first.read_text())["results"][-1]
    assert not summary["complete"]
    assert summary["config"]["prompt_type"] == "react"
    assert not second.exists()
    assert main([*command, "--max-cost", "99", "--resume"]) == 0
    for path in (first, second):
        assert json.loads(path.read_text())["results"][-1]["complete"]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("command", "env", "model"),
    [
        ("netarena-purple --model a/b --port 1", {}, Model("a/b")),
        ("netarena-purple --model=a", {"MODEL_NAME": "c"}, Model("a")),
        ("netarena-purple", {"MODEL_NAME": "${MINE}"}, Model("m")),
        ("netarena-purple", {}, Model("here")),
        ("netarena-purple --strategy oracle", {}, Model(free=True)),
        ("netarena-purple --parameter max_tokens=90 --model a", {}, Model("a", max_tokens=90)),
        (
            "netarena-purple",
            {"MODEL_NAME": "${NONE}"},
            Model(unknown="NONE is not set in the environment"),
        ),
        ("python mine.py", {}, Model("here")),
        ("python mine.py", {"MODEL_NAME": "a"}, Model("a")),
        ("python mine.py", {"MODEL_NAME": "${MINE}"}, Model("m")),
        ("python mine.py --model b", {"MODEL_NAME": ""}, Model("here")),
        ("python -m a2a_purple --model b", {}, Model("b")),
        ("netarena-purple --strategy react --model a", {}, Model("a")),
        (None, {}, Model(unknown="MODEL_NAME is not set")),
    ],
)
def test_model_of_an_agent_is_read_from_its_command(
    command: str | None, env: dict[str, str], model: Model
) -> None:
    assert find_model(command, env, {"MINE": "m", "MODEL_NAME": "here"}) == model


def test_named_agent_of_another_package_does_not_count_as_free_of_charge(
    others: None, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["toy", "--agent", "asker", "--seed", "7"]
    assert main(["run", *command, "--max-cost", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the agent asker does not name its model: give it in USD per million tokens" in line
    (row,) = estimated([*command, "--estimate"], capsys)["agents"]
    assert (row["model"], row["cost_usd"]) == ("unknown", None)
    (row,) = estimated(["toy", "--agent", "oracle", "--estimate"], capsys)["agents"]
    assert (row["model"], row["cost_usd"]) == ("none", 0.0)


def test_all_pages_state_the_same_cost_limit_for_a_fraction_of_the_paper() -> None:
    root = Path(__file__).parents[2]
    pages = [*(root / "docs").glob("*.md"), root / "scenarios" / "paper.toml"]
    command = re.compile(r"scenarios/paper\.toml --fraction 0\.02 --max-cost (\d+)")
    limits = [limit for page in pages for limit in command.findall(page.read_text())]
    assert len(limits) == 3
    assert len(set(limits)) == 1


def test_prices_come_from_the_option_or_litellm() -> None:
    stated = read_prices(("3,4", "b=1,2"))
    assert price_of("b", Model("x"), stated) == price_of("b", Model("y"), {None: (1e-6, 2e-6)})
    with pytest.raises(ConfigError, match="not 'b=1'"):
        read_prices(("b=1",))
    pytest.importorskip("litellm")
    known = price_of("r", Model("openai/gpt-4o"), {})
    assert known is not None
    assert known.input_usd > 0
    assert known.max_output_tokens == 16_384
    assert price_of("r", Model("openai/of-nobody"), {}) is None
    count, own = tokenizer(Model("openai/gpt-4o"))
    assert (count("the network of r0"), own) == (5, True)
    assert tokenizer(Model("deepinfra/Qwen/Qwen2.5-72B-Instruct"))[1] is False
