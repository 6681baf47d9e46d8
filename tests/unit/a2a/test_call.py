"""Responses of a service to malformed calls."""

from __future__ import annotations

import json

import httpx
import pytest
from netarena_toy import Toy
from peer import FakeConduct

from netarena.a2a.server import create_app

pytestmark = pytest.mark.anyio


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def message(line: str, metadata: bytes) -> bytes:
    kind = b'"kind":"text",' if line == "0.3" else b""
    role, method = (b"user", b"message/send") if kind else (b"ROLE_USER", b"SendMessage")
    return (
        b'{"jsonrpc":"2.0","id":1,"method":"%s","params":{"message":{"messageId":"m",'
        b'"role":"%s","parts":[{%s"text":"x"}],"metadata":{"a":%s}}}}'
        % (method, role, kind, metadata)
    )


async def ask(app, body: bytes, line: str) -> dict:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://green/") as http:
        return (await http.post("/", content=body, headers={"a2a-version": line})).json()


@pytest.mark.parametrize("line", ["0.3", "1.0"])
async def test_response_to_a_malformed_call_is_an_error_without_a_traceback(tmp_path, caplog, line):
    app = create_app(Toy(), out=tmp_path, conduct=FakeConduct())
    get = b'{"jsonrpc":"2.0","id":%s,"method":"GetTask","params":%s}'
    for body, code, said in (
        (b"\xff{}", -32700, "must be UTF-8"),
        (json.dumps({"a": 1}).encode("utf-16"), -32700, "must be UTF-8"),
        (b"{", -32700, "must be JSON"),
        (nested(500), -32700, "too deeply nested"),
        (nested(100_000), -32700, "too deeply nested"),
        (message(line, nested(200)), -32700, "too deeply nested"),
        (message(line, b"[" + b"0," * 20_000 + b"0]"), -32700, "at most 10000 values"),
        (message(line, b"NaN"), -32700, "finite numbers"),
        (message(line, b"1e400"), -32700, "finite numbers"),
        (get % (b"9" * 5000, b"{}"), -32700, "at most 32 digits"),
        (get % (b'"\\ud800"', b"{}"), -32700, "must not contain lone surrogates"),
        (nested(5), -32600, ""),
        (b"null", -32600, ""),
        (b"{}", -32600, ""),
        (get % (b"{}", b"{}"), -32600, ""),
        (get % (b'"a\\nb\\u001b[2Jc"', b"[]"), -32602, ""),
        (get % (b"1", b"5"), -32600, ""),
        (message(line, b"0").replace(b'{"a":0}', b"[]"), -32602, ""),
    ):
        error = (await ask(app, body, line))["error"]
        # version 0.3 has other codes for unsupported versions, and for data that is not a call
        codes = {code, -32600, -32009} if line == "0.3" and code == -32602 else {code}
        assert error["code"] in codes, body[:100]
        assert said in error["message"]
        assert "\n" not in error["message"]
    assert caplog.records
    for record in caplog.records:
        assert not record.exc_info
        assert record.levelname == "WARNING"
        assert record.getMessage().isprintable()


@pytest.mark.parametrize("line", ["0.3", "1.0"])
async def test_metadata_of_the_maximum_depth_is_accepted(tmp_path, line):
    app = create_app(Toy(), out=tmp_path, conduct=FakeConduct())
    async with app.router.lifespan_context(app):
        answer = await ask(app, message(line, nested(28)), line)
    task = answer["result"] if line == "0.3" else answer["result"]["task"]
    assert task["status"]["state"] in {"rejected", "TASK_STATE_REJECTED"}
    assert "request: must be a message whose text is a JSON object" in json.dumps(task["status"])


@pytest.mark.parametrize("method", ["message/send", "message/stream", "tasks/get"])
async def test_method_of_protocol_0_3_is_refused_in_protocol_1_0(tmp_path, method):
    app = create_app(Toy(), out=tmp_path, conduct=FakeConduct())
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": {"id": "x"}})
    answer = await ask(app, body.encode(), "1.0")
    assert answer["id"] == 7
    assert answer["error"]["code"] == -32601
    assert f"{method} belongs to A2A 0.3, but the request uses 1.0" in answer["error"]["message"]
    for line in ("0.3", ""):  # an empty version means 0.3
        assert (await ask(app, body.encode(), line))["error"]["code"] in {-32602, -32001, -32600}
