"""The images, built from their Dockerfiles and run as docs/container.md says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import attack_course
import httpx
import pytest
from attack_course import Course

ROOT = Path(__file__).parents[2]
#: the first build installs packages
BUILD_S = 600
WAIT_S = 180.0
#: attacks use their whole CPU time limit, which is slow on a busy machine
ASSESS_S = 450.0


@dataclass(frozen=True)
class Image:
    application: str
    #: options of ``docker run`` that the worlds need
    privileges: tuple[str, ...] = ()
    #: config of a short assessment, and its number of queries
    config: Mapping[str, Any] = field(default_factory=dict)
    queries: int = 0
    #: the user that the service finally runs as
    user: int = 9009
    #: maximum size added to the base image, in bytes
    most_bytes: int = 250_000_000

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
        # one query for each of the paper's kinds and for each pair of them
        config={"num_queries": 1, "max_iterations": 3, "concurrency": 2},
        queries=15,
        user=0,
    ),
    Image(
        "k8s",
        # one query for each of the paper's kinds; enough turns for every attack
        config={"complexity_level": ["level1"], "max_iterations": 14, "concurrency": 2},
        queries=5,
        # kubectl, and the client of real clusters, which has a module for each of the API's types
        most_bytes=300_000_000,
    ),
)

each_image = pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.application)


# image contents


@each_image
def test_dockerfile_installs_only_pinned_packages(image: Image) -> None:
    text = image.file.read_text()
    # this directive would make every build download a build front end
    assert not text.startswith("# syntax=")
    assert text.split("FROM", 1)[0].strip().endswith("ARG BASE_IMAGE=python:3.12-slim-bookworm")
    steps = re.sub(r"\\\n", " ", text)
    installs = re.findall(r"pip\S*(?: --python \S+)? install [^&\n]*", steps)
    assert installs
    for install in installs:
        local = "--no-deps" in install and "dist/" in install
        assert local or "--require-hashes" in install, install


# running containers


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
    """Build an image once, from ``NETARENA_BASE_IMAGE`` if no image can be pulled."""
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
    """Run a container, and remove it with its volumes."""
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
    """Yield the container of a ready green agent; its root file system is read-only."""
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


#: options that suffice instead of ``--privileged``, for root and for any user
NARROWER = tuple(
    (*user, "--security-opt", "seccomp=unconfined", "--security-opt", "systempaths=unconfined")
    for user in ((), ("--user", "9009"))
)
PUBLISHED = ("--publish", "127.0.0.1::9009")


def ask(url: str, participant: str, image: Image) -> dict[str, Any]:
    """Return the task that a client of protocol 0.3 receives."""
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


def refusal(url: str, image: Image) -> str:
    """Return the reason why a request is rejected."""
    task = ask(url, "http://127.0.0.1:9/", image)
    assert task["status"]["state"] == "rejected", task
    (part,) = task["status"]["message"]["parts"]
    return str(part["text"])


def assess(url: str, participant: str, image: Image) -> list[dict[str, Any]]:
    """Return the records and the summary of an assessment."""
    task = ask(url, participant, image)
    assert task["status"]["state"] == "completed", task
    return [
        json.loads(part["text"]) for artifact in task["artifacts"] for part in artifact["parts"]
    ]


@contextmanager
def purple(image: Image, net: str, strategy: str, *options: str) -> Iterator[str]:
    """Run an agent of the image in a separate container; yield its URL within the network."""
    name = f"{net}-{strategy}"
    options = ("--network", net, "--name", name, "--entrypoint", "netarena-purple", *options)
    pairs = [f"--set={key}={json.dumps(value)}" for key, value in image.config.items()]
    arguments = (
        *("--host", "0.0.0.0", "--strategy", strategy, "--seed", "1"),
        *("--application", image.application, *pairs),
    )
    with container(image, *options, arguments=arguments) as identity:
        wait_for(lambda: str("http" in docker("logs", identity)), "True", identity)
        yield f"http://{name}:9009/"


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S)
@pytest.mark.requires("docker")
@each_image
class TestImage:
    def test_image_is_not_much_larger_than_its_base_image(
        self, image: Image, built: Callable[[Image], Image]
    ) -> None:
        built(image)
        base = os.environ.get("NETARENA_BASE_IMAGE", "python:3.12-slim-bookworm")
        size, base_size = (
            int(docker("image", "inspect", "--format", "{{.Size}}", name))
            for name in (image.tag, base)
        )
        assert size - base_size <= image.most_bytes

    def test_service_in_the_image_runs_as_an_unprivileged_user_and_accepts_arguments(
        self, image: Image, built: Callable[[Image], Image]
    ) -> None:
        built(image)
        told = "http://green.example:1234/"
        with healthy(image, *PUBLISHED, arguments=("--card-url", told)) as identity:
            card = httpx.get(f"{address(identity)}/.well-known/agent-card.json").json()
            assert told in json.dumps(card)
            assert docker("exec", identity, "stat", "-c", "%u", "/proc/1") == str(image.user)
            mounts = json.loads(docker("inspect", "--format", "{{json .Mounts}}", identity))
            assert [mount["Destination"] for mount in mounts] == ["/netarena-runs"]
            assert "Read-only" in docker("exec", identity, "touch", "/here", check=False)
            docker("stop", "--time", "60", identity)
            # stopped by its signal handler, not by SIGKILL after the time limit
            state = json.loads(docker("inspect", "--format", "{{json .State}}", identity))
            assert (state["ExitCode"], state["OOMKilled"]) == (0, False), docker("logs", identity)

    def test_directory_created_by_docker_and_another_port_work_as_documented(
        self, image: Image, built: Callable[[Image], Image], tmp_path: Path
    ) -> None:
        built(image)
        runs = tmp_path / "runs"
        mount = ("--volume", f"{runs}:/netarena-runs")
        with healthy(image, *mount, arguments=("--port", "9999")) as identity:
            assert docker("exec", identity, "stat", "-c", "%u", "/proc/1") == str(image.user)
            docker("exec", "--user", image.user, identity, "touch", "/netarena-runs/task")
            assert runs.stat().st_uid == 0  # the owner does not change

    def test_hostile_agents_gain_nothing_and_leave_the_image_unharmed(
        self, image: Image, built: Callable[[Image], Image]
    ) -> None:
        built(image)
        with network() as net, healthy(image, *PUBLISHED, "--network", net) as identity:
            url = address(identity)
            for strategy, solved in (("hostile", 0.0), ("oracle", 1.0)):
                with purple(image, net, strategy) as agent:
                    *records, summary = assess(url, agent, image)
                assert len(records) == image.queries
                assert summary["outcomes"]["invalid"] == summary["not_run"] == 0
                assert summary["avg_solved_safely"] == solved
            found = docker("exec", identity, "sh", "-c", "cat /netarena-runs/*/results.json")
            assert found.count('"avg_solved_safely"') == 2
            assert docker("exec", identity, "sh", "-c", "ls /tmp") == ""

    @pytest.mark.parametrize("options", NARROWER, ids=" ".join)
    def test_documented_smaller_set_of_privileges_is_sufficient(
        self, image: Image, options: tuple[str, ...], built: Callable[[Image], Image]
    ) -> None:
        if not image.privileges:
            pytest.skip("it needs none")
        built(image)
        run = ("run", "--rm", "--pull=never", "--read-only", *options, "--entrypoint", "netarena")
        assert "cannot run" not in docker(*run, image.tag, "doctor", image.application)

    def test_image_without_its_privileges_reports_what_is_missing(
        self, image: Image, built: Callable[[Image], Image]
    ) -> None:
        if not image.privileges:
            pytest.skip("it needs none")
        with healthy(replace(built(image), privileges=()), *PUBLISHED) as identity:
            assert f"docker run {image.privileges[0]}" in refusal(address(identity), image)


#: folder in the container where users of the reference mount their kubeconfig's folder
ROOTS = Path("/root") / ".kube"
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: kind-shop
clusters:
- {name: kind-shop, cluster: {server: "https://127.0.0.1:1", certificate-authority: ca.crt}}
contexts: [{name: kind-shop, context: {cluster: kind-shop, user: admin}}]
users: [{name: admin, user: {token: t0ps3cret}}]
"""


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S)
@pytest.mark.requires("docker")
class TestKubernetes:
    """Containers with root's kubeconfig and a folder of manifests, as in the reference."""

    image = IMAGES[-1]

    def test_kubeconfig_is_read_as_root_and_served_without_capabilities(
        self, tmp_path: Path, built: Callable[[Image], Image]
    ) -> None:
        (tmp_path / "config").write_text(KUBECONFIG)
        (tmp_path / "ca.crt").write_text("no certificate\n")
        for path in (tmp_path, *tmp_path.iterdir()):
            path.chmod(0o700)
        options = (
            *("--volume", f"{tmp_path}:{ROOTS}:ro", "--env", f"KUBECONFIG={ROOTS}/config"),
            *PUBLISHED,
        )
        with healthy(built(self.image), *options) as identity:
            assert docker("exec", identity, "stat", "-c", "%u", "/proc/1") == "9009"
            rights = docker("exec", identity, "grep", "-h", "CapEff\\|CapBnd", "/proc/1/status")
            assert set(re.findall(r"\t(\w+)", rights)) == {"0" * 16}
            # the context was read, so the cluster is known, but it does not answer
            told = refusal(address(identity), self.image)
            assert told.startswith("config.cluster: kind-shop: ")
            assert "\n" not in told
            assert "t0ps3cret" not in docker("logs", identity)
            named = replace(self.image, config={**self.image.config, "cluster": "nosuch"})
            assert "must be 'embedded' or a context of" in refusal(address(identity), named)

    def test_attacks_gain_nothing_in_a_default_container(
        self, built: Callable[[Image], Image]
    ) -> None:
        """Run the attacks of ``test_k8s_attack`` as the user that the service finally runs as."""
        program = Path(attack_course.__file__)
        options = ("--read-only", "--user", self.image.user, "--volume", f"{program}:/course.py:ro")
        run = ("run", "--rm", "--pull=never", *options, "--entrypoint", "python")
        said = docker(*run, built(self.image).tag, "/course.py", timeout_s=BUILD_S)
        found = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
        assert list(found) == attack_course.NAMES
        for name, course in found.items():
            Course(**course).check(name, "landlock")

    def test_invalid_kubeconfig_is_reported_in_one_line(
        self, tmp_path: Path, built: Callable[[Image], Image]
    ) -> None:
        (tmp_path / "config").write_text("clusters: 7\n")
        volume = (
            "--volume",
            f"{tmp_path}:{ROOTS}:ro",
            "--env",
            f"KUBECONFIG={ROOTS}/config",
        )
        with container(built(self.image), *volume) as identity:
            assert docker("wait", identity) == "2"
            last = docker("logs", identity).splitlines()[-1]
        assert last == (
            f"netarena: {ROOTS}/config is not a kubeconfig, or names a file that cannot be read"
        )

    def test_assessment_uses_a_mounted_folder_of_manifests(
        self, tmp_path: Path, built: Callable[[Image], Image]
    ) -> None:
        (tmp_path / "shop.yaml").write_text(SHOP)
        tmp_path.chmod(0o755)  # a cloned folder that everybody may read
        folder = "/data/microservices-demo"
        config = {"error_types": ["change_port"], "microservice_dir": folder, "max_iterations": 3}
        image = replace(built(self.image), config=config, queries=1)
        mount = ("--volume", f"{tmp_path}:{folder}:ro")
        with network() as net, healthy(image, *PUBLISHED, *mount, "--network", net) as identity:
            url = address(identity)
            with purple(image, net, "oracle", *mount) as agent:
                *records, summary = assess(url, agent, image)
            assert len(records) == 1
            assert summary["avg_solved_safely"] == 1.0
            assert "api" in json.dumps(records[0]["error_detail"])
            missing = replace(image, config={**config, "microservice_dir": "/data/nosuch"})
            told = "config.microservice_dir: nosuch does not exist or is not a folder"
            assert told in refusal(url, missing)
            # readable only by root, but the service runs as another user by then
            tmp_path.chmod(0o700)
            told = "microservices-demo cannot be read: Permission denied (user 9009)"
            assert told in refusal(url, image)

    @pytest.mark.requires("root")
    def test_manifests_readable_only_by_root_are_read_as_root(
        self, tmp_path: Path, built: Callable[[Image], Image]
    ) -> None:
        """Only the owner can open the folder, and that user does not exist in the container."""
        (tmp_path / "shop.yaml").write_text(SHOP)
        for path in (tmp_path, tmp_path / "shop.yaml"):
            os.chown(path, 10_001, 10_001)
            path.chmod(0o700)
        folder = "/data/microservices-demo"
        config = {"error_types": ["change_port"], "microservice_dir": folder, "max_iterations": 3}
        image = replace(built(self.image), config=config, queries=1)
        mount = ("--volume", f"{tmp_path}:{folder}:ro")
        with network() as net, healthy(image, *PUBLISHED, *mount, "--network", net) as identity:
            assert docker("exec", identity, "stat", "-c", "%u", "/proc/1") == "9009"
            # the oracle draws the same queries itself, from a folder that it may read
            with purple(image, net, "noop") as agent:
                (record, summary) = assess(address(identity), agent, image)
            assert "api" in json.dumps(record["error_detail"])
            assert summary["outcomes"]["invalid"] == 0

    def test_image_that_cannot_drop_privileges_reports_the_remedy(
        self, built: Callable[[Image], Image]
    ) -> None:
        with container(built(self.image), "--cap-drop", "ALL") as identity:
            assert docker("wait", identity) == "2"
            assert docker("logs", identity).endswith("docker run --user 9009")
        options = ("--cap-drop", "ALL", "--user", "9009")
        with healthy(built(self.image), *options) as identity:
            assert docker("exec", identity, "stat", "-c", "%u", "/proc/1") == "9009"


#: program for the training image, run in the image itself because it has the client
_EPISODE = """
from openenv.core.generic_client import GenericEnvClient
with GenericEnvClient(base_url="http://127.0.0.1:8000").sync() as client:
    assert "Task" in client.reset(seed=3, task=0).observation["text"]
    for turn in range(9):
        found = client.step({"text": "Nothing."})
        assert found.reward < 0
        if found.done:
            break
    assert found.observation["metadata"]["outcome"] == "agent_failed", found
"""


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S)
@pytest.mark.requires("docker")
def test_image_without_privileges_serves_training_sessions(
    built: Callable[[Image], Image],
) -> None:
    image = built(Image("openenv", most_bytes=700_000_000))
    options, arguments = ("--cap-drop", "ALL"), ("k8s", "--set", "max_iterations=2")
    with healthy(image, *options, arguments=arguments) as identity:
        assert docker("exec", identity, "stat", "-c", "%u", "/proc/1") == "9009"
        docker("exec", identity, "python", "-c", _EPISODE)
        docker("stop", identity)
        assert docker("inspect", "--format", "{{.State.ExitCode}}", identity) == "143"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def wait_until_served(url: str, identity: str) -> None:
    def status() -> str:
        try:
            return str(httpx.get(f"{url}.well-known/agent-card.json").status_code)
        except httpx.HTTPError as error:
            return str(error)

    wait_for(status, "200", identity)


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S)
@pytest.mark.requires("docker", "cluster")
def test_cluster_of_a_mounted_kubeconfig_is_used_and_left_unchanged(
    cluster: str, tmp_path: Path, built: Callable[[Image], Image]
) -> None:
    """The container is started as the reference documents it: on the host's network."""
    kube, manifests = tmp_path / "kube", tmp_path / "manifests"
    kube.mkdir(mode=0o700)
    shutil.copy(os.environ["KUBECONFIG"], kube / "config")
    (kube / "config").chmod(0o600)
    manifests.mkdir()
    (manifests / "shop.yaml").write_text(SHOP)
    for path in (tmp_path, manifests):
        path.chmod(0o755)
    folder = "/data/microservices-demo"
    config = {"error_types": ["change_port"], "microservice_dir": folder, "max_iterations": 3}
    image = replace(built(IMAGES[-1]), config=config)
    mount = ("--network=host", "--volume", f"{manifests}:{folder}:ro")
    green = (*mount, "--volume", f"{kube}:{ROOTS}:ro", "--env", f"KUBECONFIG={ROOTS}/config")
    ports = [str(free_port()) for _ in range(2)]
    served, agent = (f"http://127.0.0.1:{port}/" for port in ports)
    here = ("--host", "127.0.0.1", "--port")
    pairs = [f"--set={key}={json.dumps(value)}" for key, value in config.items()]
    oracle = ("--strategy", "oracle", "--seed", "1", "--application", "k8s", *pairs)
    with (
        container(image, *green, arguments=(*here, ports[0])) as identity,
        container(
            image,
            *(*mount, "--entrypoint", "netarena-purple"),
            arguments=(*here, ports[1], *oracle),
        ) as other,
    ):
        wait_until_served(served, identity)
        wait_until_served(agent, other)
        *records, summary = assess(served, agent, image)
        assert [(one["outcome"], one["safe"]) for one in records] == [("solved", True)]
        assert summary["config"]["cluster"] == cluster
        docker("stop", "--time", "60", identity)
    assert asyncio.run(left_namespaces()) == []


async def left_namespaces() -> list[str]:
    """Return the cluster's namespaces that an ended service of this project has left."""
    from netarena_k8s.real.client import Api
    from netarena_k8s.real.lease import MINE
    from netarena_k8s.real.owner import is_seen_alive

    api = await Api.connect()
    try:
        found = [one["metadata"] for one in await api.find("Namespace", **MINE)]
    finally:
        await api.close()
    return [
        one["name"]
        for one in found
        if "deletionTimestamp" not in one and not is_seen_alive(one["annotations"])
    ]


#: two workloads, one service, one policy
SHOP = """
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Pod, metadata: {name: front, labels: {app: front}},
   spec: {containers: [{name: front}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: batch, labels: {app: batch}},
   spec: {containers: [{name: batch}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: api, labels: {app: api}},
   spec: {containers: [{name: api, ports: [{containerPort: 8000}]}]}}
- {apiVersion: v1, kind: Service, metadata: {name: api},
   spec: {selector: {app: api}, ports: [{port: 80, targetPort: 8000}]}}
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: api}
  spec:
    podSelector: {matchLabels: {app: api}}
    ingress: [{from: [{podSelector: {matchLabels: {app: front}}}], ports: [{port: 8000}]}]
"""
