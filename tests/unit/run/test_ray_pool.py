"""The checks of a Ray cluster's address, before Ray is started."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from types import SimpleNamespace
from typing import Any

import pytest

from netarena.agent.process import free_port
from netarena.errors import ConfigError
from netarena.run import ray_pool
from netarena.run.ray_pool import RayLink, RayPool
from netarena.run.remote import LinkLostError


async def _open(address: str) -> None:
    async with RayPool(address, number=1, most=1):
        raise AssertionError("there is no cluster")


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "ray://10.0.0.1:6379", ":6379", "host:0", "host:x"]
)
def test_address_with_an_invalid_form_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with pytest.raises(ConfigError, match=r"--ray-address: must be HOST:PORT or auto"):
        asyncio.run(_open(address))


def test_address_at_which_nothing_listens_is_refused_immediately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with pytest.raises(
        ConfigError, match=r"cannot connect to 127\.0\.0\.1:\d+ \(Connection refused"
    ):
        asyncio.run(_open(f"127.0.0.1:{free_port()}"))


def test_cluster_is_refused_if_no_token_is_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="the cluster's token is missing"):
        asyncio.run(_open("127.0.0.1:6379"))


def test_directory_for_ray_is_short_enough_for_its_socket_paths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/var/folders/t/18c")
    folder = ray_pool._make_folder()
    try:
        # measured: Ray adds 90 bytes to the path of the parent; a socket path has at most 107
        assert len(str(folder.parent)) + 90 <= 107
    finally:
        folder.rmdir()


@pytest.mark.parametrize(
    ("status", "errors", "message"),
    [
        (0, "", "answers without a token"),
        (1, "Traceback\nRpcError: timed out", r"cannot check .*\(RpcError: timed out\)"),
        (-9, "", r"cannot check .*\(exit status -9\)"),
    ],
)
def test_cluster_that_does_not_ask_for_a_token_is_refused(
    status: int, errors: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], status, "", errors)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(ConfigError, match=message):
        ray_pool._refuse_open("10.0.0.1:6379")


def test_cluster_that_does_not_answer_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired("python", 60)

    monkeypatch.setattr(subprocess, "run", wait)
    with pytest.raises(ConfigError, match=r"cannot check .*\(no answer within 60 s\)"):
        ray_pool._refuse_open("10.0.0.1:6379")


def test_cluster_that_asks_for_a_token_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 16, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    ray_pool._refuse_open("10.0.0.1:6379")


class BrokenRay:
    """A fake Ray whose calls fail."""

    def nodes(self) -> list[dict[str, Any]]:
        raise RuntimeError("no connection")

    def remote(self, kind: type) -> Any:
        raise RuntimeError(f"{kind.__name__} cannot be made")


class FakeActor:
    """An actor that records its calls; methods that are not in ``results`` never answer."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.results, self.calls = results, []

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda: self._call(name))

    async def _call(self, name: str) -> Any:
        self.calls.append(name)
        if name not in self.results:
            await asyncio.Event().wait()
        if isinstance(result := self.results[name], Exception):
            raise result
        return result


class FakeRay:
    """A fake Ray with one node, which records the actors that it kills."""

    class exceptions:  # noqa: N801 -- a module of Ray
        RayError = type("RayError", (Exception,), {})
        ActorUnavailableError = type("ActorUnavailableError", (RayError,), {})

    def __init__(self, *, alive: bool = True) -> None:
        self.alive, self.killed = alive, []

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": "1f", "Alive": self.alive}]

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


@pytest.mark.parametrize("results", [{"stop": None}, {}, {"stop": FakeRay.exceptions.RayError()}])
def test_actor_ends_its_worker_before_it_is_killed(
    results: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_pool, "_CLOSE_S", 0.1)
    fake, actor = FakeRay(), FakeActor(results)
    asyncio.run(RayLink(fake, actor, "1f", "node").close())
    assert actor.calls == ["stop"]
    assert fake.killed == [actor]


def test_silent_worker_counts_as_a_node_failure_only_if_the_node_is_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_pool, "_NODE_S", 0.3)
    monkeypatch.setattr(ray_pool, "_PAUSE_S", 0.1)
    # the actor answers, so that only its worker hangs
    asyncio.run(RayLink(FakeRay(), FakeActor({"ping": None}), "1f", "node").examine())
    found = {}
    for alive in (True, False):
        with pytest.raises(LinkLostError) as error:
            asyncio.run(RayLink(FakeRay(alive=alive), FakeActor({}), "1f", "node").examine())
        found[alive] = error.value.node_gone, str(error.value)
    assert found == {
        True: (False, "the relay of the worker did not answer for 0.3 s"),
        False: (True, "Ray reports that the node is dead"),
    }


def test_node_counts_as_present_if_ray_cannot_list_nodes() -> None:
    assert not RayLink(BrokenRay(), None, "1f", "node")._node_gone()


def test_worker_that_ray_cannot_start_counts_as_lost() -> None:
    pool = RayPool(None, number=1, most=1)
    pool._ray = BrokenRay()
    with pytest.raises(LinkLostError, match="RayRelay cannot be made"):
        asyncio.run(pool.hire())
