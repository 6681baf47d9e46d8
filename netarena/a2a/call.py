"""Validation of JSON-RPC calls before the SDK parses them.

The SDK answers invalid input with an internal error and logs a traceback. The SDK also needs
seconds to parse small inputs with many values. This module returns an error that states the
violated requirement in one line. It also rejects a call of an A2A 0.3 method whose
``A2A-Version`` header names a later version.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable

from a2a.compat.v0_3.jsonrpc_adapter import JSONRPC03Adapter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from netarena.a2a.document import parse_document
from netarena.errors import one_line

Endpoint = Callable[[Request], Awaitable[Response]]

#: JSON-RPC error codes.
PARSE_ERROR, METHOD_NOT_FOUND = -32700, -32601
_METHODS_03 = frozenset(JSONRPC03Adapter.METHOD_TO_MODEL)
#: Loggers of the SDK, and their messages that report an invalid call with a traceback.
_LOGGERS = ("a2a.server.routes.jsonrpc_dispatcher", "a2a.compat.v0_3.jsonrpc_adapter")
_CALLERS_FAULT = frozenset(
    {
        "Failed to validate base JSON-RPC request",
        "Failed to validate base JSON-RPC request for v0.3",
        "Failed to parse request params",
    }
)


def guard(endpoint: Endpoint) -> Endpoint:
    """Return ``endpoint`` wrapped so that only valid calls reach it; other calls get an error."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_tidy)  # adding the same filter again has no effect

    async def answer(request: Request) -> Response:
        try:
            call = parse_document(await request.body())
            # raises UnicodeEncodeError if an escape sequence produced a lone surrogate
            json.dumps(call, ensure_ascii=False).encode()
        except ValueError as error:
            what = (
                "must not contain lone surrogates"
                if isinstance(error, UnicodeEncodeError)
                else error
            )
            return _refuse(None, PARSE_ERROR, f"the request {what}")
        version = request.headers.get("a2a-version") or "0.3"
        if isinstance(call, dict) and not version.lstrip("v").startswith("0"):
            method, number = call.get("method"), call.get("id")
            if isinstance(method, str) and method in _METHODS_03:
                said = (
                    f"Method not found: {method} belongs to A2A 0.3, "
                    f"but the request uses {version[:20]}"
                )
                known = number if isinstance(number, str | int) else None
                return _refuse(known, METHOD_NOT_FOUND, said)
        return await endpoint(request)

    return answer


def _refuse(number: str | int | None, code: int, said: str) -> Response:
    error = {"code": code, "message": one_line(said)}
    return JSONResponse({"jsonrpc": "2.0", "id": number, "error": error})


def _tidy(record: logging.LogRecord) -> bool:
    """Change the log record of an invalid call to a one-line warning without a traceback.

    The client made the error, so a traceback of the service does not help.
    """
    if record.msg in _CALLERS_FAULT and record.exc_info:
        record.msg, record.args = "%s: %s", (record.msg, str(record.exc_info[1]))
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    if isinstance(record.args, tuple):
        record.args = tuple(
            one_line(value, 200) if isinstance(value, str) else value for value in record.args
        )
    return True
