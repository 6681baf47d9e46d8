"""Asking a green agent for an assessment, as the stock client of AgentBeats does.

The stream of the task is followed; where it breaks (a gateway ends it after 300 s), the task is
looked at until it has ended. The URL that was given is talked to, whatever the card says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.helpers import new_text_message
from a2a.types.a2a_pb2 import GetTaskRequest, Part, Role, SendMessageRequest, Task, TaskState
from a2a.utils.errors import A2AError

from netarena.a2a.client import reachable_card
from netarena.errors import AssessmentFailed

#: until a connection is there, s; answers take as long as they take
CONNECT_S = 10.0
#: between looks at a task whose stream broke, s: doubled from the first to the last
FIRST_LOOK_S, LAST_LOOK_S = 0.5, 10.0
#: looks in a row that may fail
MOST_FAILED_LOOKS = 20

_ENDED = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_REJECTED,
        TaskState.TASK_STATE_CANCELED,
    }
)

Told = Callable[[str, Any], None]


@dataclass(frozen=True)
class Assessed:
    """How an assessment ended: ``results`` by artifact (the participant's role)."""

    #: ``completed``, ``failed``, ``rejected`` or ``canceled``
    state: str
    #: the last status message
    said: str
    results: dict[str, list[Any]]


async def request_assessment(url: str, request: str, *, told: Told) -> Assessed:
    """Send ``request`` (JSON) to the green agent at ``url`` and wait for the end.

    ``told`` gets each record as it is streamed. Raises AssessmentFailed when the agent cannot be
    reached, or is lost.
    """
    limits = httpx.Timeout(None, connect=CONNECT_S)
    async with httpx.AsyncClient(timeout=limits, trust_env=False) as http:
        try:
            card = await A2ACardResolver(http, url).get_agent_card()
        except (A2AClientError, httpx.HTTPError, ValueError) as error:
            raise AssessmentFailed(f"the green agent cannot be reached: {error}") from None
        config = ClientConfig(httpx_client=http, streaming=True)
        client = ClientFactory(config).create(
            reachable_card(card, url, streaming=card.capabilities.streaming)
        )
        task_id = await _follow(client, request, told)
        task = await _wait_for_end(client, task_id)
    state = TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()
    return Assessed(
        state=state,
        said=_text(task.status.message.parts),
        results={
            artifact.name or artifact.artifact_id: [_value(part) for part in artifact.parts]
            for artifact in task.artifacts
        },
    )


async def _follow(client: Client, request: str, told: Told) -> str:
    """Read the task's events to the end of the stream; the task's id."""
    task_id = ""
    message = SendMessageRequest(message=new_text_message(request, role=Role.ROLE_USER))
    try:
        async for event in client.send_message(message):
            kind = event.WhichOneof("payload")
            if kind == "message":
                said = _text(event.message.parts)
                raise AssessmentFailed(f"the green agent made no task of it: {said:.300}")
            update = getattr(event, cast("str", kind))
            task_id = task_id or (update.id if kind == "task" else update.task_id)
            if kind == "artifact_update":
                for part in update.artifact.parts:
                    told(update.artifact.name or update.artifact.artifact_id, _value(part))
    except (A2AError, httpx.HTTPError) as error:
        if not task_id:
            raise AssessmentFailed(f"the green agent did not take the request: {error}") from None
    return task_id


async def _wait_for_end(client: Client, task_id: str) -> Task:
    wait_s, failed = FIRST_LOOK_S, 0
    while True:
        try:
            task = await client.get_task(GetTaskRequest(id=task_id))
        except (A2AError, httpx.HTTPError) as error:
            failed += 1
            if failed == MOST_FAILED_LOOKS:
                raise AssessmentFailed(f"the green agent was lost: {error}") from None
        else:
            failed = 0
            if task.status.state in _ENDED:
                return task
        await asyncio.sleep(wait_s)
        wait_s = min(LAST_LOOK_S, wait_s * 2)


def _text(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts)


def _value(part: Part) -> Any:
    """The JSON of a text part; text that is none as it is."""
    with suppress(ValueError):
        return json.loads(part.text)
    return part.text
