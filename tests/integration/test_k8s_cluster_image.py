"""The image of k8s against a real cluster, started as users of the reference start theirs."""

import asyncio
import os
import shutil
import socket
import time
from dataclasses import replace

import httpx
import pytest
from test_image import BUILD_S, IMAGES, ROOTS, SHOP, WAIT_S, assess, container, docker
from test_image import built as built  # a fixture  # noqa: PLC0414 -- which is exported by its name
from test_k8s_cluster import namespaces, real

pytestmark = [pytest.mark.requires("docker", "cluster"), pytest.mark.slow]
FOLDER = "/data/microservices-demo"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def wait_until_served(url, identity):
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return httpx.get(f"{url}.well-known/agent-card.json").raise_for_status()
        except httpx.HTTPError as error:
            if time.monotonic() > deadline:
                pytest.fail(f"{error}: {docker('logs', identity)}")
            time.sleep(0.2)


@pytest.mark.timeout(BUILD_S)
def test_an_assessment_on_the_cluster_of_a_mounted_kubeconfig(cluster, tmp_path, built):
    kube, manifests = tmp_path / "kube", tmp_path / "manifests"
    kube.mkdir(mode=0o700)
    shutil.copy(os.environ["KUBECONFIG"], kube / "config")
    (kube / "config").chmod(0o600)  # root's alone, as kubectl leaves it
    manifests.mkdir()
    (manifests / "shop.yaml").write_text(SHOP)
    for path in (tmp_path, manifests):
        path.chmod(0o755)
    config = {"error_types": ["change_port"], "microservice_dir": FOLDER, "max_iterations": 3}
    image = replace(built(IMAGES[-1]), config=config)
    mount = ("--network=host", "--volume", f"{manifests}:{FOLDER}:ro")
    ports = [free_port() for _ in range(2)]
    served, agent = (f"http://127.0.0.1:{port}/" for port in ports)
    green = (*mount, "--volume", f"{kube}:{ROOTS}:ro", "--env", f"KUBECONFIG={ROOTS}/config")
    oracle = (
        *("--host", "127.0.0.1", "--port", ports[1], "--strategy", "oracle", "--seed", 1),
        *("--application", "k8s", "--set=error_types=change_port"),
        *(f"--set=microservice_dir={FOLDER}", "--set=max_iterations=3"),
    )
    here = ("--host", "127.0.0.1", "--port", ports[0])
    with (
        container(image, *green, arguments=here) as identity,
        container(image, *mount, "--entrypoint", "netarena-purple", arguments=oracle) as other,
    ):
        wait_until_served(served, identity)
        wait_until_served(agent, other)
        *records, summary = assess(served, agent, image)
        assert [(one["outcome"], one["safe"]) for one in records] == [("solved", True)]
        assert summary["config"]["cluster"] == cluster
        docker("stop", "--time", "60", identity)
    asyncio.run(nothing_is_left(cluster))


async def nothing_is_left(cluster):
    async with real(cluster) as one:
        assert await namespaces(one.api) == set()
