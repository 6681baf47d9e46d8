"""The checks of a Ray cluster's address, before Ray is started."""

from __future__ import annotations

import asyncio

import pytest

from netarena.agent.process import free_port
from netarena.errors import ConfigError
from netarena.run.ray_pool import RayPool


async def _open(address: str) -> None:
    async with RayPool(address, number=1, most=1):
        raise AssertionError("there is no cluster")


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "ray://10.0.0.1:6379", ":6379", "host:0", "host:x"]
)
def test_address_of_another_form_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with pytest.raises(ConfigError, match=r"--ray-address: must be HOST:PORT or auto"):
        asyncio.run(_open(address))


def test_address_at_which_nothing_listens_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with pytest.raises(
        ConfigError, match=r"cannot connect to 127\.0\.0\.1:\d+ \(Connection refused"
    ):
        asyncio.run(_open(f"127.0.0.1:{free_port()}"))


def test_cluster_without_a_known_token_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="the cluster's token is missing"):
        asyncio.run(_open("127.0.0.1:6379"))
