from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.a2a import transport
from netarena.a2a.transport import (
    MAX_DOCUMENT,
    MAX_EXCHANGE,
    MAX_TOKENS,
    BoundedTransport,
    Unavailable,
)
from netarena.errors import AgentFailed, FailureReason
from tests.thorough import THOROUGH

pytestmark = pytest.mark.anyio
STREAM = {"content-type": "text/event-stream"}


class Pieces(httpx.AsyncByteStream):
    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.given = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            self.given += len(piece)
            yield piece


class Canned(httpx.AsyncBaseTransport):
    def __init__(self, *pieces: bytes, status: int = 200, headers: dict[str, str] | None = None):
        self.stream = Pieces(list(pieces))
        self.status = status
        self.headers = headers or {"content-type": "application/json"}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(self.status, headers=self.headers, stream=self.stream)


async def get(canned: httpx.AsyncBaseTransport) -> httpx.Response:
    async with httpx.AsyncClient(transport=BoundedTransport(canned)) as client:
        return await client.get("http://host/")


async def lines(canned: httpx.AsyncBaseTransport) -> list[str]:
    async with (
        httpx.AsyncClient(transport=BoundedTransport(canned)) as client,
        client.stream("GET", "http://host/") as response,
    ):
        return [line async for line in response.aiter_lines()]


async def test_reply_in_pieces_is_joined():
    assert (await get(Canned(b'{"a"', b": [1, 2]}"))).json() == {"a": [1, 2]}


@pytest.mark.parametrize("headers", [{"content-type": "application/json"}, STREAM])
async def test_endless_reply_is_too_large_and_is_not_read_further(headers):
    piece = b"x" * 2**16
    canned = Canned(*[piece] * 1600, headers=headers)
    with pytest.raises(AgentFailed) as caught:
        await lines(canned)
    assert caught.value.reason is FailureReason.TOO_LARGE
    assert canned.stream.given <= MAX_DOCUMENT + 2 * len(piece)


async def test_endless_stream_of_small_events_is_too_large():
    block = b"data: %s\n\n" % (b"x" * 9000) * 6
    canned = Canned(*[block] * 1600, headers=STREAM)
    with pytest.raises(AgentFailed) as caught:
        await lines(canned)
    assert caught.value.reason is FailureReason.TOO_LARGE
    assert canned.stream.given <= MAX_EXCHANGE + 2 * len(block)


async def test_number_of_events_in_a_stream_is_limited():
    block = b"data: {}\n\n" * 100
    assert await lines(Canned(*[block] * 100, headers=STREAM))
    with pytest.raises(AgentFailed) as caught:
        await lines(Canned(*[block] * 101, headers=STREAM))
    assert caught.value.reason is FailureReason.TOO_LARGE


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "x-gzip", "GZIP"])
async def test_compressed_replies_are_unpacked(encoding):
    document = json.dumps({"a": "b" * 500_000}).encode()
    packed = zlib.compress(document) if encoding == "deflate" else gzip.compress(document)
    headers = {"content-encoding": encoding, "content-type": "application/json"}
    halves = packed[:100], packed[100:]
    assert (await get(Canned(*halves, headers=headers))).content == document


async def test_compression_bomb_is_too_large():
    packed = gzip.compress(b"a" * 2**27)
    canned = Canned(packed, headers={"content-encoding": "gzip"})
    with pytest.raises(AgentFailed) as caught:
        await get(canned)
    assert caught.value.reason is FailureReason.TOO_LARGE


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "gzip"])
async def test_other_compression_is_malformed(encoding):
    canned = Canned(b"not packed at all", headers={"content-encoding": encoding})
    with pytest.raises(AgentFailed) as caught:
        await get(canned)
    assert caught.value.reason is FailureReason.MALFORMED


@pytest.mark.parametrize(
    "document",
    [
        b"[" + b"[]," * MAX_TOKENS + b"[]]",
        b"[" * (MAX_TOKENS + 1),
        b"{" + b'"a":0,' * (MAX_TOKENS + 1) + b'"b":0}',
        b'["' + b"[" * MAX_TOKENS + b'",' + b"0," * MAX_TOKENS + b"0]",
    ],
)
async def test_small_text_with_many_values_is_too_large(document):
    with pytest.raises(AgentFailed) as caught:
        await get(Canned(document))
    assert caught.value.reason is FailureReason.TOO_LARGE
    with pytest.raises(AgentFailed) as caught:
        await lines(Canned(b"data: " + document + b"\n\n", headers=STREAM))
    assert caught.value.reason is FailureReason.TOO_LARGE


async def test_brackets_and_commas_in_strings_are_not_counted():
    document = json.dumps({"text": '[{,"\\' * MAX_TOKENS}).encode()
    assert (await get(Canned(document))).content == document


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
async def test_event_with_many_lines_is_one_document(end):
    line = b"data: " + b"0," * 1000 + end
    small = [line * 9 + end] * 40
    assert await lines(Canned(*small, headers=STREAM))
    with pytest.raises(AgentFailed) as caught:
        await lines(Canned(*[line] * 30, headers=STREAM))
    assert caught.value.reason is FailureReason.TOO_LARGE


async def test_line_end_split_into_two_pieces_does_not_start_a_new_event():
    pieces = [b"data: " + b"0," * 4500 + b"\r", b"\n"] * 3
    with pytest.raises(AgentFailed):
        await lines(Canned(*pieces, headers=STREAM))


@THOROUGH
@given(data=st.data())
def test_event_stream_is_parsed_independently_of_its_pieces(data):
    text = data.draw(
        st.lists(
            st.sampled_from(["data: a", "\n", "\r\n", "\r", "\n\n", ": é", "x\u2028y", "\x0b"])
        )
    )
    raw = "".join(text).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    whole = asyncio.run(lines(Canned(raw, headers=STREAM)))
    assert asyncio.run(lines(Canned(*pieces, headers=STREAM))) == whole


async def test_line_separators_allowed_in_json_strings_are_kept():
    text = "a\u2028b\u2029c\u0085d"
    event = b"data: " + json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n\n"
    first, _ = await lines(Canned(event, headers=STREAM))
    assert json.loads(first.removeprefix("data: ")) == {"text": text}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
async def test_other_text_encodings_do_not_evade_the_limits(encoding):
    with pytest.raises(AgentFailed) as caught:
        await get(Canned(("[" * 10 + "]" * 10).encode(encoding)))
    assert caught.value.reason is FailureReason.MALFORMED
    headers = {"content-type": f"text/event-stream; charset={encoding}"}
    (line,) = await lines(Canned("data: é\n".encode(), headers=headers))
    assert line == "data: é"


async def test_last_line_of_a_stream_is_parsed_like_the_others():
    event = 'data: "a\u2028b\x85c"'.encode()
    (line,) = await lines(Canned(event, headers=STREAM))
    assert json.loads(line.removeprefix("data: ")) == "a\u2028b\x85c"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("cut", [0, 1])
async def test_data_after_the_end_of_compression_is_refused(encoding, cut):
    """zlib would buffer such data and copy all of it with each new piece."""
    packed = zlib.compress(b"{}") if encoding == "deflate" else gzip.compress(b"{}")
    whole, junk = packed + b"x" * cut, b"x" * 2**16
    canned = Canned(whole, *[junk] * 1600, headers={"content-encoding": encoding})
    with pytest.raises(AgentFailed) as caught:
        await get(canned)
    assert caught.value.reason is FailureReason.MALFORMED
    assert canned.stream.given <= len(whole) + len(junk)


@pytest.mark.parametrize(
    "piece",
    [
        b"x" * 2**16,  # a gzip header with a file name that never ends
        b"\0\0\0\xff\xff" * 2**13,  # empty blocks
    ],
)
async def test_compressed_data_that_unpacks_to_nothing_is_limited(piece):
    head = b"\x1f\x8b\x08" + (b"\x08" if piece.startswith(b"x") else b"\0") + b"\0" * 5 + b"\3"
    canned = Canned(head, *[piece] * 1600, headers={"content-encoding": "gzip"})
    with pytest.raises(AgentFailed) as caught:
        await get(canned)
    assert caught.value.reason is FailureReason.TOO_LARGE
    assert canned.stream.given <= MAX_EXCHANGE + 2 * len(piece)


async def test_bytes_of_an_endless_line_are_scanned_once(monkeypatch):
    seen = 0

    class Watched:
        def split(self, raw: bytes) -> list[bytes]:
            nonlocal seen
            seen += len(raw)
            return line_end.split(raw)

    line_end = transport._LINE_END
    monkeypatch.setattr(transport, "_LINE_END", Watched())
    text = b"data: " + b"a" * 3 * 2**20
    canned = Canned(text, *[b"a"] * 10_000, b"\n\n", headers=STREAM)
    (line, _) = await lines(canned)
    assert len(line) == canned.stream.given - 2 == seen - 2


@pytest.mark.parametrize("headers", [{"content-type": "application/json"}, STREAM])
async def test_small_pieces_do_not_block_other_tasks_or_the_deadline(headers, monkeypatch):
    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                yield b"0"

    canned = Canned(headers=headers)
    canned.stream = Endless()  # type: ignore[assignment]
    monkeypatch.setattr(transport, "MAX_PIECES", 10**12)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await lines(canned)


@pytest.mark.parametrize("headers", [{"content-type": "application/json"}, STREAM])
async def test_reply_in_too_many_pieces_is_too_large(headers):
    canned = Canned(*[b"0"] * 10**5, headers=headers)
    with pytest.raises(AgentFailed, match="the reply has more than 20,000 chunks") as caught:
        await lines(canned)
    assert caught.value.reason is FailureReason.TOO_LARGE
    assert canned.stream.given <= transport.MAX_PIECES * 1.01
    assert await lines(Canned(*[b"0"] * 10**4, headers=headers))


@pytest.mark.parametrize("piece", [b"\n" * 2**16, b":\r\n" * 2**14])
async def test_empty_lines_are_limited_and_dropped(piece):
    assert await lines(Canned(b":\n" * 500 + b"\n" * 500 + b"data: a\n\n", headers=STREAM)) == [
        "data: a",
        "",
    ]
    canned = Canned(*[piece] * 250, headers=STREAM)
    with pytest.raises(AgentFailed) as caught:
        await lines(canned)
    assert caught.value.reason is FailureReason.TOO_LARGE
    assert canned.stream.given < 2**20


@pytest.mark.parametrize("status", [429, 502, 503])
async def test_gateway_status_allows_another_attempt(status):
    canned = Canned(status=status, headers={"retry-after": "7"})
    with pytest.raises(Unavailable) as caught:
        await get(canned)
    assert (caught.value.wait_s, caught.value.sent) == (7.0, False)


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 500, 504])
async def test_other_status_fails_the_request_and_the_body_is_not_read(status):
    canned = Canned(b"secret", status=status, headers={"location": "http://other/"})
    with pytest.raises(AgentFailed) as caught:
        await get(canned)
    assert caught.value.reason is FailureReason.ENDPOINT
    assert canned.stream.given == 0


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [("", None), ("soon", None), ("-1", None), ("Wed, 21 Oct 2015 07:28:00 GMT", 0)],
)
def test_invalid_retry_after_is_ignored(text, wait_s):
    assert transport._retry_after(text) == wait_s


async def test_cookies_are_dropped():
    canned = Canned(b"{}", headers={"set-cookie": "a=b"})
    async with httpx.AsyncClient(transport=BoundedTransport(canned)) as client:
        await client.get("http://host/")
        assert not client.cookies
