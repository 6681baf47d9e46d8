"""The images, built from their Dockerfiles and run as CONTRACT.md says of every image."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[2]
#: what an image may add to its base, bytes
MOST_BYTES = 250_000_000
#: a first build installs packages
BUILD_S = 600
WAIT_S = 180.0
#: attacks use up their CPU time, which takes its time on a busy machine
ASSESS_S = 450.0


@dataclass(frozen=True)
class Image:
    application: str
    #: of ``docker run``: what its worlds need
    privileges: tuple[str, ...] = ()
    #: of a short assessment, and how many queries it has
    config: Mapping[str, Any] = field(default_factory=dict)
    queries: int = 0

    @property
    def tag(self) -> str:
        return f"netarena-{self.application}:test"

    @property
    def file(self) -> Path:
        return ROOT / f"Dockerfile.{self.application}"


IMAGES = (
    Image("malt", config={"num_queries": 2, "concurrency": 2}, queries=24),
    Image(
        "route",
        privileges=("--privileged",),
        # one of each kind of the paper and of each pair of them
        config={"num_queries": 1, "max_iterations": 3, "concurrency": 2},
        queries=15,
    ),
)

each_image = pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.application)


# the files


@each_image
def test_the_dockerfile_installs_pinned_packages_only(image: Image) -> None:
    text = image.file.read_text()
    # the directive would make every build fetch a front end
    assert not text.startswith("# syntax=")
    assert text.split("FROM", 1)[0].strip().endswith("ARG BASE_IMAGE=python:3.12-slim-bookworm")
    steps = re.sub(r"\\\n", " ", text)
    installs = re.findall(r"pip\S*(?: --python \S+)? install [^&\n]*", steps)
    assert installs
    for install in installs:
        local = "--no-deps" in install and "dist/" in install
        assert local or "--require-hashes" in install, install


# the running containers


def docker(*arguments: object, timeout_s: float = 120.0, check: bool = True) -> str:
    done = subprocess.run(
        ["docker", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return (done.stdout + done.stderr).strip()


@pytest.fixture(scope="module")
def built() -> Callable[[Image], Image]:
    """Builds an image once, from ``NETARENA_BASE_IMAGE`` where no image can be pulled."""
    done: set[str] = set()

    def build(image: Image) -> Image:
        if image.tag not in done:
            base = os.environ.get("NETARENA_BASE_IMAGE")
            arguments = ["--build-arg", f"BASE_IMAGE={base}"] if base else []
            docker(
                *("build", "--quiet", "--file", image.file, "--tag", image.tag, *arguments, "."),
                timeout_s=BUILD_S,
            )
            done.add(image.tag)
        return image

    return build


@contextmanager
def network() -> Iterator[str]:
    name = f"netarena-test-{uuid.uuid4().hex[:8]}"
    docker("network", "create", name)
    try:
        yield name
    finally:
        docker("network", "rm", name)


@contextmanager
def container(image: Image, *options: str, arguments: tuple[str, ...] = ()) -> Iterator[str]:
    """A container that is removed with its volumes."""
    identity = docker("run", "--detach", "--pull=never", *options, image.tag, *arguments)
    try:
        yield identity
    finally:
        docker("rm", "--force", "--volumes", identity)


def wait_for(said: Callable[[], str], wanted: str, identity: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while (state := said()) != wanted:
        if time.monotonic() > deadline:
            pytest.fail(f"{state!r}, not {wanted!r}: {docker('logs', identity)}")
        time.sleep(0.1)


@contextmanager
def healthy(image: Image, *options: str, arguments: tuple[str, ...] = ()) -> Iterator[str]:
    """The green agent, once its own health check passes, on a root file system nobody can write."""
    options = ("--read-only", *image.privileges, *options)
    with container(image, *options, arguments=arguments) as identity:
        wait_for(
            lambda: docker("inspect", "--format", "{{.State.Health.Status}}", identity),
            "healthy",
            identity,
        )
        yield identity


def address(identity: str) -> str:
    return f"http://{docker('port', identity, '9009/tcp')}"


#: what suffices in the place of ``--privileged``, for root and for any user
NARROWER = tuple(
    (*user, "--security-opt", "seccomp=unconfined", "--security-opt", "systempaths=unconfined")
    for user in ((), ("--user", "9009"))
)
PUBLISHED = ("--publish", "127.0.0.1::9009")


def ask(url: str, participant: str, image: Image) -> dict[str, Any]:
    """The task that a client of protocol 0.3 gets."""
    request = {
        "participants": {f"{image.application}_operator": participant},
        "config": {**image.config, "seed": 1},
    }
    message = {
        "kind": "message",
        "role": "user",
        "messageId": uuid.uuid4().hex,
        "parts": [{"kind": "text", "text": json.dumps(request)}],
    }
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "message/send",
        "params": {"message": message, "configuration": {"blocking": True}},
    }
    task: dict[str, Any] = httpx.post(url, json=call, timeout=ASSESS_S).json()["result"]
    return task


def assess(url: str, participant: str, image: Image) -> list[dict[str, Any]]:
    """The records and the summary of an assessment."""
    task = ask(url, participant, image)
    assert task["status"]["state"] == "completed", task
    return [
        json.loads(part["text"]) for artifact in task["artifacts"] for part in artifact["parts"]
    ]


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S)
@pytest.mark.requires("docker")
@each_image
class TestImage:
    def test_adds_little_to_its_base(self, image: Image, built: Callable[[Image], Image]) -> None:
        built(image)
        base = os.environ.get("NETARENA_BASE_IMAGE", "python:3.12-slim-bookworm")
        size, base_size = (
            int(docker("image", "inspect", "--format", "{{.Size}}", name))
            for name in (image.tag, base)
        )
        assert size - base_size <= MOST_BYTES

    def test_serves_as_an_unprivileged_user_and_takes_arguments(
        self, image: Image, built: Callable[[Image], Image]
    ) -> None:
        built(image)
        told = "http://green.example:1234/"
        with healthy(image, *PUBLISHED, arguments=("--card-url", told)) as identity:
            card = httpx.get(f"{address(identity)}/.well-known/agent-card.json").json()
            assert told in json.dumps(card)
            user = docker("exec", identity, "id", "-u")
            assert (user != "0") or image.privileges
            mounts = json.loads(docker("inspect", "--format", "{{json .Mounts}}", identity))
            assert [mount["Destination"] for mount in mounts] == ["/netarena-runs"]
            assert "Read-only" in docker("exec", identity, "touch", "/here", check=False)
            docker("stop", "--time", "60", identity)
            # by its own handler, not by SIGKILL when the time is over
            state = json.loads(docker("inspect", "--format", "{{json .State}}", identity))
            assert (state["ExitCode"], state["OOMKilled"]) == (0, False), docker("logs", identity)

    def test_hostile_agents_gain_nothing_and_leave_it_unharmed(
        self, image: Image, built: Callable[[Image], Image]
    ) -> None:
        built(image)
        with network() as net, healthy(image, *PUBLISHED, "--network", net) as identity:
            url = address(identity)
            for strategy, solved in (("hostile", 0.0), ("oracle", 1.0)):
                name = f"{net}-{strategy}"
                options = ("--network", net, "--name", name, "--entrypoint", "netarena-purple")
                pairs = [f"--set={key}={value}" for key, value in image.config.items()]
                arguments = (
                    *("--host", "0.0.0.0", "--strategy", strategy, "--seed", "1"),
                    *("--application", image.application, *pairs),
                )
                with container(image, *options, arguments=arguments) as purple:
                    wait_for(lambda: str("http" in docker("logs", purple)), "True", purple)
                    *records, summary = assess(url, f"http://{name}:9009/", image)
                assert len(records) == image.queries
                assert summary["outcomes"]["invalid"] == summary["not_run"] == 0
                assert summary["avg_solved_safely"] == solved
            found = docker("exec", identity, "sh", "-c", "cat /netarena-runs/*/results.json")
            assert found.count('"avg_solved_safely"') == 2
            assert docker("exec", identity, "sh", "-c", "ls /tmp") == ""

    @pytest.mark.parametrize("options", NARROWER, ids=" ".join)
    def test_fewer_rights_suffice_where_the_host_allows_it(
        self, image: Image, options: tuple[str, ...], built: Callable[[Image], Image]
    ) -> None:
        if not image.privileges:
            pytest.skip("it needs none")
        built(image)
        run = ("run", "--rm", "--pull=never", "--read-only", *options, "--entrypoint", "netarena")
        assert "cannot run" not in docker(*run, image.tag, "doctor", image.application)

    def test_without_its_rights_it_serves_and_says_what_is_missing(
        self, image: Image, built: Callable[[Image], Image]
    ) -> None:
        if not image.privileges:
            pytest.skip("it needs none")
        with healthy(replace(built(image), privileges=()), *PUBLISHED) as identity:
            task = ask(address(identity), "http://127.0.0.1:9/", image)
            assert task["status"]["state"] == "rejected", task
            (part,) = task["status"]["message"]["parts"]
            assert f"docker run {image.privileges[0]}" in part["text"]
