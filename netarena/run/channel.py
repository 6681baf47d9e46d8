"""Messages between the head (main process) of a run and its workers, as bytes of a stream.

A message consists of a JSON object, whose key ``what`` is the kind of message, and a body of bytes.

=============  =========  ========================================================================
kind           direction  content
=============  =========  ========================================================================
``setup``      to worker  application and versions; body: pickled config
``join``       to worker  a participant; body: pickled config and source of the agent
``prepare``    to worker  id of the stage, role, repetition; body: the query as JSON
``play``       to worker  id, attempt, earlier failures, seconds left
``go``         to worker  id: the answer to ``started`` and ``executing``
``cancel``     to worker  id
``leave``      to worker  close all worlds and end
``pause``      both       role, and for how many s no request may be sent to its agent
``ping``       to worker  answer with ``pong``
``ready``      to head    facts about the worker's machine
``refused``    to head    why the worker cannot play
``joined``     to head    role, and why the worker cannot run the agent (empty if it can)
``pong``       to head    empty; shows that the worker still runs
``prepared``   to head    id
``started``    to head    id; the worker waits for ``go``
``answered``   to head    id, and the failure if the agent did not answer
``executing``  to head    id; the worker waits for ``go``
``played``     to head    id and result; body: the episode as JSON, if it has a verdict
``closed``     to head    id; the stage is cancelled and its world closed
=============  =========  ========================================================================

A worker is trusted code, but a command that it executes may be hostile. Therefore the head reads
only JSON from a worker. A worker may unpickle bodies, because all its messages come from the head.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from netarena.errors import AgentFailed, EnvironmentFailed, FailureReason
from netarena.model import Outline
from netarena.run.executor import Played
from netarena.run.record import Verdict

_HEAD = struct.Struct(">II")
_OUTLINE = TypeAdapter(Outline)


class Message(NamedTuple):
    """One message: its kind (``what``), other values, and a body."""

    what: str
    values: dict[str, Any]
    body: bytes = b""


def encode(what: str, body: bytes = b"", **values: Any) -> bytes:
    """Return a message as bytes."""
    text = json.dumps({"what": what, **values}).encode()
    return _HEAD.pack(len(text), len(body)) + text + body


class Decoder:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add bytes and yield the messages that are complete."""
        self._data += data
        while len(self._data) >= _HEAD.size:
            text, body = _HEAD.unpack_from(self._data)
            middle, end = _HEAD.size + text, _HEAD.size + text + body
            if len(self._data) < end:
                return
            values = json.loads(bytes(self._data[_HEAD.size : middle]))
            content = bytes(self._data[middle:end])
            del self._data[:end]
            yield Message(str(values.pop("what")), values, content)


def tell_agent_failure(failure: AgentFailed | None) -> dict[str, Any] | None:
    """Return an agent's failure as JSON."""
    if failure is None:
        return None
    return {"reason": failure.reason, "detail": failure.detail, "unsent": failure.unsent}


def read_agent_failure(told: dict[str, Any] | None) -> AgentFailed | None:
    """Return the failure that ``tell_agent_failure`` wrote as JSON."""
    if told is None:
        return None
    return AgentFailed(FailureReason(told["reason"]), told["detail"], unsent=told["unsent"])


def encode_played(number: int, played: Played) -> bytes:
    """Return the message ``played`` with a result, as bytes."""
    failed, verdict = played.failed, played.verdict
    told: dict[str, Any] = {"asked": played.asked, "world_s": played.world_s, "id": number}
    if failed is not None:
        told["failed"] = {
            "detail": failed.detail,
            "evidence": failed.evidence,
            "proven_ours": failed.proven_ours,
        }
    if verdict is None:
        return encode("played", **told)
    told["verdict"] = {
        "outline": _OUTLINE.dump_python(verdict.outline, mode="json"),
        "record": verdict.record,
        "detail": verdict.detail,
        "answered": verdict.answered,
    }
    return encode("played", verdict.dump(), **told)


def read_played(values: dict[str, Any], body: bytes) -> Played:
    """Return the result in a message ``played``."""
    failed, told = values.get("failed"), values.get("verdict")
    return Played(
        failed=None if failed is None else EnvironmentFailed(**failed),
        asked=values["asked"],
        world_s=values["world_s"],
        verdict=None
        if told is None
        else Verdict(
            outline=_OUTLINE.validate_python(told["outline"]),
            record=told["record"],
            detail=told["detail"],
            answered=told["answered"],
            dump=lambda: body,
        ),
    )
