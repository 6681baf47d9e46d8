"""OpenTelemetry spans of assessments, episodes, steps, calls to the agent, and executions.

Names follow OpenTelemetry's GenAI conventions where these define a name. Tracing is on if a
standard environment variable names a collector (``VARIABLES``). Otherwise OpenTelemetry is not
imported, and each span costs one comparison. Spans contain the texts of prompts, replies, commands
and outputs only if the environment variable ``CONTENT`` requests them. Spans contain the same query
ids as the results. NetArena uses its own tracer provider, so spans of other libraries are not sent.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol
from urllib.parse import urlsplit

from netarena.errors import AgentFailed, one_line
from netarena.model import AgentInfo, Judgement, Move, Query, Reply, Usage

#: Environment variables that turn tracing on.
VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
#: Environment variables that name the protocol, the more specific one first. Only OTLP over HTTP is
#: supported.
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SPOKEN = "http/protobuf"
#: Maximum time in s that a process waits at its exit until the remaining spans are sent.
FLUSH_S = 2.0
#: Environment variable of the GenAI conventions that requests texts in spans.
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_TRUE = frozenset({"true", "1", "span_only", "span_and_event"})
#: Provider name in the GenAI conventions for a provider without a defined name.
_PROVIDER = "_OTHER"
#: Default ports of URLs.
_PORTS = {"http": 80, "https": 443}

log = logging.getLogger(__name__)


class _Turn(Protocol):
    """Data of a turn. The engine sets the attributes while the turn's span is open."""

    prompt: str
    reply: Reply | None
    refused: str | None
    move: Move
    output: str
    executed: bool
    judgement: Judgement | None


class Span:
    """A span that has no effect unless tracing is on; then it wraps a span of OpenTelemetry."""

    def __init__(self, inner: Any = None) -> None:
        self._inner = inner

    def tell(self, **attributes: Any) -> None:
        """Add attributes to the span. Two underscores in a name become a dot; a value of None is
        left out."""
        if self._inner is not None:
            for name, value in attributes.items():
                if value is not None:
                    self._inner.set_attribute(name.replace("__", "."), value)

    def fail(self, kind: str) -> None:
        """Mark the span as failed, with ``kind`` as the error type."""
        if self._inner is not None:
            from opentelemetry.trace import StatusCode

            self._inner.set_attribute("error.type", kind)
            self._inner.set_status(StatusCode.ERROR)


_SILENT = Span()


def is_on(environ: Mapping[str, str]) -> bool:
    """Return whether the environment names a collector and does not disable tracing."""
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    exporters = environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",")
    return not off and "otlp" in exporters and any(environ.get(name) for name in VARIABLES)


@cache
def _tracer() -> Any:
    """Return OpenTelemetry's tracer, created once; None if tracing is off."""
    if not is_on(os.environ):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning('no traces: OpenTelemetry is not installed: pip install "netarena[otel]"')
        return None
    protocol = next(filter(None, map(os.environ.get, PROTOCOLS)), _SPOKEN)
    if protocol != _SPOKEN:
        log.warning("no traces: only %s is supported, not %s", _SPOKEN, protocol)
        return None
    named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "netarena"}
    # the exporter would log each attempt; this module reports the outcome once
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    try:
        exporter = OTLPSpanExporter()
        processor = BatchSpanProcessor(_tell_loss(exporter))
        provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
    except Exception as error:  # noqa: BLE001 -- unusable variables raise errors of many types
        log.warning("no traces: OpenTelemetry cannot be set up: %s", one_line(str(error)))
        return None
    provider.add_span_processor(processor)
    atexit.register(_flush, processor)
    return provider.get_tracer("netarena")


def _tell_loss(exporter: Any) -> Any:
    """Return ``exporter``, changed to log a warning the first time a collector refuses spans."""
    from opentelemetry.sdk.trace.export import SpanExportResult

    export, told = exporter.export, threading.Event()

    def exporting(spans: Any) -> Any:
        result = export(spans)
        if result is not SpanExportResult.SUCCESS and not told.is_set():
            told.set()
            log.warning("traces: the collector at OTEL_EXPORTER_OTLP_ENDPOINT refused the spans")
        return result

    exporter.export = exporting
    return exporter


def _flush(processor: Any) -> None:
    """Send the remaining spans within a time limit, so that an unreachable collector does not delay
    the exit of the process."""
    sending = threading.Thread(target=processor.shutdown, name="trace-flush", daemon=True)
    sending.start()
    sending.join(FLUSH_S)
    if sending.is_alive():
        log.warning("traces: the collector did not accept the last spans within %g s", FLUSH_S)


def carrier() -> dict[str, str]:
    """Return the W3C trace context of the open span as headers of a request.

    The result maps header names to values; it is empty if tracing is off.
    """
    carried: dict[str, str] = {}
    if _tracer() is not None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(carried)
    return carried


def _tells_content() -> bool:
    return os.environ.get(CONTENT, "").lower() in _TRUE


@contextmanager
def _span(name: str, *, client: bool = False, **attributes: Any) -> Iterator[Span]:
    tracer = _tracer()
    if tracer is None:
        yield _SILENT
        return
    from opentelemetry.trace import SpanKind

    kind = SpanKind.CLIENT if client else SpanKind.INTERNAL
    # errors are not recorded, because an error may contain an agent's text
    with tracer.start_as_current_span(
        name, kind=kind, record_exception=False, set_status_on_exception=False
    ) as inner:
        span = Span(inner)
        span.tell(**attributes)
        yield span


@contextmanager
def assessment(application: str, version: str, role: str, agent: AgentInfo) -> Iterator[Span]:
    """Span of all queries of one participant."""
    with _span(
        f"invoke_workflow {application}",
        gen_ai__operation__name="invoke_workflow",
        # the conventions' attribute for workflows; up to version 1.41 it had another name
        gen_ai__workflow__name=application,
        gen_ai__agent__name=application,
        netarena__agent=agent.name,
        netarena__version=version,
        netarena__role=role,
    ) as span:
        yield span


@contextmanager
def episode(query: Query, *, repeat: int, attempt: int, context: str) -> Iterator[Span]:
    """Span of one attempt at a query."""
    with _span(
        f"episode {query.label}",
        gen_ai__conversation__id=context,
        netarena__query__id=query.id,
        netarena__query__label=query.label,
        netarena__query__level=query.level,
        netarena__repeat=repeat,
        netarena__attempt=attempt,
    ) as span:
        yield span


@contextmanager
def step(number: int, turn: _Turn) -> Iterator[None]:
    """Span of one turn, from the request to the judgement."""
    with _span(f"step {number}", netarena__step=number) as span:
        yield
        judged = turn.judgement
        span.tell(
            netarena__refused=turn.refused is not None,
            netarena__executed=turn.executed,
            netarena__correct=judged and judged.correct,
            netarena__safe=judged and judged.safe,
            netarena__findings=judged and [one.rule for one in judged.findings],
        )


@contextmanager
def call(agent: AgentInfo, context: str, turn: _Turn) -> Iterator[Span]:
    """Span of the wait for an agent's reply."""
    where = urlsplit(agent.base_url) if "://" in agent.base_url else None
    with _span(
        f"invoke_agent {agent.name}",
        client=True,
        gen_ai__operation__name="invoke_agent",
        gen_ai__provider__name=_PROVIDER,
        gen_ai__agent__name=agent.name,
        gen_ai__conversation__id=context,
        server__address=where and where.hostname,
        server__port=where and (where.port or _PORTS.get(where.scheme)),
    ) as span:
        if _tells_content():
            span.tell(gen_ai__input__messages=_message("user", turn.prompt))
        with _failing(span):
            yield span
        usage = Usage.read(turn.reply)
        if usage.replies:
            span.tell(
                gen_ai__usage__input_tokens=usage.input_tokens,
                gen_ai__usage__output_tokens=usage.output_tokens,
                netarena__cost_usd=usage.cost_usd,
            )
        if turn.reply is not None and _tells_content():
            span.tell(gen_ai__output__messages=_message("assistant", turn.reply.text))


@contextmanager
def execution(application: str, turn: _Turn) -> Iterator[None]:
    """Span of executing a reply's action and observing its effect."""
    with _span(
        f"execute_tool {application}",
        gen_ai__operation__name="execute_tool",
        gen_ai__tool__name=application,
    ) as span:
        with _failing(span):
            yield
        if _tells_content():
            span.tell(
                gen_ai__tool__call__arguments=json.dumps(turn.move, ensure_ascii=False),
                gen_ai__tool__call__result=turn.output,
            )


@contextmanager
def _failing(span: Span) -> Iterator[None]:
    """Mark the span as failed if the block raises, with the type of the error but not its text."""
    try:
        yield
    except BaseException as error:
        reason = error.reason if isinstance(error, AgentFailed) else type(error).__name__
        span.fail(str(reason))
        raise


def _message(role: str, text: str) -> str:
    """Return the JSON of a list with one message, in the form of the GenAI conventions."""
    ended = {"finish_reason": "stop"} if role == "assistant" else {}
    parts = [{"type": "text", "content": text}]
    return json.dumps([{"role": role, "parts": parts, **ended}], ensure_ascii=False)
