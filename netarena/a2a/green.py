"""Client that requests an assessment from a green agent, like the standard client of AgentBeats.

The client reads the task's event stream. If the stream breaks, the client polls the task until the
task ends, because some gateways end a stream after 300 s. The client uses the given URL, even if
the card contains another URL.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.helpers import new_text_message
from a2a.types.a2a_pb2 import (
    AgentCard,
    Artifact,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import A2AError
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

from netarena.a2a.client import reachable_card
from netarena.errors import AssessmentFailed

#: Time limit for establishing a connection, in s. The time until an answer is not limited.
CONNECT_S = 10.0
#: First and longest pause in s between polls of a task whose stream broke. The pause doubles with
#: each poll.
FIRST_LOOK_S, LAST_LOOK_S = 0.5, 10.0
#: Maximum number of consecutive failed polls.
MOST_FAILED_LOOKS = 20

_ENDED = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_REJECTED,
        TaskState.TASK_STATE_CANCELED,
    }
)

#: Advice in the error message if the agent at the URL is not a green agent.
TAKES_GREEN = (
    "send the request to a green agent (netarena serve APP), and put the URL of the agent under "
    "test into participants"
)

Told = Callable[[str, Any], None]
#: Callback for a status message and its metadata (``server.ArtifactReporter``).
Heard = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Assessed:
    """Result of an assessment.

    ``results`` maps each artifact's name (the participant's role) to its parts.
    """

    #: Final state: ``completed``, ``failed``, ``rejected`` or ``canceled``.
    state: str
    #: Text of the last status message.
    said: str
    results: dict[str, list[Any]]


async def request_assessment(
    url: str, request: str, *, told: Told, heard: Heard = lambda _said, _known: None
) -> Assessed:
    """Send ``request`` (JSON) to the green agent at ``url``; return the result of the assessment.

    The callback ``told`` receives each part of an artifact on arrival, with the artifact's name.
    ``heard`` receives each status message. Raises AssessmentFailed if the agent cannot be reached,
    is not a green agent, or stops answering.
    """
    limits = httpx.Timeout(None, connect=CONNECT_S)
    async with httpx.AsyncClient(timeout=limits, trust_env=False) as http:
        try:
            card = await A2ACardResolver(http, url).get_agent_card()
        except (A2AClientError, httpx.HTTPError, ValueError) as error:
            raise AssessmentFailed(f"the green agent cannot be reached: {error}") from None
        if _is_purple(card):
            raise AssessmentFailed(
                f"the agent at {url} ({card.name:.100}) is an agent under test: {TAKES_GREEN}"
            )
        config = ClientConfig(httpx_client=http, streaming=True)
        client = ClientFactory(config).create(
            reachable_card(card, url, streaming=card.capabilities.streaming)
        )
        task = await _Task(client, told, heard).run(request)
    state = TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()
    return Assessed(
        state=state,
        said=_text(task.status.message.parts),
        results={
            artifact.name or artifact.artifact_id: [_value(part) for part in artifact.parts]
            for artifact in task.artifacts
        },
    )


class _Task:
    """One task of a green agent, from its request to its end."""

    def __init__(self, client: Client, told: Told, heard: Heard) -> None:
        self._client = client
        self._told = told
        self._heard = heard
        #: Artifact's name -> number of parts that have arrived.
        self._arrived: Counter[str] = Counter()

    async def run(self, request: str) -> Task:
        return await self._wait_for_end(await self._follow(request))

    async def _follow(self, request: str) -> str:
        """Read the task's events until the stream ends; return the task's id."""
        task_id = ""
        message = SendMessageRequest(message=new_text_message(request, role=Role.ROLE_USER))
        try:
            async for event in self._client.send_message(message):
                kind = event.WhichOneof("payload")
                if kind == "message":
                    said = _text(event.message.parts)
                    raise AssessmentFailed(
                        f"the agent replied but started no assessment: {said:.300}: {TAKES_GREEN}"
                    )
                update = getattr(event, cast("str", kind))
                task_id = task_id or (update.id if kind == "task" else update.task_id)
                if kind == "artifact_update":
                    self._take(update.artifact.name or update.artifact.artifact_id, update.artifact)
                elif kind == "status_update" and update.status.state not in _ENDED:
                    self._hear(update.status.message)
        except (A2AError, httpx.HTTPError) as error:
            if not task_id:
                raise AssessmentFailed(f"the green agent rejected the request: {error}") from None
            self._heard(f"the connection broke ({error}); polling the task instead", {})
        return task_id

    async def _wait_for_end(self, task_id: str) -> Task:
        wait_s, failed = FIRST_LOOK_S, 0
        while True:
            try:
                task = await self._client.get_task(GetTaskRequest(id=task_id))
            except (A2AError, httpx.HTTPError) as error:
                failed += 1
                if failed == MOST_FAILED_LOOKS:
                    raise AssessmentFailed(
                        f"the connection to the green agent was lost: {error}"
                    ) from None
            else:
                failed = 0
                for artifact in task.artifacts:
                    name = artifact.name or artifact.artifact_id
                    self._take(name, artifact, skip=self._arrived[name])
                if task.status.state in _ENDED:
                    return task
            await asyncio.sleep(wait_s)
            wait_s = min(LAST_LOOK_S, wait_s * 2)

    def _take(self, name: str, artifact: Artifact, skip: int = 0) -> None:
        """Pass the parts of an artifact after the first ``skip`` parts to the callback ``told``."""
        for part in artifact.parts[skip:]:
            self._arrived[name] += 1
            self._told(name, _value(part))

    def _hear(self, message: Message) -> None:
        if said := _text(message.parts).strip():
            known = MessageToDict(message.metadata).get("netarena")
            self._heard(said, known if isinstance(known, dict) else {})


def _is_purple(card: AgentCard) -> bool:
    """Return whether a card belongs to an agent served by ``netarena-purple``."""
    return any("purple-agent" in skill.tags for skill in card.skills)


def _text(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts)


def _value(part: Part) -> Any:
    """Return the parsed JSON of a text part, or the text itself if it is not JSON."""
    with suppress(ValueError):
        return json.loads(part.text)
    return part.text
