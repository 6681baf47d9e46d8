"""The green agent, called in plain JSON-RPC of both protocol versions, with fake assessments."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.server.context import ServerCallContext
from a2a.types.a2a_pb2 import Task
from netarena_toy import Toy
from peer import FakeConduct, until

from netarena.a2a import network, server, service, store
from netarena.a2a.credential import Credential, variable
from netarena.a2a.request import derive_seed
from netarena.a2a.server import create_app
from netarena.a2a.service import listen, serving
from netarena.a2a.store import BoundedTaskStore
from netarena.errors import AssessmentFailed, ConfigError
from netarena.run.assessment import conduct
from netarena.task.application import configured, load
from netarena.task.identity import Secrecy

pytestmark = pytest.mark.anyio
REQUEST = {"participants": {"toy_operator": "http://127.0.0.1:1/"}, "config": {}}


class Green:
    """A running green agent."""

    def __init__(self, url: str, http: httpx.AsyncClient, root: Path) -> None:
        self.url = url
        self.http = http
        self.root = root

    async def rpc(self, line: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Make one JSON-RPC call of version ``0.3`` or ``1.0`` and return the whole response."""
        answer: dict[str, Any] = (
            await self.http.post(
                self.url,
                json={"jsonrpc": "2.0", "id": "1", "method": method, "params": params},
                headers={"a2a-version": line},
            )
        ).json()
        return answer

    async def send(self, request: Any, *, line: str = "1.0", **fields: str) -> dict[str, Any]:
        """Send a request and wait for the task to end; ``fields`` go into the message."""
        text = request if isinstance(request, str) else json.dumps(request)
        if line == "0.3":
            part = {"kind": "text", "text": text}
            message = {
                "kind": "message",
                "messageId": str(uuid.uuid4()),
                "role": "user",
                "parts": [part],
                **fields,
            }
            answer = await self.rpc(line, "message/send", {"message": message})
            return answer["result"]
        message = {
            "messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [{"text": text}], **fields
        }  # fmt: skip
        answer = await self.rpc(line, "SendMessage", {"message": message})
        return answer["result"]["task"]

    async def start(self, request: Any) -> str:
        """Send a request without waiting, and return the task's id."""
        message = {
            "messageId": str(uuid.uuid4()), "role": "ROLE_USER",
            "parts": [{"text": json.dumps(request)}],
        }  # fmt: skip
        params = {"message": message, "configuration": {"returnImmediately": True}}
        answer = await self.rpc("1.0", "SendMessage", params)
        return answer["result"]["task"]["id"]

    async def get(self, task_id: str) -> dict[str, Any]:
        return (await self.rpc("1.0", "GetTask", {"id": task_id}))["result"]

    async def see(
        self, task_id: str, condition: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """Poll a task until ``condition`` holds."""
        async with asyncio.timeout(10):
            while not condition(task := await self.get(task_id)):  # noqa: ASYNC110 -- over HTTP
                await asyncio.sleep(0.01)
        return task


@asynccontextmanager
async def green(conduct: FakeConduct, root: Path, **how: Any) -> AsyncIterator[Green]:
    app = create_app(Toy(), out=root, conduct=conduct, **how)
    async with serving(app, listen("127.0.0.1", 0)) as url, httpx.AsyncClient(timeout=30) as http:
        yield Green(url, http, root)


def state(task: dict[str, Any]) -> str:
    return str(task["status"]["state"]).removeprefix("TASK_STATE_").lower()


def said(task: dict[str, Any]) -> str:
    return "".join(part["text"] for part in task["status"]["message"]["parts"])


def results(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parsed text parts of all artifacts, as the AgentBeats client writes them."""
    return [json.loads(part["text"]) for art in task["artifacts"] for part in art["parts"]]


@pytest.mark.parametrize("line", ["0.3", "1.0"])
async def test_completed_task_has_one_part_per_record_followed_by_the_summary(tmp_path, line):
    async with green(FakeConduct(3), tmp_path) as agent:
        task = await agent.send(REQUEST, line=line)
    assert state(task) == "completed"
    (artifact,) = task["artifacts"]
    assert all("text" in part for part in artifact["parts"])
    *records, summary = results(task)
    assert [record["index"] for record in records] == [0, 1, 2]
    # text parts keep integers as integers
    assert '"index": 2' in artifact["parts"][2]["text"]
    assert summary["avg_correctness"] == 1.0


async def test_participants_get_the_same_queries_and_separate_artifacts(tmp_path):
    conduct = FakeConduct(2)
    async with green(conduct, tmp_path) as agent:
        urls = {"a": "http://127.0.0.1:1/", "b": "http://127.0.0.1:2/"}
        task = await agent.send({"participants": urls})
    assert [artifact["name"] for artifact in task["artifacts"]] == ["a", "b"]
    assert [len(artifact["parts"]) for artifact in task["artifacts"]] == [3, 3]
    agents = conduct.calls[0]["agents"]
    assert {role: agent.info.base_url for role, agent in agents.items()} == urls


@pytest.mark.parametrize("line", ["0.3", "1.0"])
@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ("what?", "request: must be a message whose text is a JSON object"),
        ("{}", "participants: must be a JSON object"),
        ({"participants": {"a": "ftp://x/"}}, "participants.a: must be an http or https URL"),
        (
            {"participants": {"a": "localhost:9010"}},
            "participants.a: must be an http or https URL; write http:// before the host",
        ),
        ({**REQUEST, "config": {"nope": 1}}, "config.nope: unknown key; known keys: "),
        ({**REQUEST, "config": {"num_queries": 0}}, "config.num_queries: "),
        ({**REQUEST, "config": {"output_dir": "../x"}}, "config.output_dir: must not contain '..'"),
        (
            {**REQUEST, "config": {"benchmark_path": "/"}},
            "config.benchmark_path: must name a file, not a folder",
        ),
        (
            {**REQUEST, "config": {"output_dir": "a\ud800b"}},
            "config.output_dir: must be a path of at most 1024 characters",
        ),
        (
            {**REQUEST, "config": {"benchmark_path": "a\ud800b"}},
            "config.benchmark_path: must be a path of at most 1024 characters",
        ),
    ],
)
async def test_invalid_request_ends_as_a_rejected_task_with_the_reason(
    tmp_path, line, request_, reason
):
    conduct = FakeConduct()
    async with green(conduct, tmp_path) as agent:
        task = await agent.send(request_, line=line)
    assert state(task) == "rejected"
    assert said(task).startswith(reason)
    assert "\n" not in said(task)
    assert conduct.calls == []
    assert str(tmp_path) not in said(task)


async def test_message_without_text_is_rejected(tmp_path):
    async with green(FakeConduct(), tmp_path) as agent:
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"data": REQUEST}]}
        answer = await agent.rpc("1.0", "SendMessage", {"message": message})
    assert state(answer["result"]["task"]) == "rejected"


@pytest.mark.parametrize(
    ("error", "ended", "reason"),
    [
        (ConfigError("config.x", "cannot be drawn"), "rejected", "config.x: cannot be drawn"),
        (AssessmentFailed("the agent was never there"), "failed", "the agent was never there"),
        (AssessmentFailed("no /srv/runs/x"), "failed", "no x"),
        (RuntimeError("secret detail"), "failed", "internal error: RuntimeError"),
    ],
)
async def test_failed_assessment_ends_the_task(tmp_path, error, ended, reason):
    conduct = FakeConduct()
    conduct.error = error
    async with green(conduct, tmp_path) as agent:
        task = await agent.send(REQUEST)
    assert (state(task), said(task)) == (ended, reason)
    assert "artifacts" not in task


async def test_unreachable_participant_does_not_remove_the_results_of_others(tmp_path):
    async def conduct(application: Any, config: Any, agents: Any, **how: Any) -> None:
        await how["reporter"].graded("a", {"index": 0})
        await how["reporter"].summarised("a", {"graded": 1})
        raise AssessmentFailed("the agent b could not be reached: endpoint: no connection")

    async with green(conduct, tmp_path) as agent:  # type: ignore[arg-type]
        urls = {"a": "http://127.0.0.1:1/", "b": "http://127.0.0.1:2/"}
        task = await agent.send({"participants": urls})
    assert state(task) == "completed"
    assert said(task) == (
        "graded 1 queries of a; the agent b could not be reached: endpoint: no connection"
    )
    assert [len(artifact["parts"]) for artifact in task["artifacts"]] == [2]


async def test_missing_summary_of_a_role_is_an_internal_error(tmp_path):
    async def silent(*args: Any, **how: Any) -> None:
        pass

    async with green(silent, tmp_path) as agent:  # type: ignore[arg-type]
        task = await agent.send(REQUEST)
    assert (state(task), said(task)) == ("failed", "internal error: no summary for toy_operator")


async def test_task_has_at_most_four_status_messages(tmp_path):
    async with green(FakeConduct(50), tmp_path) as agent:
        task = await agent.send(REQUEST)
    # at most: the request, the number of queries, and two estimates
    assert 1 < len(task["history"]) <= 4


async def test_first_status_message_contains_the_number_of_queries_and_the_time(tmp_path):
    fake = FakeConduct(300)
    fake.go.clear()
    async with green(fake, tmp_path) as agent:
        task_id = await agent.start(REQUEST)
        task = await agent.see(task_id, lambda task: "message" in task["status"])
        fake.go.set()
    assert said(task) == "300 queries for toy_operator, at most 28 min"
    assert task["status"]["message"]["metadata"]["netarena"]["total"] == 300


async def test_first_status_message_estimates_the_time_from_typical_queries():
    told = []

    class Heard(Updates):
        def new_agent_message(self, parts, metadata):
            told.append((parts[0].text, metadata["netarena"]))

    reporter = server.ArtifactReporter(Heard(), 1680, typical_s=0.5, lanes=2)  # type: ignore[arg-type]  # a fake
    await reporter.planned("r", 300)
    ((text, values),) = told
    assert text == (
        "300 queries for r, about 75 s plus the agent's replies (typically 0.5 s per query, "
        "2 at a time), at most 28 min"
    )
    assert values == {"role": "r", "total": 300, "eta_s": 75.0}


@pytest.mark.parametrize(
    ("name", "values", "expected_s"),
    [
        ("malt", {}, 0.1),
        ("k8s", {}, 0.5),
        ("k8s", {"cluster": "kind"}, 10.0),
        ("route", {}, 2.0),
        ("route", {"world": "backbone"}, 15.0),
        ("backbone", {"briefing": "ticket"}, 60.0),
    ],
)
def test_each_application_states_the_typical_time_of_a_query(name, values, expected_s):
    app, config = configured(load(name), values)
    assert app.typical_s(config) == expected_s


async def test_remaining_time_is_estimated(tmp_path):
    fake = FakeConduct(300, pause_s=0.01)
    async with green(fake, tmp_path) as agent:
        task_id = await agent.start(REQUEST)
        task = await agent.see(task_id, lambda task: "left" in json.dumps(task["status"]))
    assert re.fullmatch(r"(5|20|80) of 300 graded, about \d+ s left", said(task))


async def test_unreachable_participant_is_reported_while_connection_attempts_continue(tmp_path):
    async with green(conduct, tmp_path) as agent:
        config = {"connect_timeout_s": 5}
        task_id = await agent.start({**REQUEST, "config": config})
        task = await agent.see(task_id, lambda task: "waiting" in json.dumps(task["status"]))
        assert said(task).startswith(
            "waiting for the agent card of toy_operator at http://127.0.0.1:1/"
        )
        task = await agent.see(task_id, lambda task: state(task) != "working")
    assert state(task) == "failed"
    assert said(task) == (
        "the agent toy_operator could not be reached: endpoint: not reachable for 5 s: "
        "no connection: Connection refused"
    )


async def test_tasks_passed_to_the_sdk_contain_no_artifacts(tmp_path, monkeypatch):
    sizes: list[int] = []

    class Weigher(BoundedTaskStore):
        async def save(self, task: Task, context: ServerCallContext) -> None:
            sizes.append(task.ByteSize())
            await super().save(task, context)

    monkeypatch.setattr(service, "BoundedTaskStore", Weigher)
    async with green(FakeConduct(50, size=10_000), tmp_path) as agent:
        task = await agent.send(REQUEST)
    assert sum(len(record.get("text", "")) for record in results(task)) == 500_000
    assert len(sizes) > 50
    assert max(sizes) < 5000


# artifacts in batches


class Updates:
    """Records the updates of a reporter."""

    def __init__(self) -> None:
        self.events: list[tuple[int, bool, bool]] = []

    def new_agent_message(self, parts, metadata) -> None:
        pass

    async def update_status(self, state, message) -> None:
        pass

    async def add_artifact(self, parts, *, artifact_id, name, append, last_chunk) -> None:
        self.events.append((len(parts), append, last_chunk))


@pytest.mark.parametrize("total", [1, 199, 200, 201, 500, 501, 2500])
async def test_records_are_sent_one_by_one_up_to_200_and_then_in_batches(total):
    updates = Updates()
    reporter = server.ArtifactReporter(updates)  # type: ignore[arg-type]
    await reporter.planned("r", total)
    for index in range(total):
        await reporter.graded("r", {"index": index})
        if index < 200:
            assert len(updates.events) == index + 1
    await reporter.summarised("r", {})
    sizes = [size for size, _, _ in updates.events]
    assert sum(sizes) == total + 1
    assert sizes[:200] == [1] * min(total, 200) + ([1] if total < 200 else [])
    assert all(size >= (total - 200) / 300 for size in sizes[200:-1])
    assert len(sizes) <= 501
    assert [append for _, append, _ in updates.events] == [False, *[True] * (len(sizes) - 1)]
    assert [last for _, _, last in updates.events] == [*[False] * (len(sizes) - 1), True]


async def test_record_with_invalid_unicode_is_reported(tmp_path):
    updates = Updates()
    reporter = server.ArtifactReporter(updates)  # type: ignore[arg-type]
    await reporter.graded("r", {"log": "a\ud800b", "é": "\u2028"})
    assert updates.events == [(1, False, False)]


async def test_record_with_nan_is_an_internal_error():
    reporter = server.ArtifactReporter(Updates())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="JSON compliant"):
        await reporter.graded("r", {"avg": float("nan")})


# seeds, folders and credentials


async def test_seed_is_derived_from_the_secret_and_the_task_id(tmp_path):
    conduct = FakeConduct()
    async with green(conduct, tmp_path, seed_secret="s3cret") as agent:
        task = await agent.send(REQUEST)
        assert conduct.calls[0]["fallback_seed"] == derive_seed("s3cret", task["id"])
        assert conduct.calls[0]["secrecy"] is Secrecy.SEALED
        assert conduct.calls[0]["config"].seed is None
        refused = await agent.send({**REQUEST, "config": {"seed": 7}})
        assert state(refused) == "rejected"
        assert said(refused).startswith("config.seed: ")
        assert len(conduct.calls) == 1


async def test_seed_of_the_request_is_used_without_a_secret(tmp_path):
    conduct = FakeConduct()
    async with green(conduct, tmp_path, seed_secret="") as agent:
        await agent.send({**REQUEST, "config": {"seed": 7}})
    assert conduct.calls[0]["config"].seed == 7
    assert conduct.calls[0]["fallback_seed"] is None
    assert conduct.calls[0]["secrecy"] is Secrecy.SERVED


async def test_every_task_writes_below_the_root(tmp_path):
    conduct = FakeConduct()
    async with green(conduct, tmp_path) as agent:
        task = await agent.send(REQUEST)
        assert conduct.out == tmp_path / task["id"]
        for value in ("a/b", "/a/b", str(tmp_path / "a" / "b")):
            await agent.send({**REQUEST, "config": {"output_dir": value, "resume": True}})
            assert conduct.out == tmp_path / "a" / "b"
        assert conduct.calls[-1]["config"].resume


async def test_old_config_keys_are_accepted_with_a_warning(tmp_path, caplog):
    async with green(FakeConduct(), tmp_path) as agent:
        task = await agent.send({**REQUEST, "config": {"agent_client_configs": {"a": 1}}})
    assert state(task) == "completed"
    assert "agent_client_configs" in caplog.text


async def test_credentials_are_used_only_for_their_role(tmp_path):
    conduct = FakeConduct()
    credential = Credential("http://127.0.0.1:1/", {"x-key": "k"})
    async with green(conduct, tmp_path, credentials={variable("a"): credential}) as agent:
        await agent.send({"participants": {"a": "http://127.0.0.1:1/", "b": "http://127.0.0.1:1/"}})
    agents = conduct.calls[0]["agents"]
    assert [agents[role]._credential for role in "ab"] == [credential, None]


async def test_participant_at_a_link_local_address_is_rejected_unless_allowed(tmp_path):
    request = {"participants": {"a": "http://127.0.0.1:1/", "b": "http://[::ffff:a9fe:a9fe]:1/"}}
    conduct = FakeConduct()
    async with green(conduct, tmp_path) as agent:
        task = await agent.send(request)
    assert state(task) == "rejected"
    assert said(task) == (
        "participants.b: must not resolve to a link-local or metadata address; "
        "to allow it, start netarena serve with --allow-link-local"
    )
    assert not conduct.calls
    async with green(conduct, tmp_path, allow_link_local=True) as agent:
        assert state(await agent.send(request)) == "completed"


# line ends


@pytest.mark.parametrize("line", ["0.3", "1.0"])
async def test_line_ends_in_agent_text_are_escaped_in_responses(tmp_path, line):
    """``str.splitlines``, which SDK clients use to read streams, ends lines at these characters."""
    text = "a\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029 é\u3042\U0001f600"
    conduct = FakeConduct(2)
    conduct.text = lambda index: text
    message = {"messageId": "m", "parts": [{"text": json.dumps(REQUEST)}], "role": "ROLE_USER"}
    methods = ["SendStreamingMessage", "GetTask", "ListTasks"]
    if line == "0.3":
        message |= {"kind": "message", "role": "user", "metadata": {"m": text}}
        message["parts"][0]["kind"] = "text"  # type: ignore[index]
        methods = ["message/stream", "tasks/get"]
    whole = b""
    async with green(conduct, tmp_path) as agent:
        params: dict[str, Any] = {"message": message}
        for method in methods:
            call = {"jsonrpc": "2.0", "id": f"1{text}", "method": method, "params": params}
            answer = await agent.http.post(agent.url, json=call, headers={"a2a-version": line})
            whole += answer.content
            if "message" in params:
                first, *_ = [part for part in answer.text.split("\r\n") if "data:" in part]
                result = json.loads(first.removeprefix("data:"))["result"]
                task = result.get("task", result)
            else:
                assert answer.json()["id"] == f"1{text}"
                found = answer.json()["result"]
                (task,) = found.get("tasks", [found])
                assert [record["text"] for record in results(task)[:-1]] == [text] * 2
            listed = {"contextId": task["contextId"], "includeArtifacts": True}
            params = listed if method == "GetTask" else {"id": task["id"]}
    decoded = whole.decode()
    assert decoded.count("\\u2028") > 2 * len(methods)
    for end in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029":
        assert end not in decoded


# disconnecting, resubscribing, cancelling


async def test_task_continues_after_its_client_disconnects_and_can_be_resubscribed(tmp_path):
    conduct = FakeConduct(3)
    conduct.go.clear()
    async with green(conduct, tmp_path) as agent:
        task_id = await agent.start(REQUEST)
        await until(lambda: conduct.running)
        task = await agent.see(task_id, lambda task: "artifacts" in task)
        assert (state(task), len(results(task))) == ("working", 1)
        body = {"jsonrpc": "2.0", "id": "1", "method": "SubscribeToTask", "params": {"id": task_id}}
        events = []
        async with agent.http.stream(
            "POST", agent.url, json=body, headers={"a2a-version": "1.0"}
        ) as response:
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    events.append(json.loads(line.removeprefix("data:"))["result"])
                    conduct.go.set()
        assert results(events[0]["task"]) == results(task)
        assert "COMPLETED" in json.dumps(events[-1])
        whole = await agent.get(task_id)
        assert len(results(whole)) == 4
        updates = [event["artifactUpdate"] for event in events if "artifactUpdate" in event]
        later = [
            record for update in updates for record in results({"artifacts": [update["artifact"]]})
        ]
        assert results(task) + later == results(whole)
        for wanted, parts in ((True, 4), (False, 0)):
            params = {"contextId": whole["contextId"], "includeArtifacts": wanted}
            page = await agent.rpc("1.0", "ListTasks", params)
            (listed,) = page["result"]["tasks"]
            assert len(results({"artifacts": [], **listed})) == parts


async def test_page_of_tasks_is_limited_by_the_unpacked_size_of_its_artifacts(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(store, "MAX_LISTED_BYTES", 300_000)
    async with green(FakeConduct(2, size=100_000), tmp_path) as agent:
        for _ in range(2):
            await agent.send(REQUEST, contextId="mine")
        mine = {"contextId": "mine"}
        wanted = {**mine, "includeArtifacts": True}
        answer = await agent.rpc("1.0", "ListTasks", wanted)
        assert answer["error"]["code"] == -32602
        assert "smaller pageSize" in answer["error"]["message"]
        assert len((await agent.rpc("1.0", "ListTasks", mine))["result"]["tasks"]) == 2
        answer = await agent.rpc("1.0", "ListTasks", {**wanted, "pageSize": 1})
    (task,) = answer["result"]["tasks"]
    assert len(results(task)) == 3


@pytest.mark.parametrize("line", ["0.3", "1.0"])
async def test_task_can_be_cancelled(tmp_path, line):
    conduct = FakeConduct(3)
    conduct.go.clear()
    async with green(conduct, tmp_path) as agent:
        task_id = await agent.start(REQUEST)
        await until(lambda: conduct.running)
        await agent.see(task_id, lambda task: "artifacts" in task)
        method = {"0.3": "tasks/cancel", "1.0": "CancelTask"}[line]
        answer = await agent.rpc(line, method, {"id": task_id})
        assert state(answer["result"]) == "canceled"
        assert [record["index"] for record in results(answer["result"])] == [0]
        await until(lambda: conduct.cancelled == 1)
        assert state(await agent.get(task_id)) == "canceled"
        # the slot is free for other tasks
        conduct.go.set()
        assert state(await agent.send(REQUEST)) == "completed"


@pytest.mark.parametrize("line", ["0.3", "1.0"])
async def test_message_that_asks_for_push_notifications_is_refused(tmp_path, line):
    text = json.dumps(REQUEST)
    hook = {"url": "http://127.0.0.1:1/hook"}
    if line == "0.3":
        method, config = "message/send", {"pushNotificationConfig": hook}
        message = {
            "kind": "message", "messageId": "m", "role": "user",
            "parts": [{"kind": "text", "text": text}],
        }  # fmt: skip
    else:
        method, config = "SendMessage", {"taskPushNotificationConfig": hook}
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    conduct = FakeConduct(3)
    async with green(conduct, tmp_path, seed_secret="s3cret") as agent:
        params = {"message": message, "configuration": config}
        refused = (await agent.rpc(line, method, params))["error"]
        assert "push notifications are not supported" in refused["message"]
        assert refused["code"] == -32003
        assert not conduct.running


@pytest.mark.parametrize("line", ["0.3", "1.0"])
async def test_second_message_to_a_task_is_refused(tmp_path, line):
    conduct = FakeConduct(3)
    conduct.go.clear()
    async with green(conduct, tmp_path, seed_secret="s3cret") as agent:
        task_id = await agent.start(REQUEST)
        await until(lambda: conduct.running)

        async def again() -> dict[str, Any]:
            text = json.dumps(REQUEST)
            if line == "0.3":
                message = {
                    "kind": "message", "messageId": "m", "role": "user", "taskId": task_id,
                    "parts": [{"kind": "text", "text": text}],
                }  # fmt: skip
                return await agent.rpc(line, "message/send", {"message": message})
            message = {
                "messageId": "m", "role": "ROLE_USER", "taskId": task_id, "parts": [{"text": text}],
            }  # fmt: skip
            return await agent.rpc(line, "SendMessage", {"message": message})

        assert "a task accepts one message" in (await again())["error"]["message"]
        assert state(await agent.get(task_id)) == "working"
        conduct.go.set()
        task = await agent.see(task_id, lambda task: state(task) != "working")
        assert (state(task), len(results(task))) == ("completed", 4)
        assert "error" in await again()
        assert await agent.get(task_id) == task
    assert len(conduct.calls) == 1


async def test_two_tasks_run_concurrently_and_share_their_episode_slots(tmp_path):
    conduct = FakeConduct(2)
    conduct.go.clear()
    async with green(conduct, tmp_path, max_episodes=3) as agent:
        ids = [await agent.start(REQUEST) for _ in range(2)]
        await until(lambda: conduct.running == 2)
        slots = {id(call["slots"]) for call in conduct.calls}
        assert len(slots) == 1
        assert conduct.calls[0]["slots"].number == 3
        conduct.go.set()
        await until(lambda: conduct.running == 0)
        for task_id in ids:
            await agent.see(task_id, lambda task: state(task) == "completed")


async def test_number_of_tasks_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "MAX_TASKS", 1)
    conduct = FakeConduct()
    conduct.go.clear()
    async with green(conduct, tmp_path) as agent:
        await agent.start(REQUEST)
        await until(lambda: conduct.running)
        refused = await agent.send(REQUEST)
        assert (state(refused), said(refused)) == ("rejected", "too many tasks; try again later")
        conduct.go.set()
        await until(lambda: not conduct.running)


async def test_task_counts_towards_the_limit_until_its_name_lookups_have_ended(
    tmp_path, monkeypatch
):
    """Clients must not start unlimited lookups by starting and cancelling tasks."""
    monkeypatch.setattr(server, "MAX_TASKS", 1)
    monkeypatch.setattr(network, "CHECK_S", 0.01)
    look_up, end = socket.getaddrinfo, threading.Event()

    def hang(host, *rest, flags=0, **how):
        if host == "hangs" and not flags & socket.AI_NUMERICHOST:
            end.wait(30)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return look_up(host, *rest, flags=flags, **how)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    hanging = {**REQUEST, "participants": {"toy_operator": "http://hangs/"}}
    conduct = FakeConduct()
    async with green(conduct, tmp_path) as agent:
        try:
            assert state(await agent.send(hanging)) == "completed"
            refused = await agent.send(REQUEST)
            assert said(refused) == "too many tasks; try again later"
        finally:
            end.set()
        async with asyncio.timeout(10):
            while state(await agent.send(REQUEST)) != "completed":
                pass


async def test_application_context_is_entered_once_and_exited_at_the_end(tmp_path):
    seen = []

    class Watched(Toy):
        async def __aenter__(self):
            seen.append("in")
            return self

        async def __aexit__(self, *_):
            seen.append("out")

    app = create_app(Watched(), out=tmp_path, conduct=FakeConduct())
    async with serving(app, listen("127.0.0.1", 0)) as url, httpx.AsyncClient() as http:
        agent = Green(url, http, tmp_path)
        await agent.send(REQUEST)
        await agent.send(REQUEST)
        assert seen == ["in"]
    assert seen == ["in", "out"]


async def test_end_of_the_service_cancels_running_tasks_and_ends_streams(tmp_path):
    conduct = FakeConduct()
    conduct.go.clear()
    app = create_app(Toy(), out=tmp_path, conduct=conduct)
    async with httpx.AsyncClient(timeout=30) as http:
        async with serving(app, listen("127.0.0.1", 0)) as url:
            agent = Green(url, http, tmp_path)
            waiting = asyncio.create_task(agent.send(REQUEST))
            await until(lambda: conduct.running)
            task_id = await agent.start(REQUEST)
            await until(lambda: conduct.running == 2)
            call = {"jsonrpc": "2.0", "id": "1", "method": "SubscribeToTask"}
            body = {**call, "params": {"id": task_id}}
            first = asyncio.Event()

            async def follow() -> int:
                async with http.stream(
                    "POST", url, json=body, headers={"a2a-version": "1.0"}
                ) as response:
                    first.set()
                    return len([line async for line in response.aiter_lines()])

            following = asyncio.create_task(follow())
            await first.wait()
        with pytest.raises(json.JSONDecodeError):  # 503, no body
            await waiting
        assert await following > 0
    assert conduct.cancelled == 2


# agent cards


@pytest.mark.parametrize("path", ["/.well-known/agent-card.json", "/.well-known/agent.json"])
async def test_card_lists_both_protocol_versions_at_the_url_of_the_request(tmp_path, path):
    async with green(FakeConduct(), tmp_path) as agent:
        card = (await agent.http.get(agent.url.rstrip("/") + path)).json()
        assert [
            (i["protocolVersion"], i["protocolBinding"], i["url"])
            for i in card["supportedInterfaces"]
        ] == [
            ("1.0", "JSONRPC", agent.url),
            ("0.3", "JSONRPC", agent.url),
        ]
        # fields that clients of version 0.3 read
        assert card["url"] == agent.url
        assert re.match(r"0\.3", card["protocolVersion"])
        assert card["preferredTransport"] == "JSONRPC"
        assert card["capabilities"]["streaming"] is True
        for host in ("green.example:81", "[::1]:9"):
            named = (
                await agent.http.get(agent.url.rstrip("/") + path, headers={"host": host})
            ).json()
            assert named["url"] == f"http://{host}/"
        for bad in (
            'x"y', "a b", "a/b", "user@host", "a:99999", "a:0", "[::::]", "[1.2.3.4]", "[::1]x",
        ):  # fmt: skip
            other = (
                await agent.http.get(agent.url.rstrip("/") + path, headers={"host": bad})
            ).json()
            assert other["url"] == "http://127.0.0.1:9009/", bad


async def test_card_contains_the_url_that_the_operator_set(tmp_path):
    url = "https://green.example/malt/"
    async with green(FakeConduct(), tmp_path, card_url=url) as agent:
        card = (await agent.http.get(agent.url + ".well-known/agent-card.json")).json()
    assert {i["url"] for i in card["supportedInterfaces"]} == {url}
    assert card["url"] == url


async def test_service_without_episode_slots_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="max_episodes: must be at least 1"):
        create_app(Toy(), out=tmp_path, max_episodes=0)


async def test_occupied_port_is_a_config_error():
    with listen("127.0.0.1", 0) as taken, pytest.raises(ConfigError, match="port: cannot listen"):
        listen("127.0.0.1", taken.getsockname()[1])


async def test_participants_own_keys_are_checked_and_passed_on(tmp_path):
    conduct = FakeConduct(1)
    request = {"participants": {"a": "http://127.0.0.1:1/"}}
    async with green(conduct, tmp_path) as agent:
        own = {"a": {"prompt_type": "react"}}
        task = await agent.send({**request, "participant_config": own})
        assert state(task) == "completed"
        assert conduct.calls[0]["own"] == own
        task = await agent.send({**request, "participant_config": {"a": {"seed": 1}}})
    assert state(task) == "rejected"
    assert "a.config.seed: has one value for all participants" in said(task)
