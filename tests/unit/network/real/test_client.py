"""Requests to a network's process; a deadline interrupts one of them."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any, cast

import pytest

from netarena.errors import EnvironmentFailed
from netarena.sdk import Talk
from netarena_network.real.client import Net, _Life


async def _connect() -> tuple[Net, asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a network, and the worker's end of its socket."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    talk = Talk(1, asyncio.get_running_loop().create_future(), reader, writer)
    net = Net({}, 2, _Life(cast("Any", None), talk))
    return net, *await asyncio.open_connection(sock=theirs)


@pytest.mark.parametrize("answer", [{"ok": 1}, {"failed": "the machine ended"}])
def test_result_of_an_interrupted_request_is_discarded_before_the_next_request(
    answer: dict[str, Any],
) -> None:
    async def run() -> None:
        net, reader, writer = await _connect()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await net.ask("run")
        assert json.loads(await reader.readline()) == {"do": "run"}
        with pytest.raises(EnvironmentFailed, match="has not yet answered the request 'run'"):
            await net.ask("cut")
        with pytest.raises(TimeoutError):  # the command is still running
            async with asyncio.timeout(0.05):
                await net.drop_pending()
        writer.write(json.dumps(answer | {"cpu_s": 3.0}).encode() + b"\n")
        if "failed" in answer:
            with pytest.raises(EnvironmentFailed, match="run: the machine ended"):
                await net.drop_pending()
        else:
            await net.drop_pending()
        assert net.cpu_s == 3.0
        await net.drop_pending()  # nothing is pending
        writer.write(json.dumps({"ok": 2, "cpu_s": 4.0}).encode() + b"\n")
        assert await net.ask("cut") == 2
        writer.close()
        net._life._writer.close()

    asyncio.run(run())
