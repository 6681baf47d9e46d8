"""Floods of API requests do not stop other episodes, and the server respects its limits.

The limits of processor time and memory are maxima, because a busy machine only makes floods weaker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netarena.sandbox.caller import Caller
from netarena_k8s.cluster import Deployed
from netarena_k8s.embedded.apiserver.process import CONNECTIONS
from netarena_k8s.embedded.apiserver.quota import AT_ONCE_S, PART
from netarena_k8s.embedded.cluster import Embedded
from netarena_k8s.world.boutique import boutique

POLICIES = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies"
#: duration of a flood, and the time that its client waits for a response, in seconds
FLOOD_S, PATIENCE_S = 6.0, 3.0
#: CPU time of the work that is in progress when an episode must pause: one step for each connection
SLACK_S = 2.0
BODY_BYTES = 3_000_000
#: caller of requests that belong to no command
HERE = Caller(os.getpid())


class Client:
    """Connections to one episode's port, with its operator's token."""

    def __init__(self, deployed: Deployed) -> None:
        self.port = deployed.access.port
        self.token = json.loads(deployed.access.kubeconfig)["users"][0]["user"]["token"]
        self._context = ssl.create_default_context()
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE

    @contextlib.contextmanager
    def connected(self, within_s: float = PATIENCE_S) -> Iterator[ssl.SSLSocket]:
        plain = socket.create_connection(("127.0.0.1", self.port), within_s)
        with plain, self._context.wrap_socket(plain) as connection:
            yield connection

    def head(self, method: str, path: str, *more: str) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {self.token}"]
        return "\r\n".join([*lines, *more, "", ""]).encode()


def handshakes(client: Client) -> None:
    with client.connected():
        pass


def requests(client: Client) -> None:
    with client.connected() as connection:
        for _ in range(20):
            connection.sendall(client.head("GET", POLICIES) * 4)
            connection.recv(1 << 20)


def chunks(client: Client) -> None:
    kind = "Content-Type: application/merge-patch+json"
    with client.connected() as connection:
        path = f"{POLICIES}/frontend"
        connection.sendall(client.head("PATCH", path, kind, "Transfer-Encoding: chunked"))
        for _ in range(20):
            connection.sendall(b"1\r\nx\r\n" * 2000)


def patch(client: Client, body: bytes) -> bytes:
    """Send a patch and return the first part of the response.

    As clients do, open a new connection if a busy machine was too slow for the last one.
    """
    kind = "Content-Type: application/merge-patch+json"
    length = f"Content-Length: {len(body)}"
    head = client.head("PATCH", f"{POLICIES}/frontend", kind, length, "Connection: close")
    for _ in range(10):
        with contextlib.suppress(OSError), client.connected(within_s=60) as connection:
            connection.sendall(head + body)
            if told := connection.recv(1 << 16):
                return told
    return b"no answer"


def repeat(flood: Callable[[Client], None], client: Client, until: float) -> None:
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            flood(client)


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.xdist_group("processor")
@pytest.mark.parametrize("flood", [handshakes, requests, chunks])
def test_request_flood_gets_only_its_episodes_cpu_share(
    flood: Callable[[Client], None],
) -> None:
    async def scene() -> None:
        async with Embedded() as cluster, contextlib.AsyncExitStack() as heard:
            flooded, other = [await cluster.deploy(boutique()) for _ in range(2)]
            await heard.enter_async_context(flooded.admit(HERE))
            assert cluster.pid is not None
            before_s, began = processor_s(cluster.pid), time.monotonic()
            client, until = Client(flooded), began + FLOOD_S
            threads = [
                threading.Thread(target=repeat, args=(flood, client, until)) for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            looks = 0
            while time.monotonic() < until:
                assert (await other.look()).reached == boutique().intended
                looks += 1
                await asyncio.sleep(0.1)
            for thread in threads:
                await asyncio.to_thread(thread.join)
            # the grader's requests are answered even while the episode's own requests are throttled
            assert (await flooded.look()).reached == boutique().intended
            used_s, lasted_s = processor_s(cluster.pid) - before_s, time.monotonic() - began
            assert used_s <= AT_ONCE_S + PART * lasted_s + SLACK_S + 0.005 * looks

    asyncio.run(scene())


@pytest.mark.slow
@pytest.mark.xdist_group("processor")
def test_three_hostile_episodes_of_eight_do_not_affect_the_others() -> None:
    """The hostile episodes send bodies that never end, on all of their connections."""

    async def scene() -> None:
        async with Embedded() as cluster, contextlib.AsyncExitStack() as heard:
            honest, *others = [await cluster.deploy(boutique()) for _ in range(8)]
            for each in (honest, *others):
                await heard.enter_async_context(each.admit(HERE))
            hostile = others[:3]
            assert cluster.pid is not None
            before = resident_bytes(cluster.pid)
            held = contextlib.ExitStack()

            def hold(client: Client) -> None:
                with contextlib.suppress(OSError):
                    connection = held.enter_context(client.connected())
                    length = f"Content-Length: {BODY_BYTES}"
                    connection.sendall(client.head("PATCH", f"{POLICIES}/frontend", length))
                    connection.sendall(bytes(BODY_BYTES - 1))

            with held:
                threads = [
                    threading.Thread(target=hold, args=(Client(deployed),))
                    for deployed in hostile
                    for _ in range(CONNECTIONS)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    await asyncio.to_thread(thread.join)
                grown = resident_bytes(cluster.pid) - before
                assert grown <= len(hostile) * CONNECTIONS * BODY_BYTES / 2
                # the eighth episode's patch works and takes effect
                told = await asyncio.to_thread(patch, Client(honest), b'{"spec":{"ingress":[]}}')
                assert told.startswith(b"HTTP/1.1 200"), told
                assert (await honest.look()).reached != boutique().intended
                for deployed in others:
                    assert (await deployed.look()).reached == boutique().intended

    asyncio.run(scene())
