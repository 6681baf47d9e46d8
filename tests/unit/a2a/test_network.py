"""Names that never resolve, refused addresses, and endless data before a reply."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpcore
import pytest
from peer import card03, message03, raw_server, replying, respond, until

from netarena.a2a import network
from netarena.a2a.client import A2AAgent
from netarena.a2a.network import OWN_LOOKUPS, AddressRefused, Network, is_refused
from netarena.errors import AgentFailed, ConfigError, FailureReason

pytestmark = pytest.mark.anyio
METADATA = "169.254.169.254"


@contextmanager
def names(**known: str | list[str]) -> Iterator[list[str]]:
    """Install a resolver that hangs on all names except ``known``; yield the looked-up names."""
    asked: list[str] = []
    end = threading.Event()
    real = socket.getaddrinfo

    def find(host: Any, port: Any, *rest: Any, flags: int = 0, **how: Any) -> Any:
        if flags & socket.AI_NUMERICHOST or host not in known:
            if not flags & socket.AI_NUMERICHOST:
                asked.append(host)
                end.wait(30)
                raise socket.gaierror(socket.EAI_AGAIN, "no answer")
            return real(host, port, *rest, flags=flags, **how)
        asked.append(host)
        found = known[host]
        if isinstance(found, list):  # each lookup returns another address
            found = found.pop(0)
        return [
            info
            for address in found.split()
            for info in real(address, port, flags=socket.AI_NUMERICHOST, type=socket.SOCK_STREAM)
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", find)
        try:
            yield asked
        finally:
            end.set()
    for thread in threading.enumerate():
        if thread.name == "look-up":
            thread.join(10)


@pytest.mark.parametrize(
    "address",
    [
        "169.254.0.1", METADATA, "169.254.170.2", "169.254.255.255", "100.100.100.200",
        "168.63.129.16", "192.0.0.192", "fe80::1", "febf:ffff::1", "fd00:ec2::254", "fd00:ec2::23",
        "fd20:ce::254",
        # IPv6 forms of an IPv4 address
        "::ffff:169.254.169.254", "::169.254.169.254", "::ffff:0:169.254.169.254",
        "64:ff9b::169.254.169.254", "64:ff9b:1::169.254.169.254", "64:ff9b:1:a9fe:a9:fe00::",
        "2002:a9fe:a9fe::1", "2001:db8::5efe:169.254.169.254", "2001:db8::200:5efe:169.254.1.1",
        "2001:0:a9fe:a9fe::1", "2001:0:102:304:0:0:5601:5601",
    ],
)  # fmt: skip
def test_link_local_and_metadata_addresses_are_refused(address):
    assert is_refused(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "192.168.1.1", "172.17.0.2", "169.253.1.1", "169.255.0.1",
        "8.8.8.8", "100.100.100.201", "::1", "fd00::1", "fec0::1", "2001:db8::1", "2606:4700::1111",
        "::ffff:10.0.0.1", "64:ff9b::8.8.8.8",
    ],
)  # fmt: skip
def test_other_addresses_are_allowed(address):
    assert not is_refused(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "host",
    [
        METADATA, "2852039166", "0xa9fea9fe", "0XA9.0xfe.0251.254", "0251.0376.0251.0376",
        "169.254.43518", "169.16689662", "[fe80::1]", "[::ffff:169.254.169.254]", "[::ffff:a9fe:1]",
        "[64:ff9b::a9fe:a9fe]", "[fd00:ec2::254]", "[fe80::1%25lo]", "[fe80::1%lo]",
        # a name with only a refused address, and a name that also has an allowed one
        "metadata", "mixed",
    ],
)  # fmt: skip
async def test_participant_at_a_refused_address_is_rejected(host):
    urls = {"fine": "http://127.0.0.1:9/", "role": f"http://{host}:80/x"}
    with names(metadata=METADATA, mixed=f"127.0.0.1 {METADATA}"):
        with pytest.raises(ConfigError, match=r"participants\.role: must not resolve to a link"):
            await Network().check(urls)
        await Network(allow_link_local=True).check(urls)


async def test_unresolved_names_are_checked_when_a_connection_is_made(
    monkeypatch,
):
    monkeypatch.setattr(network, "CHECK_S", 0.05)
    long = "a" * 64
    with names():
        await Network().check({"a": "http://hangs/", "b": "http://a..b/", "c": f"http://{long}/"})


async def test_connection_goes_to_the_address_that_was_checked():
    """A name may resolve to another address at each lookup."""
    async with raw_server(replying(message03("hello"))) as server:
        port = server.url.rsplit(":", 1)[1].strip("/")
        url = f"http://twisted:{port}/"
        with names(twisted=["127.0.0.1", METADATA, METADATA]) as asked:
            doors = Network()
            await doors.check({"a": url})
            agent = A2AAgent(url, network=doors)
            with pytest.raises(AgentFailed, match=r"endpoint: .*link-local or metadata") as caught:
                await agent.open(timeout_s=5)
            await agent.aclose()
            assert caught.value.reason is FailureReason.ENDPOINT
            assert asked == ["twisted"] * 2
            # the same attack without a pause between the two lookups
            with pytest.raises(AddressRefused):
                await doors.connect_tcp("twisted", int(port))
    assert not server.calls


async def test_agent_with_several_addresses_is_reached_at_an_address_that_answers():
    async with raw_server(replying(message03("hello"))) as server:
        port = server.url.rsplit(":", 1)[1].strip("/")
        # nothing listens at ::1 and 127.1.2.3
        with names(several="::1 127.1.2.3 127.0.0.1"):
            agent = A2AAgent(f"http://several:{port}/")
            await agent.open(timeout_s=5)
            assert (await agent.ask("x", context_id="c", timeout_s=5)).text == "hello"
            await agent.aclose()
        assert server.calls[-1].headers["host"] == f"several:{port}"


async def test_hanging_lookup_does_not_block_other_agents():
    """Neither other agents nor the threads of the event loop are blocked."""
    async with raw_server(replying(message03("hello"))) as server:
        port = server.url.rsplit(":", 1)[1].strip("/")
        with names(honest="127.0.0.1") as asked:
            hanging = [
                asyncio.create_task(Network().connect_tcp(f"hangs{n}", 80, timeout=60))
                for n in range(100)
            ]
            await until(lambda: len(asked) == 100)
            agent = A2AAgent(f"http://honest:{port}/")
            async with asyncio.timeout(5):
                await agent.open(timeout_s=5)
                assert await asyncio.to_thread(lambda: 1) == 1
            await agent.aclose()
            for task in hanging:
                task.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)


async def give_up(doors: Network, *hosts: str) -> None:
    """Try to connect to names whose lookups hang, until the time limit."""
    asks = [doors.connect_tcp(host, 80, timeout=0.01) for host in hosts]
    ends = await asyncio.gather(*asks, return_exceptions=True)
    assert {type(end) for end in ends} == {httpcore.ConnectTimeout}
    assert doors.busy


async def test_abandoned_lookups_count_towards_the_limits_of_their_task_and_of_all_tasks(
    monkeypatch,
):
    monkeypatch.setattr(network, "SHARED_LOOKUPS", 3)
    with names(honest="127.0.0.1") as asked:
        for task in "ab":
            doors = Network()
            for _ in range(3):
                await give_up(doors, *(f"{task}{n}" for n in range(16)))
        assert sorted(asked) == ["a0", "a1", "a2", "a3", "a4", "b0", "b1"]
        # a task that has used all of its lookups must wait; other tasks continue
        with pytest.raises(httpcore.ConnectTimeout):
            await doors.connect_tcp("honest", 9, timeout=0.01)
        for _ in range(100):
            assert await Network()._find("honest") == ["127.0.0.1"]
        # one hanging lookup does not prevent a second lookup of the same task
        doors = Network()
        await give_up(doors, "hangs")
        for _ in range(2):
            assert await doors._find("honest") == ["127.0.0.1"]
        assert OWN_LOOKUPS == 2


async def test_slots_of_ended_lookups_are_released(monkeypatch):
    monkeypatch.setattr(network, "SHARED_LOOKUPS", 3)
    doors = Network()
    for _ in range(2):
        with names():
            await give_up(doors, *(f"hangs{n}" for n in range(5)))
        await until(lambda: not doors.busy)
        assert network._lookups._shared == 0


@pytest.mark.parametrize("piece", [b"HTTP/1.1 103 x\r\n\r\n", b"HTTP/1.1 100 x\r\nA: b\r\n\r\n"])
async def test_endless_http_headers_are_refused(piece):
    async def script(call, writer):
        if call.method == "GET":
            respond(writer, card03())
            return
        while not writer.is_closing():  # until the client closes the connection
            writer.write(piece * 100)
            await writer.drain()

    async with raw_server(script) as server:
        agent = A2AAgent(server.url)
        await agent.open(timeout_s=5)
        async with asyncio.timeout(20):
            with pytest.raises(
                AgentFailed, match="the headers of the reply have more than"
            ) as caught:
                await agent.ask("x", context_id="c", timeout_s=60)
        assert caught.value.reason is FailureReason.TOO_LARGE
        # ordinary replies are accepted, because the limit applies to each reply separately
        server.script = replying(message03("hello"))
        for _ in range(3):
            assert (await agent.ask("x", context_id="c", timeout_s=5)).text == "hello"
        await agent.aclose()
