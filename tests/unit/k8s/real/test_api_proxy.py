"""The proxy of an agent's requests to a real API server; it refuses reads of earlier versions."""

import asyncio
import base64
import contextlib
import errno
import gc
import io
import json
import os
import socket
import ssl
from urllib.parse import quote, urlencode

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from netarena.errors import EnvironmentFailed
from netarena.sandbox.caller import Caller
from netarena_k8s.embedded.apiserver.authority import Authority
from netarena_k8s.embedded.apiserver.bound import POLICY_CHARS, POLICY_ENTRIES
from netarena_k8s.embedded.apiserver.call import BODY_BYTES
from netarena_k8s.real import api_proxy
from netarena_k8s.real.api_proxy import Gate
from netarena_k8s.real.client import Server

SINCE = 1000
LIST = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies"


class Upstream:
    """A fake API server: records requests, and reports whether it is ready."""

    def __init__(self):
        self.asked = []
        self.ready = True
        #: token of the agent's account
        self.token = "t"
        #: policy and status in the response to a change of a policy
        self.policy, self.status = b"{}", 200
        self.started, self.ended = asyncio.Event(), asyncio.Event()

    async def is_ready(self):
        return self.ready

    async def lend(self):
        if self.token is None:
            raise EnvironmentFailed("no token")
        return self.token

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
            case "/policy":
                return web.Response(
                    body=self.policy, status=self.status, content_type="application/json"
                )
            case "/warns":
                count, length = int(request.query["count"]), int(request.query["length"])
                warnings = [("Warning", f'299 - "{n} {"€" * length}"') for n in range(count)]
                return web.Response(headers=warnings)
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
async def opened(listening=None, **more):
    """Yield a proxy to a fake API server, and a client that trusts it as kubectl does."""
    upstream, authority = Upstream(), Authority()
    server = web.Server(upstream.answer, handler_cancellation=True, access_log=None)
    behind = await asyncio.get_running_loop().create_server(
        server, "127.0.0.1", 0, ssl=authority.context
    )
    port = behind.sockets[0].getsockname()[1]
    one = Gate(Server(f"https://127.0.0.1:{port}",
                      authority.root, **more), upstream.is_ready, upstream.lend)  # fmt: skip
    one.since = SINCE
    listening = listening or socket.create_server(("127.0.0.1", 0))
    base = f"https://127.0.0.1:{listening.getsockname()[1]}"
    await one.start(listening)
    one.admit(Caller(os.getpid()))
    trust = ssl.create_default_context(cadata=one.root)
    try:
        async with aiohttp.ClientSession(
            base, connector=aiohttp.TCPConnector(ssl=trust, limit=0), auto_decompress=False,
            headers={"Authorization": f"Bearer {one.word}"},
            max_field_size=2**20, max_headers=2**13,
        ) as client:  # fmt: skip
            yield one, upstream, client, base, trust
    finally:
        await one.close()
        behind.close()
        await server.shutdown(1)


def known(one):
    """Return the header that authenticates a client of the proxy."""
    return f"Authorization: Bearer {one.word}\r\n"


def run(scene, **more):
    async def whole():
        async with opened(**more) as parts:
            await scene(*parts)

    asyncio.run(whole())


def coded(text):
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def token(**given):
    return coded(json.dumps(given))


def test_request_and_response_pass_through_the_proxy_unchanged():
    async def scene(one, upstream, client, _base, _trust):
        body = b'[{"op":"remove","path":"/spec"}]'
        headers = {"Content-Type": "application/json-patch+json",
                   "User-Agent": "kubectl", "Accept-Encoding": "gzip", "Upgrade": "h2c",
                   "Connection": "Upgrade, X-Mine", "X-Mine": "1"}  # fmt: skip
        path = f"{LIST}/a%2fb?fieldManager=k%20k&force=&limit=500"
        async with client.patch(URL(path, encoded=True), data=body,
                                headers=headers) as answer:  # fmt: skip
            assert answer.status == 203
            assert answer.headers["Audit-Id"] == "7"
            assert await answer.json() == {"path": f"{LIST}/a/b"}
        (tried, (method, there, heard, sent)) = upstream.asked
        assert tried[:2] == (method, f"{there}&dryRun=All")
        assert tried[3] == sent
        assert (method, sent) == ("PATCH", body)
        assert there == f"{LIST}/a%2fb?fieldManager=k+k&force=&limit=500"
        assert heard["Authorization"] == "Bearer t"
        assert heard["User-Agent"] == "kubectl"
        assert heard["Accept-Encoding"] == "gzip"
        assert not {"Upgrade", "X-Mine", "Cookie"} & heard.keys()
        assert one.failures == 0

    run(scene)


def test_request_without_the_episodes_bearer_token_is_unauthorized():
    """Tokens of other episodes and of the API server are not valid either."""

    async def scene(one, upstream, client, _base, _trust):
        for shown in ("", "Bearer", "Bearer t", "Bearer é", f"Basic {one.word}", f"{one.word}",
                      f"Bearer {one.word}x", f"bearer {one.word}"):  # fmt: skip
            async with client.get(LIST, headers={"Authorization": shown}) as answer:
                assert answer.status == 401
                assert (await answer.json())["message"] == "Unauthorized"
        twice = [("Authorization", f"Bearer {one.word}"), ("Authorization", "Bearer other")]
        async with client.get(LIST, headers=twice) as answer:
            assert answer.status == 401
        assert upstream.asked == []

    run(scene)


def test_proxy_sends_its_own_token_and_drops_impersonation_headers():
    async def scene(one, upstream, client, _base, _trust):
        sent = {"Impersonate-User": "admin", "impersonate-group": "system:masters",
                "X-Remote-User": "admin"}  # fmt: skip
        for upstream.token in ("t", "u"):
            async with client.get(LIST, headers=sent) as answer:
                assert answer.status == 203
            _, _, heard, _ = upstream.asked[-1]
            assert heard.getall("Authorization") == [f"Bearer {upstream.token}"]
            assert not {"Impersonate-User", "Impersonate-Group", "X-Remote-User"} & heard.keys()
        upstream.token = None
        with pytest.raises(aiohttp.ClientError):
            await client.post(LIST)
        assert one.failures == 1

    run(scene)


LARGE = {"metadata": {"annotations": {"a": "<" * POLICY_CHARS}}}
MANY = {"spec": {"ingress": [{}] * (POLICY_ENTRIES + 1)}}
FEW = {"spec": {"ingress": [{}] * POLICY_ENTRIES}}


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (FEW, ""),
        (MANY, "at most 100 entries (rules, peers, ports, blocks, values)"),
        (LARGE, "at most 65536 characters of JSON, including metadata and field managers"),
        # longer than the part of a body that the proxy reads
        ({"metadata": {"annotations": {"a": "<" * 7 * POLICY_CHARS}}}, "at most 65536 characters"),
    ],
)
def test_change_that_makes_a_policy_too_large_is_refused_after_a_dry_run(method, shown, told):
    async def scene(one, upstream, client, _base, _trust):
        upstream.policy = json.dumps(shown).encode()
        headers = {"Accept": "application/vnd.kubernetes.protobuf", "Accept-Encoding": "gzip"}
        async with client.request(method, "/policy", data=b"patch", headers=headers) as answer:
            found = await answer.json()
            assert answer.status == (403 if told else 200)
        if told:
            assert told in found["message"]
            assert found["message"].startswith(
                'networkpolicies.networking.k8s.io "policy" is forbidden: a policy may have '
            )
            assert found["reason"] == "Forbidden"
        else:
            assert found == shown
        asked = [(path, sent, heard["Accept"]) for _, path, heard, sent in upstream.asked]
        tried = ("/policy?dryRun=All", b"patch", "application/json")
        made = ("/policy", b"patch", "application/vnd.kubernetes.protobuf")
        assert asked == [tried, *([] if told else [made])]
        assert upstream.asked[0][2]["Accept-Encoding"] == "identity"
        assert one.failures == 0

    run(scene)


@pytest.mark.parametrize(("status", "text"), [(422, b'{"message": "no"}'), (301, b"<a>Moved</a>")])
def test_change_refused_in_the_dry_run_is_not_applied(status, text):
    async def scene(one, upstream, client, _base, _trust):
        upstream.policy, upstream.status = text, status
        async with client.patch("/policy", data=b"patch", allow_redirects=False) as answer:
            assert (answer.status, await answer.read()) == (status, text)
        assert [path for _, path, _, _ in upstream.asked] == ["/policy?dryRun=All"]

    run(scene)


def test_change_body_above_the_size_limit_is_not_forwarded():
    async def scene(one, upstream, client, _base, _trust):
        async with client.patch("/policy", data=io.BytesIO(bytes(BODY_BYTES + 1))) as answer:
            assert answer.status == 413
            assert (await answer.json())["message"].endswith("limit is 3145728")
        assert not upstream.asked

    run(scene)


def test_concurrent_changes_are_tested_and_applied_one_at_a_time():
    async def scene(one, upstream, client, _base, _trust):
        await asyncio.gather(*(client.patch("/policy", data=b"patch") for _ in range(8)))
        paths = [path for _, path, _, _ in upstream.asked]
        assert paths == ["/policy?dryRun=All", "/policy"] * 8

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
def test_read_of_a_version_before_the_episode_is_refused_as_expired(query):
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
def test_read_of_a_version_within_the_episode_is_forwarded(pairs):
    async def scene(_one, upstream, client, _base, _trust):
        async with client.get(LIST, params=pairs) as answer:
            assert answer.status == 203
        assert upstream.asked[0][1] == f"{LIST}?{urlencode(pairs)}"

    run(scene)


def test_request_to_a_server_that_is_not_ready_counts_as_a_failure_and_is_not_forwarded():
    async def scene(one, upstream, client, _base, _trust):
        upstream.ready = False
        with pytest.raises(aiohttp.ClientError):
            await client.post(LIST, data=b"x")
        assert one.failures >= 1
        assert upstream.asked == []

    run(scene)


def test_refused_connection_to_the_server_counts_as_a_failure():
    async def scene(one, _upstream, client, _base, _trust):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        one._to = Server(f"https://127.0.0.1:{port}")
        with pytest.raises(aiohttp.ClientError):
            await client.post(LIST, data=b"x")
        assert one.failures >= 1

    run(scene)


@pytest.mark.parametrize(("query", "failures"), [("", 0), ("?away", 1)])
def test_aborted_response_counts_as_a_failure_only_if_the_server_is_not_ready(query, failures):
    async def scene(one, _upstream, client, _base, _trust):
        with pytest.raises(aiohttp.ClientError):
            async with client.post(f"/breaks{query}") as answer:
                await answer.read()
        assert one.failures == failures

    run(scene)


@pytest.mark.parametrize(
    ("query", "failures"), [("", 0), ("?watch=true", 1), ("?limit=5&watch=1", 1)]
)
def test_watch_ended_by_a_stopping_server_counts_as_a_failure(query, failures):
    async def scene(one, _upstream, client, _base, _trust):
        async with client.get(f"/ends{query}") as answer:
            assert await answer.text() == "all"
        await one.close()
        assert one.failures == failures

    run(scene)


def test_watch_closed_by_the_client_is_cleaned_up_without_a_failure():
    async def scene(one, upstream, client, _base, _trust):
        async with client.get("/watch?watch=true") as answer:
            assert await answer.content.read(5) == b"first"
            upstream.ready = False
            answer.close()
        async with asyncio.timeout(10):
            await upstream.ended.wait()
        assert one.failures == 0

    run(scene)


def test_closed_proxy_ends_open_connections_and_stops_listening():
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


def test_only_the_running_command_can_use_the_proxy():
    async def scene(one, upstream, client, base, trust):
        async with client.get("/watch?watch=true") as answer:
            assert await answer.content.read(5) == b"first"
            one.dismiss()
            with contextlib.suppress(aiohttp.ClientError):
                assert await answer.content.read() == b""
        async with asyncio.timeout(10):
            await upstream.ended.wait()
        for stranger in (None, Caller(os.getpid(), os.geteuid() + 1)):
            if stranger is not None:
                one.admit(stranger)
            with pytest.raises(aiohttp.ClientError):
                await client.post(LIST)
        assert len(upstream.asked) == 1
        one.admit(Caller(os.getpid(), os.geteuid()))
        async with client.get(LIST) as answer:
            assert answer.status == 203
        one._caller = None  # the client is still connected after its command has ended
        async with client.get(LIST) as answer:
            assert answer.status == 401

    run(scene)


def test_connection_above_the_limit_is_closed_without_a_response(monkeypatch):
    monkeypatch.setattr(api_proxy, "CONNECTIONS", 2)

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


def plain(base):
    """Open a connection and send nothing."""
    return asyncio.open_connection("127.0.0.1", int(base.rpartition(":")[2]))


async def is_closed(reader):
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            return await reader.read() == b""
        return True


def test_connections_count_towards_the_limit_before_their_tls_handshakes(monkeypatch):
    monkeypatch.setattr(api_proxy, "CONNECTIONS", 3)

    async def scene(one, upstream, client, base, trust):
        ends = [await plain(base) for _ in range(3)]
        reader, writer = await plain(base)
        assert await is_closed(reader)
        writer.close()
        with pytest.raises(aiohttp.ClientError):
            await client.post(LIST)
        assert upstream.asked == []
        for reader, writer in ends:
            await writer.start_tls(trust, server_hostname="127.0.0.1")
            writer.write(f"GET /late HTTP/1.1\r\nHost: x\r\n{known(one)}\r\n".encode())
            assert (await reader.readline()).split()[1] == b"203"
            writer.close()

    run(scene)


def test_connection_closed_before_its_handshake_frees_its_slot(monkeypatch):
    monkeypatch.setattr(api_proxy, "CONNECTIONS", 2)

    async def scene(_one, upstream, client, base, _trust):
        ends = [await plain(base) for _ in range(2)]
        with pytest.raises(aiohttp.ClientError):
            await client.post(LIST)
        for _, writer in ends:
            writer.close()
        async with asyncio.timeout(10):
            while not upstream.asked:
                with contextlib.suppress(aiohttp.ClientError):
                    async with client.get(LIST) as answer:
                        assert answer.status == 203

    run(scene)


def test_failed_handshake_leaves_no_task_and_no_log_line(monkeypatch, caplog):
    monkeypatch.setattr(api_proxy, "_HANDSHAKE_S", 0.2)

    async def scene(one, _upstream, client, base, _trust):
        for said in (b"", b"no TLS\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"):
            reader, writer = await plain(base)
            writer.write(said)
            assert await is_closed(reader)
            writer.close()
        _, writer = await plain(base)
        writer.transport.abort()
        # the aborted connection was accepted before this one
        async with client.get(LIST) as answer:
            assert answer.status == 203
        async with asyncio.timeout(10):
            await asyncio.gather(*(task for _, task in one._shaking.values()))
        assert one._shaking == {}

    run(scene)
    gc.collect()
    assert caplog.records == []


def test_closed_proxy_cancels_handshakes_of_any_age(caplog):
    async def scene(one, _upstream, _client, base, _trust):
        loop = asyncio.get_running_loop()
        # a client that closes its connection before it is accepted must not block the others
        assert not one._listening.getblocking()
        with (
            socket.create_connection(("127.0.0.1", int(base.rpartition(":")[2]))) as old,
            socket.create_connection(("127.0.0.1", int(base.rpartition(":")[2]))) as new,
        ):
            one._accept()
            ((_, task),) = one._shaking.values()
            loop.remove_reader(one._listening)
            for _ in range(5):
                await asyncio.sleep(0)
            assert not task.done()
            one._accept()
            assert len(one._shaking) == 2
            # this is shorter than the time limit of handshakes
            async with asyncio.timeout(10):
                await one.close()
            assert one._shaking == {}
            for end in (old, new):
                end.setblocking(False)
                assert end.recv(1) == b""

    run(scene)
    gc.collect()
    assert caplog.records == []


def test_connections_are_accepted_later_if_file_descriptors_run_out():
    class Poor(socket.socket):
        tries = 0

        def accept(self):
            self.tries += 1
            if self.tries <= 3:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    listening = Poor(fileno=socket.create_server(("127.0.0.1", 0)).detach())

    async def scene(_one, _upstream, client, _base, _trust):
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with client.get(LIST) as answer:
            assert answer.status == 203
        # a busy loop would have retried immediately
        assert loop.time() - began > 2.9 * api_proxy.PAUSE_S

    run(scene, listening=listening)


def test_proxy_can_close_while_it_waits_for_file_descriptors(caplog):
    tried = asyncio.Event()

    class Poor(socket.socket):
        def accept(self):
            tried.set()
            raise OSError(errno.EMFILE, "Too many open files")

    listening = Poor(fileno=socket.create_server(("127.0.0.1", 0)).detach())

    async def scene(one, _upstream, _client, base, _trust):
        _, writer = await plain(base)
        async with asyncio.timeout(10):
            await tried.wait()
        await one.close()
        assert one._again.cancelled()
        writer.close()

    run(scene, listening=listening)
    assert caplog.records == []


@pytest.mark.parametrize(("count", "length"), [(1, 300_000), (1, 4000), (4000, 1)])
def test_response_with_long_headers_passes_through_the_proxy(count, length):
    async def scene(one, _upstream, client, _base, _trust):
        async with client.get(f"/warns?count={count}&length={length}") as answer:
            assert answer.status == 200
            warnings = answer.headers.getall("Warning")
        assert warnings == [f'299 - "{n} {"€" * length}"' for n in range(count)]
        assert one.failures == 0

    run(scene)


@pytest.mark.parametrize(
    "line", [b"GET / HTTP/9.9", b"GET /\x01 HTTP/1.1", b"\x00", b"GET /" + b"x" * 9000, b"GET"]
)
def test_malformed_request_is_refused_without_a_log_line(line, caplog, capfd):
    async def scene(_one, upstream, _client, base, trust):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(base.rpartition(":")[2]), ssl=trust
        )
        writer.write(line + b"\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
        assert upstream.asked == []

    run(scene)
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("body", [b"zz\r\n", b"5\r\nab", b"-1\r\n\r\n", b"5\r\nabcdefgh\r\n0\r\n"])
def test_incomplete_request_body_leaves_no_log_line(body, caplog, capfd):
    async def scene(one, _upstream, _client, base, trust):
        _reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(base.rpartition(":")[2]), ssl=trust
        )
        start = f"POST {LIST} HTTP/1.1\r\nHost: x\r\n{known(one)}"
        head = f"{start}Transfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    run(scene)
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_internal_error_of_the_proxy_is_logged_once(caplog, monkeypatch):
    def fails(*_):
        raise RuntimeError("a fault")

    async def scene(one, upstream, client, _base, _trust):
        monkeypatch.setattr(api_proxy, "_is_past", fails)
        for _ in range(3):
            with pytest.raises(aiohttp.ClientError):
                await client.post(LIST)
        assert upstream.asked == []
        assert one.failures == 0

    run(scene)
    assert [(one.levelname, "a fault" in str(one.exc_info)) for one in caplog.records] == [
        ("ERROR", True)
    ]


def test_server_certificate_for_another_name_is_rejected():
    async def scene(one, upstream, client, _base, _trust):
        with pytest.raises(aiohttp.ClientError):
            await client.post(LIST)
        assert upstream.asked == []
        assert one.failures >= 1

    run(scene, name="elsewhere")


def test_request_target_that_is_not_a_path_is_refused():
    async def scene(_one, upstream, _client, base, trust):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(base.rpartition(":")[2]), ssl=trust
        )
        writer.write(b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
        assert upstream.asked == []

    run(scene)
