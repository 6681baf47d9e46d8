from __future__ import annotations

import hashlib
import hmac
import json
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.a2a.request import (
    RESERVED_NAMES,
    TIME_BUDGET_S,
    EvalRequest,
    Place,
    derive_seed,
    read_config,
)
from netarena.config import Config
from netarena.errors import ConfigError
from netarena.run.assessment import OWN_NAMES
from tests.thorough import THOROUGH

URL = "http://agent:9010/"


class PathConfig(Config):
    microservice_dir: str | None = None


def parse(participants: object = None, **config: object) -> EvalRequest:
    data = {"participants": participants or {"malt_operator": URL}, "config": config}
    return EvalRequest.parse(json.dumps(data))


def test_participants_and_config_are_read():
    request = parse(num_queries=3)
    assert request.participants == {"malt_operator": URL}
    assert request.config == {"num_queries": 3}


def test_any_role_is_accepted_and_keys_of_the_platform_are_ignored():
    request = EvalRequest.parse(json.dumps({"participants": {"agent": URL}, "run_id": "7"}))
    assert request == EvalRequest({"agent": URL}, {})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "request: must be a message whose text is a JSON object"),
        ("{", "request: must be a message whose text is a JSON object"),
        ("[" * 100_000, "too deeply nested"),
        ("[1]", "request: must be a JSON object"),
        ("{}", "participants: must be a JSON object"),
        ('{"participants": {}}', "participants: must be a JSON object"),
        ('{"participants": ["http://x"]}', "participants: must be a JSON object"),
        ('{"participants": {"../x": "http://x"}}', "role '../x' must match"),
        ('{"participants": {"a": "http://x"}, "config": []}', "config: must be a JSON object"),
    ],
)
def test_invalid_request_is_refused_with_the_reason(text, problem):
    with pytest.raises(ConfigError) as caught:
        EvalRequest.parse(text)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "", "x", "ftp://host/", "file:///etc/passwd", "unix:///run/x", "//host", "http://",
        "http:///path", "http://host:0/", "http://host:70000/", "http://host:x/", "http://ho st/",
        "http://host/\n", "http://höst/", "http://user:pass@host/", "http://user@host/",
        "http://host/#part", "http://host\\@other/", "http://" + "a" * 3000, 7, None, ["http://x"],
        "javascript:alert(1)", "gopher://host/", "http://[::1/", "http://[v1.fe80]/",
        "http://%31%36%39.254.169.254/", "http://a*b/",
    ],
)  # fmt: skip
def test_only_http_and_https_urls_are_participants(url):
    with pytest.raises(ConfigError, match=r"^participants\.a: "):
        EvalRequest.parse(json.dumps({"participants": {"a": url}}))


@pytest.mark.parametrize(
    "url",
    [
        "http://host",
        "HTTP://host/",
        "https://host:8443/a/b?c=d",
        "http://[::1]:9009/",
        "http://1.2.3.4/",
        "http://my_agent-1.local.:80/",
        "http://[fe80::1%25eth0]/",
    ],
)
def test_http_and_https_urls_are_accepted(url):
    assert parse({"a": url}).participants == {"a": url}


def test_refused_url_is_not_repeated():
    with pytest.raises(ConfigError) as caught:
        parse({"a": "http://user:hunter2@host/"})
    assert "hunter2" not in str(caught.value)


def test_number_of_participants_is_limited():
    with pytest.raises(ConfigError, match="at most 16 roles, not 17"):
        parse({f"role{i}": URL for i in range(17)})


@THOROUGH
@given(st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["participants", "config", "a"]) | st.text(), inner),
))  # fmt: skip
def test_any_input_is_a_request_or_a_config_error(value):
    with suppress(ConfigError):
        assert EvalRequest.parse(json.dumps(value)).participants


def test_seed_is_the_first_64_bits_of_an_hmac():
    digest = hmac.new(b"s3cret", b"task-1", hashlib.sha256).hexdigest()
    assert derive_seed("s3cret", "task-1") == int(digest[:16], 16)
    assert derive_seed("s3cret", "task-2") != derive_seed("s3cret", "task-1")
    assert derive_seed("other", "task-1") != derive_seed("s3cret", "task-1")
    assert 0 <= derive_seed("s3cret", "task-1") < 2**64


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "root").mkdir()
    (tmp_path / "data").mkdir()
    return Place(tmp_path / "root", tmp_path / "data")


def test_time_budget_has_a_default(place):
    assert read_config(Config, parse(), place).time_budget_s == TIME_BUDGET_S == 1680
    assert read_config(Config, parse(time_budget_s=9), place).time_budget_s == 9


def test_unknown_keys_are_refused_with_the_known_ones(place):
    with pytest.raises(
        ConfigError,
        match=r"config\.num_querys: unknown key; did you mean 'num_queries'\? Known keys: ",
    ):
        read_config(Config, parse(num_querys=1), place)


def test_seed_is_refused_if_the_service_draws_it(place):
    assert read_config(Config, parse(seed=7), place).seed == 7
    with pytest.raises(ConfigError, match=r"config\.seed: must be omitted"):
        read_config(Config, parse(seed=7), place, secret_seed=True)
    with pytest.raises(ConfigError, match=r"config\.seed: must be omitted"):
        read_config(Config, parse(seed_text="7"), place, secret_seed=True)
    assert read_config(Config, parse(), place, secret_seed=True).seed is None


@pytest.mark.parametrize(
    ("given_dir", "below"),
    [(None, "task"), ("a", "a"), ("a/b", "a/b"), ("/a/b", "a/b"), ("//a", "a"), ("./a", "a")],
)
def test_output_directory_lies_below_the_root(place, given_dir, below):
    assert place.output_dir(given_dir, "task") == place.root / below


def test_absolute_output_dir_within_the_root_is_used(place):
    assert place.output_dir(str(place.root / "a"), "task") == place.root / "a"


@pytest.mark.parametrize(
    "bad", ["..", "a/../..", "/..", "/a/../../b", "", "/", ".", "a\0b", "\udfff"]
)
def test_output_outside_the_root_is_refused(place, bad):
    with pytest.raises(ConfigError, match=r"^config\.output_dir: "):
        read_config(Config, parse(output_dir=bad), place)


def test_symbolic_links_below_the_root_are_refused(place, tmp_path):
    (place.root / "link").symlink_to(tmp_path)
    for value in ("link", "link/x", "/link/x"):
        with pytest.raises(ConfigError, match="symbolic link"):
            read_config(Config, parse(output_dir=value), place)
        with pytest.raises(ConfigError, match="symbolic link"):
            read_config(Config, parse(benchmark_path=value.lstrip("/")), place)


def test_input_is_read_below_the_root_and_the_data_directory(place):
    (place.data / "q.jsonl").write_text("")
    read = read_config(PathConfig, parse(benchmark_path="q.jsonl", microservice_dir="m"), place)
    assert read.benchmark_path == str(place.data / "q.jsonl")
    assert read.microservice_dir == str(place.root / "m")
    (place.root / "q.jsonl").write_text("")
    read = read_config(PathConfig, parse(benchmark_path="q.jsonl"), place)
    assert read.benchmark_path == str(place.root / "q.jsonl")
    for base in (place.root, place.data):
        path = str(base / "q.jsonl")
        assert read_config(PathConfig, parse(benchmark_path=path), place).benchmark_path == path


def test_missing_directory_of_the_reference_image_means_the_built_in_one(place, caplog):
    class BuiltIn(PathConfig):
        BUILT_IN: ClassVar = {"microservice_dir": "/demo-of-nobody"}

    (place.root / "demo-of-nobody").mkdir()  # Docker creates a missing folder that is to be mounted
    for told in ("/demo-of-nobody", "/demo-of-nobody/", "//demo-of-nobody", "/demo-of-nobody/."):
        caplog.clear()
        read = read_config(BuiltIn, parse(microservice_dir=told), place)
        assert read.microservice_dir is None
        (line,) = caplog.messages
        assert line == (
            "config.microservice_dir: there is no /demo-of-nobody here; "
            "the built-in manifests are used"
        )
    caplog.clear()
    # any other missing folder is a mistake, which the application reports
    read = read_config(BuiltIn, parse(microservice_dir="/other"), place)
    assert read.microservice_dir == str(place.root / "other")
    (place.root / "demo-of-nobody" / "a.yaml").touch()
    read = read_config(BuiltIn, parse(microservice_dir="/demo-of-nobody"), place)
    assert read.microservice_dir == str(place.root / "demo-of-nobody")
    assert caplog.messages == []


class ModelConfig(Config):
    model: str = "own"

    def input_paths(self):
        paths = super().input_paths()
        return paths if self.model == "own" else {**paths, "model": self.model}


def test_application_declares_further_keys_that_are_paths(place):
    (place.data / "m.txt").write_text("")
    config = parse(model="m.txt", benchmark_path="q.jsonl")
    read = read_config(ModelConfig, config, place)
    assert read.model == str(place.data / "m.txt")
    assert read.benchmark_path == str(place.root / "q.jsonl")
    assert read_config(ModelConfig, parse(), place).model == "own"
    for bad in ("../m.txt", "a\0b"):
        with pytest.raises(ConfigError, match=r"^config\.model: "):
            read_config(ModelConfig, parse(model=bad), place)


def test_file_to_be_written_lies_below_the_root(place):
    read = read_config(PathConfig, parse(benchmark_path="new/q.jsonl"), place)
    assert read.benchmark_path == str(place.root / "new" / "q.jsonl")


@pytest.mark.parametrize("bad", ["../x", "a/../../x", "/../etc/passwd", "a\0b", "a\ud800b"])
def test_input_outside_the_allowed_directories_is_refused(place, bad):
    with pytest.raises(ConfigError, match=r"^config\.benchmark_path: "):
        read_config(PathConfig, parse(benchmark_path=bad), place)
    with pytest.raises(ConfigError, match=r"^config\.microservice_dir: "):
        read_config(PathConfig, parse(microservice_dir=bad), place)


@pytest.mark.parametrize(
    "bad", ["", "/", ".", "folder", "/folder", *OWN_NAMES, "a/journal.jsonl", ".lock", "a/.x"]
)
@pytest.mark.parametrize("anew", [False, True])
def test_query_file_must_not_be_a_file_of_the_run(place, bad, anew):
    (place.root / "folder").mkdir()
    for value in (bad, f"{place.root}/{bad}"):
        with pytest.raises(ConfigError, match=r"^config\.benchmark_path: ") as caught:
            read_config(Config, parse(benchmark_path=value, regenerate_query=anew), place)
        assert str(place.root) not in str(caught.value)


@pytest.mark.parametrize(
    "bad", ["results.json", "a/journal.jsonl/b", "/run/config.json", "run/.lock/x", "queries.jsonl"]
)
def test_output_directory_with_the_name_of_a_run_file_is_refused(place, bad):
    with pytest.raises(ConfigError, match=r"^config\.output_dir: must not contain "):
        place.output_dir(bad, "t")


def test_file_of_a_run_is_refused_as_input(place):
    config = parse(model="run/config.json")
    with pytest.raises(ConfigError, match=r"^config\.model: 'config\.json' is a file that runs"):
        read_config(ModelConfig, config, place)


def test_reserved_names_are_the_files_of_an_assessment():
    assert set(RESERVED_NAMES) == set(OWN_NAMES)


def test_absolute_path_outside_the_root_is_resolved_below_the_root(place):
    read = read_config(PathConfig, parse(benchmark_path="/etc/passwd"), place)
    assert read.benchmark_path == str(place.root / "etc" / "passwd")


def test_queries_are_always_drawn_again_with_a_secret_seed(place):
    (place.root / "q.jsonl").write_text("")
    config = parse(benchmark_path="q.jsonl")
    assert not read_config(PathConfig, config, place).regenerate
    assert read_config(PathConfig, config, place, secret_seed=True).regenerate


def test_data_directory_is_not_written(place):
    path = str(place.data / "new.jsonl")
    read = read_config(PathConfig, parse(benchmark_path=path, regenerate_query=True), place)
    assert Path(read.benchmark_path).is_relative_to(place.root)
    (place.data / "q.jsonl").write_text("")
    read = read_config(PathConfig, parse(benchmark_path="q.jsonl", regenerate_query=True), place)
    assert read.benchmark_path == str(place.root / "q.jsonl")


@pytest.mark.parametrize(
    ("value", "name"), [("x.jsonl", "x.jsonl"), ("/a/../b/x.jsonl", "x.jsonl")]
)
def test_output_file_stays_in_the_directory_of_the_task(place, value, name):
    assert read_config(Config, parse(output_file=value), place).output_file == name


@pytest.mark.parametrize(
    "bad", ["", "/", "..", ".", "a/..", "journal.jsonl", "x/config.json", ".lock"]
)
def test_output_file_replaces_no_file_of_the_run(place, bad):
    with pytest.raises(ConfigError, match=r"^config\.output_file: "):
        read_config(Config, parse(output_file=bad), place)


def test_agent_client_configs_are_accepted(place):
    assert read_config(Config, parse(agent_client_configs={"a": [1]}), place)


def test_participants_own_keys_belong_to_a_known_role():
    text = {
        "participants": {"agent": URL},
        "participant_config": {"agent": {"prompt_type": "react"}},
    }
    assert EvalRequest.parse(json.dumps(text)).own == {"agent": {"prompt_type": "react"}}
    for own, words in (
        ({"other": {}}, "participant_config: the role 'other' is not one of agent"),
        ({"agent": 3}, "participant_config: must be a JSON object"),
        ([], "participant_config: must be a JSON object"),
    ):
        with pytest.raises(ConfigError, match=f"^{words}"):
            EvalRequest.parse(json.dumps({**text, "participant_config": own}))
