"""Shared by the A2A tests: a raw HTTP server with arbitrary responses, and agents that answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netarena.agent.interface import Agent
from netarena.model import AgentInfo, JsonValue, Reply


@dataclass
class Call:
    """One HTTP request as the raw server read it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def rpc(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.body)
        return data

    @property
    def text(self) -> str:
        part: str = self.rpc["params"]["message"]["parts"][0]["text"]
        return part


Script = Callable[[Call, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """A raw server with its URL and the requests it received."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls: list[Call] = []
        self.url = ""

    @property
    def asks(self) -> list[Call]:
        return [call for call in self.calls if call.method == "POST"]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.split("\r\n")
                method, path, _ = first.split(" ")
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in lines if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                call = Call(method, path, headers, body)
                self.calls.append(call)
                await self.script(call, writer)
                await writer.drain()
                if writer.is_closing():
                    return


@asynccontextmanager
async def raw_server(script: Script) -> AsyncIterator[RawServer]:
    raw = RawServer(script)
    writers: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def run() -> None:
            try:
                await raw.handle(reader, writer)
            finally:
                writer.close()

        task = asyncio.get_running_loop().create_task(run())
        writers.add(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    raw.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    try:
        yield raw
    finally:
        server.close()
        for task in writers:
            task.cancel()
        await asyncio.gather(*writers, return_exceptions=True)


def respond(
    writer: asyncio.StreamWriter,
    body: bytes | str | dict[str, Any] = b"",
    *,
    status: str = "200 OK",
    kind: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> None:
    if isinstance(body, dict):
        body = json.dumps(body)
    if isinstance(body, str):
        body = body.encode()
    extra = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    writer.write(
        f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
        f"{extra}\r\n".encode()
        + body
    )


def start_stream(writer: asyncio.StreamWriter) -> None:
    """Start an event stream that ends when the connection is closed."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")


def send_event(writer: asyncio.StreamWriter, call: Call, result: dict[str, Any]) -> None:
    data = {"jsonrpc": "2.0", "id": call.rpc["id"], "result": result}
    writer.write(b"data: " + json.dumps(data).encode() + b"\r\n\r\n")


def card03(**changes: Any) -> dict[str, Any]:
    """Return a card as 0.3 agents write it; nothing listens at its URL."""
    return {
        "name": "old",
        "description": "",
        "url": "http://127.0.0.1:1/",
        "version": "1",
        "protocolVersion": "0.3.0",
        "preferredTransport": "JSONRPC",
        "capabilities": {"streaming": True},
        "defaultInputModes": ["text"],
        "defaultOutputModes": ["text"],
        "skills": [],
        **changes,
    }


def card10(**changes: Any) -> dict[str, Any]:
    """Return a card as 1.0 agents write it; nothing listens at its URL."""
    interface = {
        "url": "http://127.0.0.1:1/",
        "protocolBinding": "JSONRPC",
        "protocolVersion": "1.0",
    }
    return {
        "name": "new",
        "description": "",
        "version": "1",
        "supportedInterfaces": [interface],
        "capabilities": {"streaming": True},
        "defaultInputModes": ["text"],
        "defaultOutputModes": ["text"],
        "skills": [],
        **changes,
    }


def message03(text: str, **extra: Any) -> dict[str, Any]:
    return {
        "kind": "message",
        "messageId": "m",
        "role": "agent",
        "parts": [{"kind": "text", "text": text}],
        **extra,
    }


def task03(state: str, *texts: str, status: str = "") -> dict[str, Any]:
    artifacts = [
        {"artifactId": f"a{i}", "parts": [{"kind": "text", "text": text}]}
        for i, text in enumerate(texts)
    ]
    return {
        "kind": "task",
        "id": "t",
        "contextId": "c",
        "status": {"state": state, **({"message": message03(status)} if status else {})},
        "artifacts": artifacts,
    }


def status03(state: str, text: str = "", *, final: bool = False) -> dict[str, Any]:
    return {
        "kind": "status-update",
        "taskId": "t",
        "contextId": "c",
        "status": {"state": state, **({"message": message03(text)} if text else {})},
        "final": final,
    }


def chunk03(text: str, *, append: bool, artifact: str = "a") -> dict[str, Any]:
    return {
        "kind": "artifact-update",
        "taskId": "t",
        "contextId": "c",
        "append": append,
        "artifact": {"artifactId": artifact, "parts": [{"kind": "text", "text": text}]},
    }


def replying(
    result: dict[str, Any] | list[dict[str, Any]], *, card: dict[str, Any] | None = None
) -> Script:
    """Return a script that serves the card and one result or a stream of results."""

    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "GET":
            respond(writer, card or card03())
        elif isinstance(result, dict):
            respond(writer, {"jsonrpc": "2.0", "id": call.rpc["id"], "result": result})
        else:
            start_stream(writer)
            for event in result:
                send_event(writer, call, event)
            writer.close()

    return script


class Answering:
    """An agent in this process that replies ``answer(prompt)``, which may be awaitable."""

    def __init__(
        self, answer: Callable[[str], Any], metadata: dict[str, JsonValue] | None = None
    ) -> None:
        self._answer = answer
        self._metadata = metadata or {}
        self.contexts: list[str] = []

    @property
    def info(self) -> AgentInfo:
        return AgentInfo(name="answering")

    async def open(self, *, timeout_s: float) -> None:
        pass

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        self.contexts.append(context_id)
        answer = self._answer(prompt)
        if isinstance(answer, Awaitable):
            answer = await answer
        return Reply(text=answer, metadata=self._metadata)

    async def aclose(self) -> None:
        pass


class FakeConduct:
    """A fake ``netarena.run.assessment.conduct`` that reports records.

    There are ``total`` records of ``size`` bytes.
    """

    def __init__(self, total: int = 3, *, size: int = 10, pause_s: float = 0.0) -> None:
        self.total = total
        #: text of a record, by its index
        self.text: Callable[[int], str] = lambda index: "x" * size
        self.pause_s = pause_s
        self.error: Exception | None = None
        #: if cleared, the assessment waits after the first record
        self.go = asyncio.Event()
        self.go.set()
        self.calls: list[dict[str, Any]] = []
        self.cancelled = 0
        self.running = 0

    async def __call__(
        self, application: Any, config: Any, agents: Mapping[str, Agent], **how: Any
    ) -> None:
        self.calls.append({"config": config, "agents": agents, **how})
        reporter = how["reporter"]
        self.running += 1
        try:
            for role in agents:
                await reporter.planned(role, self.total)
            if self.error is not None:
                raise self.error
            for index in range(self.total):
                for role in agents:
                    await reporter.graded(role, {"index": index, "text": self.text(index)})
                await asyncio.sleep(self.pause_s)
                await self.go.wait()
            for role in agents:
                await reporter.summarised(role, {"avg_correctness": 1.0, "total": self.total})
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    @property
    def out(self) -> Path:
        path: Path = self.calls[-1]["out"]
        return path


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Wait until ``condition()`` holds; fails after ``timeout_s``."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 -- any condition
            await asyncio.sleep(0.01)
