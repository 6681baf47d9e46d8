from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from netarena.a2a.scenario import Party, compose, read_scenario, read_series
from netarena.cli import main
from netarena.errors import ConfigError
from netarena.task.application import configured, load

ROOT = Path(__file__).parents[3]
EXPERT = ROOT / "scenarios" / "expert.toml"
PAPER = ROOT / "scenarios" / "paper.toml"
SCENARIOS = sorted({*(ROOT / "scenarios").rglob("*.toml")} - {EXPERT, PAPER})
GREEN = '[green_agent]\nendpoint = "http://127.0.0.1:1"\nimage = "green"\n'
PURPLE = '[[participants]]\nrole = "malt_operator"\nendpoint = "http://127.0.0.1:2"\nimage = "p"\n'


def read(tmp_path: Path, text: str):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return read_scenario(path)


def test_local_and_leaderboard_scenarios_are_read(tmp_path):
    local = read(tmp_path, GREEN + 'cmd = "serve"\n' + PURPLE + "[config]\nnum_queries = 2\n")
    assert local.name == "malt-mine"
    assert (local.green.endpoint, local.green.cmd) == ("http://127.0.0.1:1", "serve")
    assert local.endpoints() == {"malt_operator": "http://127.0.0.1:2"}
    assert json.loads(local.request({"malt_operator": "http://x"})) == {
        "participants": {"malt_operator": "http://x"},
        "config": {"num_queries": 2},
    }
    board = read(
        tmp_path,
        '[green_agent]\nagentbeats_id = "g"\n[[participants]]\nname = "malt_operator"\n'
        'agentbeats_id = ""\nimage = "p"\nenv = { KEY = "${SECRET}", N = 3 }\n'
        '[platform]\nanything = "goes"\n',
    )
    (party,) = board.participants
    assert (board.green.agentbeats_id, party.agentbeats_id) == ("g", None)
    assert party.environ({"SECRET": "s"}) == {"KEY": "s", "N": "3"}
    assert board.config == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("green_agent = 1", "green_agent: must be a table [green_agent]"),
        ("[", "is not valid TOML"),
        (PURPLE, "green_agent: must be a table"),
        (GREEN, "participants: must be 1 to 16 tables"),
        (GREEN + "participants = 1", "participants: must be 1 to 16 tables"),
        (GREEN + "[[participants]]\n", "participants[0].role: (or name) must be a string"),
        (GREEN + '[[participants]]\nrole = "../x"\n', "participants[0].role: (or name)"),
        (GREEN + PURPLE + PURPLE, "participants: the role 'malt_operator' is used twice"),
        (GREEN.replace("http", "ftp") + PURPLE, "green_agent.endpoint: must be an http"),
        (GREEN + PURPLE + "cmd = 3\n", "malt_operator.cmd: must be a string, not int"),
        (GREEN + PURPLE + "env = 3\n", "malt_operator.env: must be a table"),
        (GREEN + PURPLE + 'env = { "A B" = "x" }\n', "malt_operator.env: must be a table"),
        (GREEN + PURPLE + 'volumes = "a:/b"\n', "malt_operator.volumes: must be a list"),
        (GREEN + PURPLE + "volumes = [1]\n", "malt_operator.volumes: must be a list"),
        (GREEN + PURPLE + 'volumes = ["a:b"]\n', "malt_operator.volumes: must be a list"),
        (GREEN + PURPLE + 'volumes = ["a:/b:rx"]\n', "malt_operator.volumes: must be a list"),
        (
            GREEN + '[[participants]]\nrole = "r"\nendpoint = "http://h"\nexec = "x"\n',
            "r.exec: is allowed only for a participant that has neither endpoint nor cmd",
        ),
        (
            GREEN + '[[participants]]\nrole = "r"\ncmd = "x"\n',
            "r.endpoint: is missing: give the URL at which the agent that cmd starts will listen",
        ),
        ("config = 3\n" + GREEN + PURPLE, "config: must be a table [config]"),
        (GREEN + PURPLE + "config = 3\n", "malt_operator.config: must be a table of config keys"),
        (
            GREEN + PURPLE + 'prompt_type = "react"\n',
            "malt_operator.prompt_type: belongs in its config: config = { prompt_type =",
        ),
        (GREEN + "config = { seed = 1 }\n" + PURPLE, "green_agent.config: belongs in the table"),
    ],
)
def test_message_about_an_error_in_a_scenario_names_the_key(tmp_path, text, words):
    if text.endswith("participants = 1"):
        text = "participants = 1\n" + GREEN
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)


def test_missing_scenario_file_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_scenario(tmp_path / "none.toml")


def test_message_about_an_unset_environment_variable_contains_its_name():
    with pytest.raises(ConfigError, match=r"r\.env: SECRET is not set in the environment"):
        Party(role="r", env={"KEY": "${SECRET}"}).environ({})


def test_image_without_an_endpoint_cannot_be_run_locally(tmp_path):
    scenario = read(tmp_path, GREEN + '[[participants]]\nname = "r"\nimage = "p"\n')
    with pytest.raises(ConfigError, match=r"participants\.r: has no endpoint: .*netarena compose"):
        scenario.endpoints()
    scenario = read(tmp_path, GREEN + '[[participants]]\nname = "r"\nexec = "p"\n')
    with pytest.raises(ConfigError, match=r"r\.exec: needs application = .NAME."):
        scenario.endpoints()


def test_compose_file_waits_for_healthy_services_and_contains_no_secret(tmp_path):
    env = 'env = { KEY = "${SECRET}", PRICE = "5$" }\n'
    made = compose(read(tmp_path, GREEN + PURPLE + env + '[config]\nprompt_type = "a$b"\n'))
    services = made["services"]
    assert set(services) == {"green-agent", "malt-operator", "assessment"}
    assert services["malt-operator"]["environment"] == {
        "KEY": "${SECRET:?SECRET is not set}",
        "PRICE": "5$$",
    }
    assert "curl" in services["green-agent"]["healthcheck"]["test"]
    assessment = services["assessment"]
    assert assessment["image"] == "green"
    assert set(assessment["depends_on"]) == {"green-agent", "malt-operator"}
    url, request, *_ = assessment["command"]
    assert url == "http://green-agent:9009/"
    assert json.loads(request.replace("$$", "$")) == {
        "participants": {"malt_operator": "http://malt-operator:9009/"},
        "config": {"prompt_type": "a$b"},
    }
    assert "privileged" not in services["green-agent"]


def test_results_of_a_compose_file_use_the_platforms_agent_ids(tmp_path):
    party = '[[participants]]\nimage = "p"\nagentbeats_id = "{}"\nname = "{}"\n'
    scenario = read(tmp_path, GREEN + party.format("019c$1", "first") + party.format("", "other"))
    assert scenario.ids() == {"first": "019c$1"}
    _, request, *options = compose(scenario)["services"]["assessment"]["command"]
    assert set(json.loads(request)["participants"]) == {"first", "other"}
    assert options == ["--out", "/output", "--id", "first=019c$$1"]


def test_volumes_are_mounted_only_in_the_agent_that_declares_them(tmp_path):
    mounts = 'volumes = ["${HOME}/.kube:/kube:ro", "./pay$:/data/pay", "runs:/netarena-runs:rw"]\n'
    services = compose(read(tmp_path, GREEN + mounts + PURPLE))["services"]
    assert services["green-agent"]["volumes"] == [
        "${HOME:?HOME is not set}/.kube:/kube:ro",
        "./pay$$:/data/pay",
        "runs:/netarena-runs:rw",
    ]
    assert "volumes" not in services["malt-operator"]
    assert services["assessment"]["volumes"] == ["./output:/output"]


def test_network_applications_need_a_privileged_container(tmp_path):
    made = compose(read(tmp_path, GREEN + PURPLE.replace("malt", "route")))
    assert made["services"]["green-agent"]["privileged"] is True
    assert "privileged" not in made["services"]["route-operator"]


@pytest.mark.parametrize(
    ("green", "name", "privileged"),
    [
        ('image = "ghcr.io/me/netarena-route:1.0"', "route-mine", True),
        ('image = "netarena-route@sha256:0"', "route-mine", True),
        ('image = "netarena-malt"', "malt-mine", False),
        (
            'image = "g"\ncmd = "netarena serve route --port 1"\nendpoint = "http://x"',
            "route-mine",
            True,
        ),
        ('image = "g"', "first-mine", False),
    ],
)
def test_roles_of_any_name_use_the_application_of_the_green_agent(
    tmp_path, green, name, privileged
):
    parties = "".join(
        f'[[participants]]\nname = "{role}"\nimage = "p"\n' for role in ("first", "b")
    )
    scenario = read(tmp_path, f"[green_agent]\n{green}\n{parties}")
    assert scenario.name == name
    assert compose(scenario)["services"]["green-agent"].get("privileged", False) is privileged


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("scenarios = []", "scenarios: must be a list of 1 to 16 file paths"),
        ("scenarios = [1]", "scenarios: must be a list of 1 to 16 file paths"),
        ('scenarios = "a.toml"', "scenarios: must be a list of 1 to 16 file paths"),
        (
            'scenarios = ["a.toml"]\n' + GREEN,
            "scenarios: must be the only key: move green_agent into",
        ),
        ('scenarios = ["a.toml", "a.toml"]', "scenarios: lists a.toml twice: use repeats"),
        ('scenarios = ["a.toml", "a"]', "scenarios: two files have the same path apart from"),
        ('scenarios = ["none.toml"]', "none.toml cannot be read"),
        ('scenarios = ["mine.toml"]', "scenarios: "),
    ],
)
def test_error_in_a_series_file_is_reported(tmp_path, text, words):
    for name in ("a.toml", "b/a.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(GREEN + PURPLE)
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_series(tmp_path / "mine.toml")


def test_series_file_is_accepted_only_by_run(tmp_path, capsys):
    (tmp_path / "one.toml").write_text(GREEN + PURPLE)
    (tmp_path / "all.toml").write_text('scenarios = ["one.toml"]')
    assert read_series(tmp_path / "one.toml") == {}
    assert list(read_series(tmp_path / "all.toml")) == ["one"]
    assert main(["compose", str(tmp_path / "all.toml")]) == 2
    assert "lists other scenario files; only `netarena run" in capsys.readouterr().err


def test_files_of_the_same_name_have_separate_folders(tmp_path):
    for name in ("a.toml", "x/a.toml", "y/z/a.toml", "y/b.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(GREEN + PURPLE)
    both = tmp_path / "both.toml"
    both.write_text('scenarios = ["a.toml", "x/a.toml", "y/z/a.toml"]')
    assert list(read_series(both)) == ["a", "x-a", "z-a"]
    # names that are already unique do not change
    both.write_text('scenarios = ["x/a.toml", "y/b.toml"]')
    assert list(read_series(both)) == ["a", "b"]


def test_request_contains_the_config_of_each_participant(tmp_path):
    own = 'config = { prompt_type = "react" }\n'
    scenario = read(tmp_path, GREEN + PURPLE + own)
    assert scenario.own() == {"malt_operator": {"prompt_type": "react"}}
    request = json.loads(scenario.request({"malt_operator": "http://h"}))
    assert request["participant_config"] == scenario.own()


def test_paper_scenarios_have_the_papers_sizes_and_agents():
    series = read_series(PAPER)
    assert list(series) == ["malt", "route", "k8s"]
    sizes = {}
    for name, one in series.items():
        application = load(name)
        config = application.config_type.parse(dict(one.config))
        sizes[name] = (len(application.labels(config)), config.num_queries)
        styles = [config.with_own(*entry).prompt_type.value for entry in one.own().items()]
        cot, shots = "zeroshot_cot", "fewshot_base"
        assert styles == [cot, shots, "react", cot, shots]
        given = {"PAPER_GPT4O": "g", "PAPER_QWEN": "q"}
        models = [party.environ(given)["MODEL_NAME"] for party in one.participants]
        assert models == ["g", "g", "g", "q", "q"]
    assert sizes == {"malt": (12, 417), "route": (15, 150), "k8s": (15, 134)}


def test_scenarios_of_a_series_run_one_after_another(tmp_path, monkeypatch, capsys):
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    party = '[[participants]]\nrole = "{}"\nagentbeats_id = "me"\nexec = "{}"\n'
    for name, green, program in (
        ("first", "toy", "false"),
        ("broken", "none", "true"),
        ("second", "toy", "echo open v1"),
    ):
        Path(f"{name}.toml").write_text(
            f'[green_agent]\napplication = "{green}"\n{party.format(f"{name}_r", program)}'
            "[config]\nend_index = 1\nmax_iterations = 1\nseed = 7\n"
        )
    Path("all.toml").write_text('scenarios = ["first.toml", "broken.toml", "second.toml"]')
    # a scenario that cannot run, or whose agent does not reply, does not stop the others
    assert main(["run", "all.toml", "--json"]) != 0
    out, err = capsys.readouterr()
    assert "warning: none-broken: " in err
    assert "warning: toy-first: " in err
    document = json.loads(Path("netarena-runs/all/second/results.json").read_text())
    assert json.loads(out) == document
    assert document["participants"] == {"second_r": "me"}
    Path("first.toml").write_text(Path("first.toml").read_text().replace("false", "echo look"))
    Path("all.toml").write_text('scenarios = ["first.toml", "second.toml"]')
    assert main(["run", "all.toml"]) == 0
    files = [f"netarena-runs/all/{name}/results.json" for name in ("first", "second")]
    capsys.readouterr()
    assert main(["leaderboard", *files, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["overall"]
    assert (row["id"], row["queries"]) == ("me", 2)
    assert main(["leaderboard", *files]) == 0
    assert "all roles: ranked by the mean of the rates solved safely" in capsys.readouterr().out


def test_agent_with_only_an_id_needs_an_image(tmp_path):
    text = '[green_agent]\nimage = "g"\n[[participants]]\nname = "r"\nagentbeats_id = "7"\n'
    with pytest.raises(ConfigError, match=r"r\.image: is missing \(id 7\): .*--image r=IMAGE"):
        compose(read(tmp_path, text))
    assert compose(read(tmp_path, text), image="i")["services"]["r"]["image"] == "i"
    with pytest.raises(
        ConfigError, match="all agents already have an image: to replace one, write ROLE=i"
    ):
        compose(read(tmp_path, text), image="i", images={"r": "own"})


def test_images_given_by_role_override_those_of_the_scenario_file(tmp_path, capsys):
    path = tmp_path / "board.toml"
    path.write_text(
        '[green_agent]\nagentbeats_id = "g"\n[[participants]]\nname = "malt_operator"\n'
        '[[participants]]\nname = "other"\nimage = "own"\n'
    )

    def images(*given):
        options = [word for text in given for word in ("--image", text)]
        assert main(["compose", str(path), *options]) == 0
        services = yaml.safe_load(capsys.readouterr().out)["services"]
        return [services[name]["image"] for name in ("green-agent", "malt-operator", "other")]

    green, purple = "green_agent=host:5000/g:1", "malt_operator=p@sha256:0"
    assert images(green, purple) == ["host:5000/g:1", "p@sha256:0", "own"]
    assert images(green, "rest", "other=new") == ["host:5000/g:1", "rest", "new"]
    for wrong, words in (
        (
            "malt_oprator=p",
            "role 'malt_oprator' is not one of green_agent, malt_operator, other; did you mean ",
        ),
        ("=p", "must be IMAGE or ROLE=IMAGE, not '=p'"),
        ("other=", "must be IMAGE or ROLE=IMAGE, not 'other='"),
        ("green_agent=g2", "the role 'green_agent' has two images"),
    ):
        assert main(["compose", str(path), "--image", green, "--image", wrong]) == 2
        assert f"--image: {words}" in capsys.readouterr().err


# scenario files of the project


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SCENARIOS, ids=name_of)
def test_config_of_each_scenario_is_accepted_by_its_application(path):
    scenario = read_scenario(path)
    name = scenario.application or scenario.participants[0].role.removesuffix("_operator")
    application = load(name)
    config = application.config_type.parse(dict(scenario.config))
    if scenario.application is None:
        assert [party.role for party in scenario.participants] == [application.role]
    # demonstrations may use known worlds; scenarios for rankings must not
    unseen = application.baselines.solved_unseen_by(config)
    # the paper's scenarios keep the paper's worlds
    known = path.stem in {"smoke", "compare"} or path.parent.name == "paper"
    assert (unseen is None) == (not known)
    if path.stem in {"smoke", "standard", "large"}:
        one_each = config.model_copy(update={"num_queries": 1})
        labels = sum(1 for _ in application.generate(one_each, 1))
        assert f"{labels * config.num_queries:,} in all" in path.read_text()


@pytest.mark.parametrize("path", SCENARIOS, ids=name_of)
def test_each_scenario_runs_locally_or_in_containers(path, capsys):
    scenario = read_scenario(path)
    if scenario.green.image is None:
        assert scenario.endpoints()
        assert all(party.cmd for party in scenario.participants)
        return
    assert main(["compose", str(path)]) == 0
    text = capsys.readouterr().out
    assert not re.search(r"&id|\*id", text)
    assert yaml.safe_load(text) == compose(scenario)


def test_expert_scenarios_evaluate_one_agent_in_all_applications():
    series = read_series(EXPERT)
    assert list(series) == ["malt", "backbone", "k8s"]
    # the leaderboard identifies an agent by its URL
    assert len({url for one in series.values() for url in one.endpoints().values()}) == 1
    malt = series["malt"].config
    assert (malt["phrasing"], malt["complexity_level"]) == ("varied", ["level5"])


@pytest.mark.parametrize("name", ["backbone", "k8s", "malt", "route"])
def test_expert_scenario_states_its_number_of_queries(name):
    path = EXPERT.with_suffix("") / f"{name}.toml"
    config = dict(read_scenario(path).config)
    application, parsed = configured(load(name), config)
    queries = parsed.num_queries * len(application.labels(parsed))
    assert f"{queries} in all" in path.read_text()
    assert config.get("briefing") == (None if name == "malt" else "ticket")


def test_compose_file_is_written_to_the_given_path(tmp_path, capsys):
    source = str(ROOT / "scenarios" / "malt" / "leaderboard.toml")
    target = tmp_path / "compose.yaml"
    assert main(["compose", source, "--out", str(target)]) == 0
    assert "services" in yaml.safe_load(target.read_text())
    assert main(["compose", source, "--out", str(tmp_path / "no" / "file")]) == 2
    assert "--out: " in capsys.readouterr().err
