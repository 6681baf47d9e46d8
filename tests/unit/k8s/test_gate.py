"""An agent's requests to a real API server: passed on as they are, but for those of the past."""

import asyncio
import base64
import contextlib
import json
import socket
import ssl
from urllib.parse import quote, urlencode

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from netarena_k8s.apiserver.authority import Authority
from netarena_k8s.real import gate
from netarena_k8s.real.client import Server
from netarena_k8s.real.gate import Gate

SINCE = 1000
LIST = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies"


class Upstream:
    """An API server: what it was asked, and whether it says that it is ready."""

    def __init__(self):
        self.asked = []
        self.ready = True
        self.started, self.ended = asyncio.Event(), asyncio.Event()

    async def is_ready(self):
        return self.ready

    async def answer(self, request):
        self.asked.append((request.method, request.path_qs, request.headers, await request.read()))
        match request.path:
            case "/watch":
                response = web.StreamResponse()
                await response.prepare(request)
                await response.write(b"first")
                self.started.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    self.ended.set()
            case "/ends":
                self.ready = False
                return web.Response(text="all")
            case "/breaks":
                response = web.StreamResponse()
                await response.prepare(request)
                await response.write(b"half")
                self.ready = False if "away" in request.query else self.ready
                request.transport.abort()
                return response
        return web.json_response({"path": request.path}, headers={"Audit-Id": "7"}, status=203)


@contextlib.asynccontextmanager
async def opened(**more):
    """A gate to an upstream, and a client that trusts it as kubectl does."""
    upstream, authority = Upstream(), Authority()
    server = web.Server(upstream.answer, handler_cancellation=True, access_log=None)
    behind = await asyncio.get_running_loop().create_server(
        server, "127.0.0.1", 0, ssl=authority.context
    )
    port = behind.sockets[0].getsockname()[1]
    one = Gate(Server(f"https://127.0.0.1:{port}",
                      authority.root, **more), upstream.is_ready)  # fmt: skip
    one.since = SINCE
    listening = socket.create_server(("127.0.0.1", 0))
    base = f"https://127.0.0.1:{listening.getsockname()[1]}"
    await one.start(listening)
    trust = ssl.create_default_context(cadata=one.root)
    try:
        async with aiohttp.ClientSession(
            base, connector=aiohttp.TCPConnector(ssl=trust, limit=0), auto_decompress=False
        ) as client:
            yield one, upstream, client, base, trust
    finally:
        await one.close()
        behind.close()
        await server.shutdown(1)


def run(scene, **more):
    async def whole():
        async with opened(**more) as parts:
            await scene(*parts)

    asyncio.run(whole())


def coded(text):
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def token(**given):
    return coded(json.dumps(given))


def test_a_request_and_its_answer_pass_as_they_are():
    async def scene(one, upstream, client, _base, _trust):
        body = b'[{"op":"remove","path":"/spec"}]'
        headers = {"Authorization": "Bearer t", "Content-Type": "application/json-patch+json",
                   "User-Agent": "kubectl", "Accept-Encoding": "gzip", "Upgrade": "h2c",
                   "Connection": "Upgrade, X-Mine", "X-Mine": "1"}  # fmt: skip
        path = f"{LIST}/a%2fb?fieldManager=k%20k&force=&limit=500"
        async with client.patch(URL(path, encoded=True), data=body,
                                headers=headers) as answer:  # fmt: skip
            assert answer.status == 203
            assert answer.headers["Audit-Id"] == "7"
            assert await answer.json() == {"path": f"{LIST}/a/b"}
        ((method, there, heard, sent),) = upstream.asked
        assert (method, sent) == ("PATCH", body)
        assert there == f"{LIST}/a%2fb?fieldManager=k+k&force=&limit=500"
        assert heard["Authorization"] == "Bearer t"
        assert heard["User-Agent"] == "kubectl"
        assert heard["Accept-Encoding"] == "gzip"
        assert not {"Upgrade", "X-Mine", "Cookie"} & heard.keys()
        assert one.failures == 0

    run(scene)


@pytest.mark.parametrize(
    "query",
    [
        "resourceVersion=999&resourceVersionMatch=Exact",
        "watch=1&resourceVersion=999",
        "resource%56ersion=999",
        "resourceVersion=5000&resourceVersion=999",
        "resourceVersion=0999",
        *(
            f"resourceVersion={quote(text)}"
            for text in ("+999", " 999", "\uff19\uff19\uff19", "9_9", "-1", "x")
        ),
        "resourceVersion=" + "1" * 21,
        f"limit=1&continue={token(v='meta.k8s.io/v1', rv=999, start='x')}",
        f"continue={token(v='meta.k8s.io/v1', rv=5000, RV=999, start='x')}",
        f"continue={quote(token(rv=999) + chr(10))}",
        f"continue={token(rv='999')}",
        f"continue={token(rv=None)}",
        f"continue={token(start='x')}",
        "continue=" + coded('{"rv":5000,"rv":999}'),
        "continue=" + coded("[999]"),
        "continue=" + coded("7"),
        "continue=" + coded("[" * 4000),
        "continue=%00",
        "continue=!",
    ],
)
def test_what_was_before_the_episode_has_expired(query):
    async def scene(one, upstream, client, _base, _trust):
        path = URL(f"{LIST}?{query}", encoded=True)
        async with client.get(path) as answer:
            assert answer.status == 410
            assert (await answer.json())["reason"] == "Expired"
        assert upstream.asked == []
        assert one.failures == 0

    run(scene)


@pytest.mark.parametrize(
    "pairs",
    [
        {"resourceVersion": ""},
        {"resourceVersion": "0", "resourceVersionMatch": "NotOlderThan"},
        {"resourceVersion": "1000", "resourceVersionMatch": "Exact"},
        {"resourceVersion": "18446744073709551615"},
        {"continue": ""},
        {"continue": token(v="meta.k8s.io/v1", rv=1000, start="x")},
        {"continue": token(v="meta.k8s.io/v1", rv=-1, start="x")},
    ],
)
def test_what_the_episode_has_seen_may_be_asked_for(pairs):
    async def scene(_one, upstream, client, _base, _trust):
        async with client.get(LIST, params=pairs) as answer:
            assert answer.status == 203
        assert upstream.asked[0][1] == f"{LIST}?{urlencode(pairs)}"

    run(scene)


def test_a_server_that_is_not_ready_is_evidence_and_asked_nothing():
    async def scene(one, upstream, client, _base, _trust):
        upstream.ready = False
        with pytest.raises(aiohttp.ClientError):
            await client.post(LIST, data=b"x")
        assert one.failures >= 1
        assert upstream.asked == []

    run(scene)


def test_a_server_that_takes_no_connection_is_evidence():
    async def scene(one, _upstream, client, _base, _trust):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        one._to = Server(f"https://127.0.0.1:{port}")
        with pytest.raises(aiohttp.ClientError):
            await client.post(LIST, data=b"x")
        assert one.failures >= 1

    run(scene)


@pytest.mark.parametrize(("query", "failures"), [("", 0), ("?away", 1)])
def test_an_answer_that_breaks_off_is_evidence_where_the_server_is_away_then(query, failures):
    async def scene(one, _upstream, client, _base, _trust):
        with pytest.raises(aiohttp.ClientError):
            async with client.post(f"/breaks{query}") as answer:
                await answer.read()
        assert one.failures == failures

    run(scene)


@pytest.mark.parametrize(
    ("query", "failures"), [("", 0), ("?watch=true", 1), ("?limit=5&watch=1", 1)]
)
def test_a_watch_that_a_server_ends_as_it_goes_is_evidence(query, failures):
    async def scene(one, _upstream, client, _base, _trust):
        async with client.get(f"/ends{query}") as answer:
            assert await answer.text() == "all"
        await one.close()
        assert one.failures == failures

    run(scene)


def test_who_leaves_a_watch_leaves_nothing_behind_and_makes_no_evidence():
    async def scene(one, upstream, client, _base, _trust):
        async with client.get("/watch?watch=true") as answer:
            assert await answer.content.read(5) == b"first"
            upstream.ready = False
            answer.close()
        async with asyncio.timeout(10):
            await upstream.ended.wait()
        assert one.failures == 0

    run(scene)


def test_a_closed_gate_ends_what_is_open():
    async def scene(one, upstream, client, base, trust):
        async with client.get("/watch?watch=true") as answer:
            assert await answer.content.read(5) == b"first"
            await one.close()
            with contextlib.suppress(aiohttp.ClientError):
                assert await answer.content.read() == b""
        async with asyncio.timeout(10):
            await upstream.ended.wait()
        port = int(base.rpartition(":")[2])
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection("127.0.0.1", port, ssl=trust)
        await one.close()

    run(scene)


def test_one_connection_too_many_is_closed_unheard(monkeypatch):
    monkeypatch.setattr(gate, "CONNECTIONS", 2)

    async def scene(_one, upstream, client, base, trust):
        port = int(base.rpartition(":")[2])
        ends = [await asyncio.open_connection("127.0.0.1", port, ssl=trust) for _ in range(2)]
        with pytest.raises(aiohttp.ClientError):
            await client.post(LIST)
        ends.pop()[1].close()
        async with asyncio.timeout(10):
            while not upstream.asked:
                with contextlib.suppress(aiohttp.ClientError):
                    async with client.get(LIST) as answer:
                        assert answer.status == 203
        for _, writer in ends:
            writer.close()

    run(scene)


def test_a_server_of_another_name_is_not_believed():
    async def scene(one, upstream, client, _base, _trust):
        with pytest.raises(aiohttp.ClientError):
            await client.post(LIST)
        assert upstream.asked == []
        assert one.failures >= 1

    run(scene, name="elsewhere")


def test_what_is_no_path_is_refused():
    async def scene(_one, upstream, _client, base, trust):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(base.rpartition(":")[2]), ssl=trust
        )
        writer.write(b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
        assert upstream.asked == []

    run(scene)
