"""An agent cannot draw the queries from the data that the service publishes during a run."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from netarena_toy import Toy
from peer import Answering

from netarena.a2a.purple import purple_app
from netarena.a2a.request import derive_seed
from netarena.a2a.server import create_app
from netarena.a2a.service import listen, serving
from netarena.run import archive
from netarena.run.archive import read_run
from netarena.run.regrade import regrade

pytestmark = pytest.mark.anyio


class Client:
    """A JSON-RPC client of the green agent at ``url`` that records every response."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self.http = http
        self.url = url
        self.heard: list[str] = []

    async def rpc(self, method: str, params: Mapping[str, Any], line: str = "1.0") -> Any:
        body = {"jsonrpc": "2.0", "id": "1", "method": method, "params": params}
        answer = await self.http.post(self.url, json=body, headers={"a2a-version": line})
        self.heard.append(f"{dict(answer.headers)}\n{answer.text}")
        # if a stream reports an error, this is its only event
        return json.loads(answer.text.removeprefix("data:"))

    async def see(self, task_id: str, condition: Any) -> dict[str, Any]:
        async with asyncio.timeout(10):
            while True:
                task: dict[str, Any] = (await self.rpc("GetTask", {"id": task_id}))["result"]
                if condition(task):
                    return task
                await asyncio.sleep(0.01)

    async def spy(self, known: Sequence[str]) -> None:
        """Send all requests that may reveal tasks or ids; ``known`` are the client's contexts."""
        for path in (".well-known/agent-card.json", ".well-known/agent.json", "", "tasks"):
            self.heard.append((await self.http.get(self.url + path)).text)
        for name in ("", *known):
            for line, method in (("1.0", "ListTasks"), ("0.3", "tasks/list"), ("0.3", "ListTasks")):
                params = {"contextId": name, "includeArtifacts": True}
                answer = await self.rpc(method, params if name else {}, line)
                assert not answer.get("result", {}).get("tasks")
            for line, methods in (
                ("1.0", ("GetTask", "CancelTask", "SubscribeToTask")),
                ("0.3", ("tasks/get", "tasks/cancel", "tasks/resubscribe")),
            ):
                for method in methods:
                    assert "result" not in await self.rpc(method, {"id": name}, line)

    def numbers(self) -> set[int]:
        """Return every number in the recorded responses, decimal or hexadecimal."""
        text = "\n".join(self.heard)
        decimal = {int(digits) for digits in re.findall(r"\d+", text)}
        return decimal | {int(digits, 16) for digits in re.findall(r"[0-9a-f]+", text)}


def results(task: dict[str, Any], role: str) -> list[dict[str, Any]]:
    sheets = [art for art in task.get("artifacts", []) if art["name"] == role]
    return [json.loads(part["text"]) for sheet in sheets for part in sheet["parts"]]


@asynccontextmanager
async def course(root: Path, secret: str | None) -> AsyncIterator[tuple[Client, str, list[str]]]:
    """Yield a client, its task's id and the agents' contexts; one agent is done, one waits."""
    go = asyncio.Event()

    async def wait(_prompt: str) -> str:
        await go.wait()
        return "open v1"

    async with AsyncExitStack() as stack:
        slow, fast = Answering(wait), Answering(lambda _: "open v2")
        urls = {}
        for role, agent in (("slow", slow), ("fast", fast)):
            app = purple_app(agent, name=role, description="d")
            urls[role] = await stack.enter_async_context(serving(app, listen("127.0.0.1", 0)))
        app = create_app(Toy(), out=root, seed_secret=secret)
        url = await stack.enter_async_context(serving(app, listen("127.0.0.1", 0)))
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=30))
        client = Client(http, url)
        config = {"max_iterations": 1, "benchmark_path": "q.jsonl", "output_dir": "run"}
        text = json.dumps({"participants": urls, "config": config})
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
        params = {"message": message, "configuration": {"returnImmediately": True}}
        task_id = (await client.rpc("SendMessage", params))["result"]["task"]["id"]
        await client.see(task_id, lambda task: len(results(task, "fast")) == 4 and slow.contexts)
        yield client, task_id, slow.contexts + fast.contexts
        go.set()
        await client.see(task_id, lambda task: "COMPLETED" in task["status"]["state"])


@pytest.mark.parametrize("secret", ["s3cret", None])
async def test_queries_cannot_be_drawn_from_the_output_of_a_service(
    tmp_path, secret, caplog, monkeypatch
):
    monkeypatch.setattr(archive, "load", lambda name: Toy())
    caplog.set_level("INFO")
    async with course(tmp_path, secret) as (client, task_id, contexts):
        await client.spy(contexts)
        # the attacker also knows the task's id, which gives access to the task's streamed records
        task = await client.see(task_id, lambda task: True)
        client.heard.append(caplog.text)
        stored = json.loads((tmp_path / "run" / "config.json").read_text())
        numbers, summary = client.numbers(), results(task, "fast")[-1]
        # with open ids, the numbers include the seed, so this search is effective
        assert (stored["seed"] in numbers) is (secret is None)
        assert (summary["seed"], summary["config"]["seed"]) == (None, None)
        assert str(tmp_path) not in "".join(client.heard)
        assert summary["config"]["benchmark_path"] == "q.jsonl"
    slow = stored_results(tmp_path / "run" / "slow")
    assert slow[-1]["seed"] == slow[-1]["config"]["seed"] == stored["seed"], (
        "the stored results lack the seed"
    )
    if secret is not None:
        assert stored["seed"] == derive_seed(secret, task_id)
        shape = Toy.config_type.parse(stored["config"]).shape_hash()
        sealed = re.compile(rf"toy-1-{shape}-[0-9a-f]{{32}}")
        assert all(sealed.fullmatch(record["id"]) for record in slow[:-1])
    again = {one.header.role: regrade(one) for one in read_run(tmp_path / "run")}
    assert not any(one.differs for one in again.values())
    assert again["slow"].results() == slow


def stored_results(folder: Path) -> list[dict[str, Any]]:
    document: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return list(document["results"])
