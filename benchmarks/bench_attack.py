"""Effect of attacks on a green agent's other users: agent card, an honest run, and memory.

    python benchmarks/bench_attack.py [--seconds 6] [--only NAME...]

A served process (the toy application) is attacked over loopback, by clients or by an agent under
test. The attacks run one after the other, each for a few seconds. Prints for each attack:

- the response time of the agent card during the attack: median, longest, and number of failures
- the duration of a concurrent honest assessment of 12 queries
- the growth of the process in MiB

Attackers, service and honest clients run in separate processes.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / path) for path in (".", "tests/unit", "tests/toy")]

import httpx  # noqa: E402 -- needs the path above

ROLE = "toy_operator"
CARD = ".well-known/agent-card.json"
#: Time limit of a request for the card, in s.
LONGEST_S = 60.0
#: Suffix of host names whose DNS look-up does not end during the benchmark.
HANGING = ".hang.test"

# The service under attack.


def serve(root: str) -> None:
    """Serve the toy's green agent; DNS look-ups of names with the suffix ``HANGING`` never end."""
    from netarena_toy import Toy

    from netarena.a2a.server import serve as serve_green

    look_up = socket.getaddrinfo

    def hang(host: Any, *rest: Any, flags: int = 0, **how: Any) -> Any:
        if str(host).endswith(HANGING) and not flags & socket.AI_NUMERICHOST:
            time.sleep(3600)
        return look_up(host, *rest, flags=flags, **how)

    socket.getaddrinfo = hang

    def announce(url: str) -> None:
        print(url, flush=True)

    serve_green(Toy(), port=0, out=Path(root), data=None, ready=announce)


# Attacks by clients: data that a connection sends repeatedly.


def post(*headers: bytes) -> bytes:
    lines = [b"POST / HTTP/1.1", b"Host: a", b"A2A-Version: 1.0", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def rpc(params: bytes, method: bytes = b"SendMessage") -> bytes:
    body = b'{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}' % (method, params)
    return post(b"Content-Length: %d" % len(body)) + body


CHUNKED = post(b"Transfer-Encoding: chunked")
MESSAGE = b'{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}],"metadata":%s}}'
#: Name -> number of connections, and the data that each connection sends.
CLIENTS: dict[str, tuple[int, Callable[[], bytes]]] = {
    "chunks of a byte": (1, lambda: CHUNKED + b"1\r\na\r\n" * 400_000),
    "chunks of a byte, 8 connections": (8, lambda: CHUNKED + b"1\r\na\r\n" * 400_000),
    "few chunks of a byte, 8 connections": (8, lambda: CHUNKED + b"1\r\na\r\n" * 1000 + b"0\r\n"),
    "headers": (8, lambda: b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 100_000),
    "headers in time": (8, lambda: b"GET / HTTP/1.1\r\n" + b"a:\n" * 5000 + b"\n"),
    "trailers": (8, lambda: CHUNKED + b"0\r\n" + b"a:\n" * 100_000),
    "requests in a row": (8, lambda: b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n" * 5000),
    "many values": (4, lambda: rpc(MESSAGE % (b'{"a":[%s0]}' % (b"0," * 500_000)))),
    "nested": (4, lambda: rpc(b"[" * 500_000)),
}


# Attacks by clients that send little and stay connected: ``HELD_CONNECTIONS`` at the start, and 100
# more per second.

HELD_CONNECTIONS = 560


def subscribe(url: str) -> bytes:
    """Return a request for a subscription to a task that never ends because its agent never
    answers."""
    silent = socket.create_server(("127.0.0.1", 0))
    SILENT.append(silent)
    agents = {ROLE: f"http://127.0.0.1:{silent.getsockname()[1]}/"}
    message = {"messageId": "m", "role": "ROLE_USER"}
    message["parts"] = [{"text": json.dumps({"participants": agents})}]
    asked = {"message": message, "configuration": {"returnImmediately": True}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": asked}
    answer = httpx.post(url, json=call, headers={"a2a-version": "1.0"}, timeout=None)
    task = {"id": answer.json()["result"]["task"]["id"]}
    return rpc(json.dumps(task).encode(), b"SubscribeToTask")


SILENT: list[socket.socket] = []
HELD: dict[str, Callable[[str], bytes]] = {
    "half-sent requests": lambda _: post(b"Content-Length: 1000") + b"{",
    "streams left open": subscribe,
}


def stay(name: str, url: str, seconds: float) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    payload = HELD[name](url)
    until = time.monotonic() + seconds
    port = httpx.URL(url).port
    held: list[socket.socket] = []
    while time.monotonic() < until:
        with suppress(OSError):
            held.append(socket.create_connection(("127.0.0.1", port), 5))
            held[-1].sendall(payload)
        if len(held) >= HELD_CONNECTIONS:
            time.sleep(0.01)


def attack(name: str, url: str, seconds: float) -> None:
    if name in HELD:
        stay(name, url, seconds)
        return
    connections, make = CLIENTS[name]
    payload = make()
    until = time.monotonic() + seconds
    port = httpx.URL(url).port

    def run() -> None:
        while time.monotonic() < until:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as client:
                client.sendall(payload)
                # the client waits only briefly for a response
                client.settimeout(0.2)
                client.recv(1000)

    threads = [threading.Thread(target=run) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# Attacks by agents: data after the head of the response to a message.

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n"
CLOSE = b"Connection: close\r\n\r\n"


def forever(piece: bytes, first: bytes = b"") -> Iterator[bytes]:
    yield first
    while True:
        yield piece


AGENTS: dict[str, Callable[[], Iterator[bytes]]] = {
    "SSE line without an end": lambda: forever(
        b"1\r\na\r\n" * 10_000, STREAM + CHUNKS + b"%x\r\n%s\r\n" % (3 * 2**20, b"a" * 3 * 2**20)
    ),
    "JSON in chunks of a byte": lambda: forever(b"1\r\na\r\n" * 10_000, PLAIN + CHUNKS),
    "SSE of empty lines": lambda: forever(b"\n" * 65_536, STREAM + CLOSE),
    "SSE of comments": lambda: forever(b":\n" * 32_768, STREAM + CLOSE),
    "junk after gzip": lambda: forever(
        b"x" * 65_536, PLAIN + b"Content-Encoding: gzip\r\n" + CLOSE + gzip.compress(b"{}")
    ),
    "endless gzip head": lambda: forever(
        b"x" * 65_536, PLAIN + b"Content-Encoding: gzip\r\n" + CLOSE
        + b"\x1f\x8b\x08\x08\0\0\0\0\0\x03",
    ),
    "informational responses": lambda: forever(b"HTTP/1.1 103 x\r\n\r\n" * 3000),
    "headers of a reply": lambda: forever(b"a:\n" * 20_000, b"HTTP/1.1 200 OK\r\n"),
}  # fmt: skip


def silence() -> Iterator[bytes]:
    time.sleep(3600)
    yield b""


#: Attacks by the content of requests: name -> number of requests, and the config.
TASKS: dict[str, tuple[int, dict[str, Any]]] = {
    "silence in all places": (1, {"num_queries": 99, "concurrency": 256}),
    "silence in all places, 8 tasks": (8, {"num_queries": 99, "concurrency": 256}),
    "33,333 queries of each label, 8 tasks": (8, {"num_queries": 33_333}),
    "100,000 queries of each label, one asked": (8, {"num_queries": 100_000, "end_index": 1}),
    "33,333 queries of each label written, one asked": (
        8,
        {"num_queries": 33_333, "end_index": 1, "benchmark_path": "queries-of-all.jsonl"},
    ),
}
#: Name of the attack in which the other participant of the honest assessment never answers.
BESIDE = "silence of another participant"


def agent(name: str) -> None:
    """Serve an agent with a valid card that answers messages with the data of attack ``name``."""
    card = json.dumps({
        "name": "x", "description": "x", "version": "1", "url": "http://x/",
        "protocolVersion": "0.3.0", "capabilities": {"streaming": True}, "skills": [],
        "defaultInputModes": [], "defaultOutputModes": [],
    }).encode()  # fmt: skip
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)

    def answer(client: socket.socket) -> None:
        with suppress(OSError), client:
            if client.recv(65_536).startswith(b"GET"):
                head = PLAIN + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(card)
                client.sendall(head + card)
                return
            for piece in AGENTS.get(name, silence)():
                client.sendall(piece)

    while True:
        client, _ = listener.accept()
        threading.Thread(target=answer, args=(client,), daemon=True).start()


# Measurements.


@contextmanager
def program(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run this file as a process; yield the process and its first line (context manager)."""
    line = [sys.executable, __file__, *map(str, arguments)]
    # the service's messages about its attackers are irrelevant here
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(line, **how) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def see(http: httpx.AsyncClient, url: str, agents: dict[str, str], **config: Any) -> str:
    """Request an assessment of ``agents``, and return when the summary of ``ROLE`` has arrived."""
    text = json.dumps({"participants": agents, "config": config})
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    asked = {"message": message, "configuration": {"returnImmediately": True}}

    async def rpc(method: str, params: dict[str, Any]) -> dict[str, Any]:
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await http.post(url, json=call, headers={"a2a-version": "1.0"})
        result: dict[str, Any] = answer.json()["result"]
        return result

    task = (await rpc("SendMessage", asked))["task"]
    while True:
        task = await rpc("GetTask", {"id": task["id"]})
        for artifact in task.get("artifacts", ()):
            if artifact["name"] == ROLE and "outcomes" in artifact["parts"][-1]["text"]:
                return "COMPLETED"
        await asyncio.sleep(0.05)


async def ask(http: httpx.AsyncClient, url: str, agents: dict[str, str], **config: Any) -> str:
    """Request an assessment of ``agents`` and return the final state of the task."""
    text = json.dumps({"participants": agents, "config": config})
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    answer = await http.post(url, json=call, headers={"a2a-version": "1.0"}, timeout=None)
    state: str = answer.json()["result"]["task"]["status"]["state"]
    return state


def requests(
    name: str, seconds: float, after: ExitStack
) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Yield participants and config of each assessment that an attack requests."""
    if name == "names that hang":
        for task in range(8):
            names = {f"r{i}": f"http://a{task}-{i}{HANGING}/" for i in range(16)}
            yield names, {"agent_timeout_s": 60}
    elif name in AGENTS:
        _, url = after.enter_context(program("agent", name))
        yield {ROLE: url}, {"agent_timeout_s": seconds, "max_iterations": 2, "concurrency": 2}
    elif name in TASKS:
        times, config = TASKS[name]
        _, url = after.enter_context(program("agent", name))
        yield from [({ROLE: url}, config)] * times


def begin(name: str, url: str, seconds: float, after: ExitStack) -> None:
    """Start the connections of an attack by clients."""
    if name in CLIENTS or name in HELD:
        line = [sys.executable, __file__, "attack", name, url, str(seconds)]
        after.callback(subprocess.Popen(line).wait)


async def measure(name: str, seconds: float) -> None:
    from peer import Answering

    from netarena.a2a.purple import purple_app
    from netarena.a2a.service import listen, serving

    app = purple_app(Answering(lambda _: "open v1"), name="honest", description="d")
    looks: list[float] = []
    missed = 0
    ended = asyncio.Event()
    with (
        tempfile.TemporaryDirectory() as root,
        ExitStack() as after,
        program("serve", root) as (process, url),
    ):

        async def look() -> None:
            nonlocal missed
            while not ended.is_set():
                await asyncio.sleep(0.05)
                begun = time.perf_counter()
                try:
                    async with asyncio.timeout(LONGEST_S):
                        port = httpx.URL(url).port
                        reader, writer = await asyncio.open_connection("127.0.0.1", port)
                        writer.write(f"GET /{CARD} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
                        await reader.readuntil(b"\r\n\r\n")
                        writer.close()
                except (OSError, asyncio.IncompleteReadError):
                    missed += 1
                looks.append(time.perf_counter() - begun)

        async with (
            serving(app, listen("127.0.0.1", 0)) as honest_url,
            httpx.AsyncClient(timeout=None) as http,
        ):
            honest = {ROLE: honest_url}
            await ask(http, url, honest)
            before = resident_mb(process.pid)
            attacks = [
                asyncio.create_task(ask(http, url, agents, **how))
                for agents, how in requests(name, seconds, after)
            ]
            begin(name, url, seconds, after)
            await asyncio.sleep(0.3)
            looking = asyncio.create_task(look())
            begun = time.perf_counter()
            wanted = {"num_queries": 4, "max_iterations": 2}
            try:
                async with asyncio.timeout(LONGEST_S):
                    if name == BESIDE:
                        _, silent = after.enter_context(program("agent", name))
                        both = {"a": silent, **honest}
                        state = await see(http, url, both, concurrency=256, **wanted)
                    else:
                        state = await ask(http, url, honest, **wanted)
                took = f"{time.perf_counter() - begun:.1f}"
                took += "" if state.endswith("COMPLETED") else f" ({state})"
            except (TimeoutError, httpx.TransportError):
                took = f"> {LONGEST_S:g}"
            growth = resident_mb(process.pid) - before
            while time.perf_counter() - begun < seconds:
                await asyncio.sleep(0.1)
                growth = max(growth, resident_mb(process.pid) - before)
            # wait for the last request for the card, so that a slow response is counted
            ended.set()
            await looking
            for one in attacks:
                one.cancel()
            await asyncio.gather(*attacks, return_exceptions=True)
    middle, longest = statistics.median(looks) * 1000, max(looks) * 1000
    unheard = f" ({missed} of {len(looks)} none)" if missed else ""
    print(
        f"| {name} | {middle:.0f}{unheard} | {longest:.0f} | {took} | {growth:+.0f} |", flush=True
    )


def main() -> None:
    names = ["nothing", *CLIENTS, *HELD, *AGENTS, "names that hang", *TASKS, BESIDE]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--only", nargs="+", default=names, choices=names)
    arguments = parser.parse_args()
    print("| attack | card, ms (median) | (longest) | honest run, s | MiB |")
    print("| --- | ---: | ---: | ---: | ---: |", flush=True)
    for name in arguments.only:
        asyncio.run(measure(name, arguments.seconds))


match sys.argv[1:]:
    case ["serve", root]:
        serve(root)
    case ["attack", name, url, seconds]:
        attack(name, url, float(seconds))
    case ["agent", name]:
        agent(name)
    case _:
        main()
