"""JSON-RPC calls of strangers, judged before the SDK reads them.

The SDK answers what it cannot read with an internal error and a traceback in the log, and spends
seconds on what is small and has many values. Here it becomes an error that says what a call must
be, in one line.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from netarena.a2a.document import parse_document
from netarena.errors import one_line

Endpoint = Callable[[Request], Awaitable[Response]]

#: JSON-RPC's code
PARSE_ERROR = -32700
#: loggers of the SDK, and what they say, with a traceback, of calls that somebody got wrong
_LOGGERS = ("a2a.server.routes.jsonrpc_dispatcher", "a2a.compat.v0_3.jsonrpc_adapter")
_CALLERS_FAULT = frozenset(
    {
        "Failed to validate base JSON-RPC request",
        "Failed to validate base JSON-RPC request for v0.3",
        "Failed to parse request params",
    }
)


def guard(endpoint: Endpoint) -> Endpoint:
    """``endpoint``, which is only asked what it can read."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_tidy)  # once, however often it is added

    async def answer(request: Request) -> Response:
        try:
            call = parse_document(await request.body())
            # an escape may stand for half of a character, which nothing can write back
            json.dumps(call, ensure_ascii=False).encode()
        except ValueError as error:
            what = "must be Unicode" if isinstance(error, UnicodeEncodeError) else error
            said = {"code": PARSE_ERROR, "message": one_line(f"the request {what}")}
            return JSONResponse({"jsonrpc": "2.0", "id": None, "error": said})
        return await endpoint(request)

    return answer


def _tidy(record: logging.LogRecord) -> bool:
    """What a caller sent is one line of the log; no traceback for what is the caller's fault."""
    if record.msg in _CALLERS_FAULT and record.exc_info:
        record.msg, record.args = "%s: %s", (record.msg, str(record.exc_info[1]))
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    if isinstance(record.args, tuple):
        record.args = tuple(
            one_line(value, 200) if isinstance(value, str) else value for value in record.args
        )
    return True
