"""A scripted server of the OpenAI API on loopback, mostly for faulty behaviour.

The words ``case: NAME`` in a request select a script. Each request with the same name gets the next
step of the script, and the last step is repeated. Requests without these words get ``answer``.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

Chunk = dict[str, Any]
Step = Callable[["Handler"], None]
Answer = Callable[[list[dict[str, Any]]], str | dict[str, Any]]

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stub: ClassVar[Stub]

    def log_message(self, *args: Any) -> None:
        """Do nothing: tests read the agent's output."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.body = body
        # Gemini's format calls the messages "contents"
        messages = body.get("messages") or body["contents"]
        found = re.search(r"case: ([\w-]+)", "\n".join(map(str, messages)))
        with self.stub.lock:
            self.stub.asked.append(body)
            step: Step = say(self.stub.answer(messages))
            if found:
                script = self.stub.script[found[1]]
                step = script[min(self.stub.calls[found[1]], len(script) - 1)]
                self.stub.calls[found[1]] += 1
        with suppress(BrokenPipeError, ConnectionResetError):  # the client may have disconnected
            step(self)

    def respond(self, status: int, body: object, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def start(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, choices: list[Chunk], **extra: Any) -> None:
        chunk = {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": self.body["model"],
            "choices": choices,
            **extra,
        }
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.flush()

    def piece(self, finish: str | None = None, **delta: Any) -> None:
        self.event([{"index": 0, "delta": delta, "finish_reason": finish}])

    def end(self) -> None:
        if (self.body.get("stream_options") or {}).get("include_usage"):
            self.event([], usage=USAGE)
        self.wfile.write(b"data: [DONE]\n\n")


def say(message: str | dict[str, Any], finish: str = "stop") -> Step:
    """Return a complete answer: a text or a message with tool calls, streamed on request."""
    delta = {"content": message} if isinstance(message, str) else message
    if "tool_calls" in delta:
        finish = "tool_calls"

    def step(to: Handler) -> None:
        if not to.body.get("stream"):
            choice = {
                "index": 0,
                "finish_reason": finish,
                "message": {"role": "assistant", "content": None, **delta},
            }
            whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
            to.respond(200, {**whole, "choices": [choice], "usage": USAGE})
            return
        to.start()
        for word in re.findall(r"\s*\S+\s*", delta.get("content") or ""):
            to.piece(content=word)
        if "tool_calls" in delta:
            calls = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
            to.piece(tool_calls=calls)
        to.piece(finish)
        to.end()

    return step


def refuse(status: int, code: str, message: str, **headers: str) -> Step:
    """Return an error in OpenAI's format."""
    error = {"error": {"message": message, "type": code, "code": code, "param": None}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda to: to.respond(status, error, named)


def say_as_anthropic(text: str) -> Step:
    """Return a streamed answer in Anthropic's format, which always reports the token usage."""
    begun = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
    events: list[dict[str, Any]] = [
        {
            "type": "message_start",
            "message": {**begun, "usage": {"input_tokens": 11, "output_tokens": 1}},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": text},
        },
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 7},
        },
        {"type": "message_stop"},
    ]

    def step(to: Handler) -> None:
        to.start()
        for event in events:
            to.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

    return step


def say_as_gemini(*words: str, finish: str | None = "STOP") -> Step:
    """Return a streamed answer in Gemini's format, which always reports the token usage."""

    def step(to: Handler) -> None:
        to.start()
        for number, word in enumerate(words, 1):
            candidate: dict[str, Any] = {"content": {"role": "model", "parts": [{"text": word}]}}
            if number == len(words) and finish is not None:
                candidate["finishReason"] = finish
            usage = {"promptTokenCount": 11, "candidatesTokenCount": number}
            usage |= {"thoughtsTokenCount": 4, "totalTokenCount": 15 + number}
            event = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m"}
            to.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    return step


def cut(*words: str) -> Step:
    """Return a stream that ends early, without its last events."""

    def step(to: Handler) -> None:
        to.start()
        for word in words:
            to.piece(content=word)

    return step


def hang(stub_closed: threading.Event) -> Step:
    """Return a stream that sends one word, and then nothing until the test ends."""

    def step(to: Handler) -> None:
        to.start()
        to.piece(content="well")
        stub_closed.wait(60)

    return step


def chunks(*choices: list[Chunk]) -> Step:
    """Return a stream of these chunks with a regular end."""

    def step(to: Handler) -> None:
        to.start()
        for each in choices:
            to.event(each)
        to.end()

    return step


def tool_call(name: str, arguments: object) -> dict[str, Any]:
    """Return a model's message that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": "call-1", "type": "function", "function": function}]}


class Stub:
    """The server's script, the received requests, and its URL."""

    def __init__(self, script: Mapping[str, Sequence[Step]], answer: Answer) -> None:
        self.script = script
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.calls: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.url = ""


@contextmanager
def openai_stub(
    script: Mapping[str, Sequence[Step]] | None = None,
    answer: Answer = lambda _: "hello there",
) -> Iterator[Stub]:
    stub = Stub(script or {}, answer)
    handler = type("Bound", (Handler,), {"stub": stub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    stub.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
