from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from a2a_purple.dialect import UNTOLD, text_of, translate

pytestmark = pytest.mark.anyio

EVENTS, JSON = "text/event-stream; charset=utf-8", "application/json"
PARTS = [{"type": "thinking", "thinking": [{"text": "hm"}]}, {"type": "text", "text": "é"}, "!"]


class Body(httpx.AsyncByteStream):
    def __init__(self, data: bytes, size: int) -> None:
        self.pieces = [data[at : at + size] for at in range(0, len(data), size)]
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece

    async def aclose(self) -> None:
        self.closed = True


async def translated(
    body: bytes, kind: str, *, asked: Any = None, size: int = 1, **headers: str
) -> bytes:
    stream = Body(body, size)
    response = httpx.Response(
        200,
        headers={"content-type": kind, **{k.replace("_", "-"): v for k, v in headers.items()}},
        stream=stream,
        request=httpx.Request("POST", "http://m/v1", json=asked),
    )
    await translate(response)
    read = b"".join([piece async for piece in response.aiter_raw()])
    await response.aclose()
    assert stream.closed
    return read


def chunk(**delta: Any) -> dict[str, Any]:
    finish = delta.pop("finish", None)
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def events(*chunks: Any, end: bytes = b"\n\n") -> bytes:
    return b"".join(b"data: " + json.dumps(each).encode() + end for each in chunks)


def read_events(stream: bytes) -> list[Any]:
    lines = [line.removeprefix(b"data: ").strip() for line in stream.split(b"\n")]
    return [line if line == b"[DONE]" else json.loads(line) for line in lines if line]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
async def test_content_parts_are_joined_to_text_and_a_missing_finish_reason_is_added(size, end):
    stream = events(chunk(content=PARTS), chunk(content="b"), end=end) + b"data: [DONE]" + end
    first, second, last, done = read_events(await translated(stream, EVENTS, size=size))
    assert first == chunk(content="é!")
    assert second == chunk(content="b")
    assert last["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert done == b"[DONE]"


@pytest.mark.parametrize(
    "stream",
    [
        events(chunk(content="a"), chunk(finish="stop")) + b"data: [DONE]\n\n",
        events(chunk(content="a")),  # no end is added to a truncated stream
        b": comment\n\nevent: error\ndata: {\n\ndata: []\ndata: 7\n",
        b'data: {"choices": 7}\ndata: {"choices": [7]}\ndata: {"choices": [{"delta": 7}]}',
        b"data: " + b"[" * 5000,
        b"",
    ],
)
async def test_standard_and_malformed_streams_are_forwarded_unchanged(stream):
    assert await translated(stream, EVENTS) == stream


async def test_complete_answer_to_a_streaming_request_becomes_a_stream():
    message = {"role": "assistant", "content": PARTS}
    body = json.dumps(
        {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": {"n": 1}}
    ).encode()
    (event, done) = read_events(await translated(body, JSON, asked={"stream": True}))
    assert event["choices"][0]["delta"] == {"role": "assistant", "content": "é!"}
    assert (event["usage"], done) == ({"n": 1}, b"[DONE]")
    whole = json.loads(await translated(body, JSON, asked={"stream": False}))
    assert whole["choices"][0]["message"]["content"] == "é!"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"error": {"code": 429}}, 429),
        ({"error": {"message": "no", "http_code": "402"}}, 402),
        ({"error": "no", "status": 404}, 404),
        ({"error": "no"}, UNTOLD),
        ({"error": {"code": "server_error", "status": None}}, UNTOLD),
        ({"error": {"code": 1113}}, UNTOLD),
        ({"error": None, "choices": [{"message": {"content": "a"}}]}, 200),
        ({"error": {"code": 429}, "choices": [{"message": {"content": "a"}}]}, 200),
        (["error"], 200),
    ],
)
async def test_error_with_http_status_200_gets_the_status_in_its_body(body, status):
    response = httpx.Response(
        200,
        headers={"content-type": JSON},
        stream=Body(json.dumps(body).encode(), 7),
        request=httpx.Request("POST", "http://m/v1"),
    )
    await translate(response)
    assert response.status_code == status
    assert json.loads(await response.aread()) == body


@pytest.mark.parametrize("asked", [None, {"stream": True}, ["stream"]])
@pytest.mark.parametrize("body", [b'{"error": {"message": "no"}}', b"<html>", b"", b"[" * 5000])
async def test_body_that_is_not_an_answer_is_forwarded_unchanged(body, asked):
    assert await translated(body, JSON, asked=asked) == body


async def test_compressed_stream_is_forwarded_unchanged():
    stream = events(chunk(content=PARTS))
    assert await translated(stream, EVENTS, content_encoding="br") == stream


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("a", "a"),
        (7, ""),
        ([], ""),
        ([["a"], {"text": 7}, {"text": "b"}, {"type": "reasoning", "text": "c"}], "ab"),
    ],
)
def test_text_of_content_excludes_reasoning_and_malformed_parts(content, text):
    assert text_of(content) == text
