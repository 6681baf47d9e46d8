"""Spans as received by a collector on loopback."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from netarena_toy import Toy
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SpanExportResult
from peer import Call, message03, raw_server, replying
from stage import Scripted, assess, open_all

from netarena import telemetry
from netarena.a2a.client import A2AAgent
from netarena.agent.program_agent import TurnAgent
from netarena.errors import AgentFailed, FailureReason
from netarena.model import AgentInfo, Reply


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Wait for threads that still send spans, because they use the global random generator."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith(("Otel", "trace-flush")):
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Yield the spans, by resource, that a collector received; complete after tracing has ended."""
    sent: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = MessageToDict(ExportTraceServiceRequest.FromString(body))
            sent.extend(request["resourceSpans"])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    telemetry._tracer.cache_clear()
    yield sent
    telemetry._tracer.cache_clear()
    server.shutdown()
    server.server_close()


def value(told: dict[str, Any]) -> Any:
    (kind, content), *_ = told.items()
    if kind == "arrayValue":
        return [value(one) for one in content.get("values", [])]
    return int(content) if kind == "intValue" else content


def spans(sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all spans with their attributes as a dictionary, after the last one was sent."""
    telemetry._tracer().span_processor.shutdown()
    return [
        {**span, "attributes": {one["key"]: value(one["value"]) for one in span["attributes"]}}
        for resource in sent
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def answer(prompt: str, turn: int) -> Reply:
    usage = {"usage": {"input_tokens": 7, "output_tokens": 2, "cost_usd": 0.5}}
    return Reply(text="hm, let me see" if turn == 0 else open_all(prompt, turn - 1), metadata=usage)


def test_assessment_is_a_tree_of_spans(collector, tmp_path: Path) -> None:
    results, _ = assess(Toy(), Scripted(answer), tmp_path, complexity_level="level1")
    told = spans(collector)
    by_id = {span["spanId"]: span for span in told}
    line = next(span for span in told if span["name"] == "execute_tool toy")
    names = []
    while True:
        names.append(line["name"])
        if "parentSpanId" not in line:
            break
        line = by_id[line["parentSpanId"]]
    assert names[0] == "execute_tool toy"
    assert names[1].startswith("step ")
    assert names[2:] == ["episode close-1", "invoke_workflow toy"]
    assert line["attributes"] == {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "toy",
        "gen_ai.agent.name": "toy",
        "netarena.agent": "scripted",
        "netarena.version": "1",
        "netarena.role": "toy_operator",
        "netarena.graded": 1,
        "netarena.not_run": 0,
    }
    (episode,) = (span["attributes"] for span in told if span["name"] == "episode close-1")
    context = episode.pop("gen_ai.conversation.id")
    assert episode == {
        "netarena.query.id": results[0]["id"],
        "netarena.query.label": "close-1",
        "netarena.query.level": "level1",
        "netarena.repeat": 1,
        "netarena.attempt": 0,
        "netarena.outcome": "solved",
        "netarena.correct": True,
        "netarena.safe": True,
    }
    calls = [span for span in told if span["name"] == "invoke_agent scripted"]
    assert len(calls) == results[0]["iterations"]
    assert {span["kind"] for span in calls} == {"SPAN_KIND_CLIENT"}
    assert calls[0]["attributes"] == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "_OTHER",
        "gen_ai.agent.name": "scripted",
        "gen_ai.conversation.id": context,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 2,
        "netarena.cost_usd": 0.5,
    }
    first, second = (
        next(span["attributes"] for span in told if span["name"] == f"step {n}") for n in (1, 2)
    )
    assert first == {"netarena.step": 1, "netarena.refused": True, "netarena.executed": False}
    assert (second["netarena.safe"], second["netarena.findings"]) == (True, [])
    (service,) = {
        one["value"]["stringValue"]
        for resource in collector
        for one in resource["resource"]["attributes"]
        if one["key"] == "service.name"
    }
    assert service == "netarena"


@pytest.mark.parametrize("asked", [False, True])
def test_prompts_replies_and_outputs_are_exported_only_on_request(
    asked, collector, tmp_path, monkeypatch
) -> None:
    if asked:
        monkeypatch.setenv(telemetry.CONTENT, "true")
    assess(Toy(), Scripted(answer), tmp_path, complexity_level="level1")
    told = spans(collector)
    text = json.dumps(told)
    found = [
        word
        for word in ("You run a waterworks", "hm, let me see", "open v1", "v1 is open")
        if word in text
    ]
    assert found == (
        ["You run a waterworks", "hm, let me see", "open v1", "v1 is open"] if asked else []
    )
    if asked:
        call = next(span["attributes"] for span in told if span["name"].startswith("invoke_agent"))
        (message,) = json.loads(call["gen_ai.output.messages"])
        assert message["parts"] == [{"type": "text", "content": "hm, let me see"}]


def test_failure_is_exported_with_its_kind(collector, tmp_path: Path) -> None:
    def fail(prompt: str, turn: int) -> Any:
        return "open v1" if turn == 0 else AgentFailed(FailureReason.TASK_FAILED, "my secret words")

    assess(Toy(), Scripted(fail), tmp_path, complexity_level="level3", num_queries=1)
    told = spans(collector)
    (failed,) = [span for span in told if span["status"].get("code") == "STATUS_CODE_ERROR"]
    assert failed["name"] == "invoke_agent scripted"
    assert failed["attributes"]["error.type"] == "task_failed"
    assert "secret" not in json.dumps(told)
    assert [
        s["attributes"]["netarena.outcome"] for s in told if s["name"].startswith("episode")
    ] == ["agent_failed"]


@pytest.mark.parametrize(
    ("environ", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_standard_variables_enable_telemetry(environ, on) -> None:
    assert telemetry.is_on(environ) is on


def test_agent_gets_the_trace_context(collector, tmp_path: Path, monkeypatch) -> None:
    told: list[str] = []

    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method == "POST":
            told.append(call.headers["traceparent"])
        await replying([message03("open v1")])(call, writer)

    class Both:
        """An agent that sends the prompt over A2A and then to a program."""

        info = AgentInfo(name="both", base_url="http://both.example/")

        async def open(self, *, timeout_s: float) -> None:
            pass

        async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
            asked = {"context_id": context_id, "timeout_s": timeout_s}
            async with raw_server(script) as server:
                agent = A2AAgent(server.url)
                await agent.open(timeout_s=5)
                await agent.ask(prompt, **asked)
                await agent.aclose()
            said = await TurnAgent(["sh", "-c", "echo $TRACEPARENT"]).ask(prompt, **asked)
            told.append(said.text.strip())
            return said

        async def aclose(self) -> None:
            pass

    assess(Toy(), Both(), tmp_path, end_index=1, max_iterations=1)
    (call,) = [one for one in spans(collector) if one["name"] == "invoke_agent both"]
    # protobuf's JSON encodes bytes as base64
    ids = [base64.b64decode(call[key]).hex() for key in ("traceId", "spanId")]
    assert [one.split("-")[1:3] for one in told] == [ids, ids]
    assert call["attributes"]["server.port"] == 80


def test_agent_gets_no_trace_context_without_a_collector(monkeypatch) -> None:
    telemetry._tracer.cache_clear()
    assert telemetry.carrier() == {}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100000", "max_export_batch_size must be"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "only http/protobuf is supported, not grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "only http/protobuf is supported, not"),
    ],
)
def test_run_continues_if_telemetry_cannot_be_set_up(
    name, value, words, monkeypatch, caplog, tmp_path
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv(name, value)
    telemetry._tracer.cache_clear()
    results, _ = assess(Toy(), Scripted(answer), tmp_path, complexity_level="level1")
    telemetry._tracer.cache_clear()
    assert results[-1]["graded"] == 1
    assert f"no traces: {words}" in caplog.text.replace("OpenTelemetry cannot be set up: ", "")


def test_unreachable_collector_is_reported_once_and_delays_no_run(monkeypatch, caplog) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        monkeypatch.setattr(telemetry, "FLUSH_S", 0.2)
        telemetry._tracer.cache_clear()
        with telemetry._span("lost"):
            pass
        begin = time.monotonic()
        telemetry._flush(telemetry._tracer().span_processor)
        assert time.monotonic() - begin < 8
        telemetry._tracer.cache_clear()
    assert "did not accept the last spans within 0.2 s" in caplog.text
    failing = telemetry._tell_loss(SimpleNamespace(export=lambda _: SpanExportResult.FAILURE))
    assert [failing.export([]) for _ in range(3)] == [SpanExportResult.FAILURE] * 3
    assert caplog.text.count("refused the spans") == 1


def test_run_continues_without_the_telemetry_extra(monkeypatch, caplog, tmp_path: Path) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    telemetry._tracer.cache_clear()
    results, _ = assess(Toy(), Scripted(answer), tmp_path, complexity_level="level1")
    telemetry._tracer.cache_clear()
    assert results[-1]["graded"] == 1
    assert 'pip install "netarena[otel]"' in caplog.text
