"""Server that exposes any ``netarena.agent.interface.Agent`` over A2A.

Each task is immediately reported as "working", so that gateways and A2A 0.3 clients see activity.
The reply is an artifact with one text part. For an agent with the method ``stream``, the artifact
has several parts, which are sent as they arrive.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol, runtime_checkable

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types.a2a_pb2 import Part, Task, TaskState, TaskStatus
from starlette.applications import Starlette

from netarena.a2a.card import CardText
from netarena.a2a.request import check_url
from netarena.a2a.service import bound_url, build_app, identify, listen, run_app, url_of
from netarena.agent.interface import Agent
from netarena.errors import AgentFailed
from netarena.model import Reply

#: Default time limit for one reply, in s.
REPLY_TIMEOUT_S = 3600.0
#: Minimum time in s between two events of a reply. Events are costly, because the SDK copies the
#: task at each event.
PIECE_EVERY_S = 0.5

log = logging.getLogger(__name__)


@runtime_checkable
class Streaming(Protocol):
    """An agent that can return its reply piece by piece."""

    def stream(
        self, prompt: str, *, context_id: str, timeout_s: float
    ) -> AsyncGenerator[str | Reply | None, None]:
        """Yield the pieces of the reply's text, and finally the whole reply.

        The value None means that the client must discard the previous pieces. Raises AgentFailed.
        """
        ...


def purple_app(  # noqa: PLR0913 -- the settings of a service
    agent: Agent,
    *,
    name: str,
    description: str,
    version: str = "1",
    card_url: str | None = None,
    fallback_url: str = "http://127.0.0.1:9010/",
    timeout_s: float = REPLY_TIMEOUT_S,
) -> Starlette:
    """Return an ASGI application that serves ``agent``; the caller opens and closes the agent."""
    text = CardText(name=name, description=description, version=version, tags=("purple-agent",))
    executor = _AnswerExecutor(agent, timeout_s)
    return build_app(executor, text, card_url=card_url, fallback_url=fallback_url)


def serve_agent(  # noqa: PLR0913 -- the settings of a service
    agent: Agent,
    *,
    host: str = "127.0.0.1",
    port: int = 9010,
    card_url: str | None = None,
    name: str,
    description: str,
    version: str = "1",
    timeout_s: float = REPLY_TIMEOUT_S,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve ``agent`` until SIGTERM or SIGINT. ``ready`` receives the URL once the service listens.

    Port 0 means any free port. Raises ConfigError if the address is unavailable or ``card_url`` is
    not a URL.
    """
    if card_url is not None:
        check_url(card_url, "card_url")
    listener = listen(host, port)
    app = purple_app(
        agent,
        name=name,
        description=description,
        version=version,
        card_url=card_url,
        fallback_url=url_of(listener),
        timeout_s=timeout_s,
    )
    if ready is not None:
        ready(bound_url(listener))
    run_app(app, listener)


class _AnswerExecutor(AgentExecutor):
    def __init__(self, agent: Agent, timeout_s: float) -> None:
        self._agent = agent
        self._timeout_s = timeout_s

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task_id, context_id = identify(context)
        await event_queue.enqueue_event(
            # the history omits the prompt, because the client has the prompt and it may be large
            Task(
                id=task_id,
                context_id=context_id,
                status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED),
            )
        )
        updater = TaskUpdater(event_queue, task_id, context_id)
        await updater.start_work()
        try:
            await self._answer(context.get_user_input(), context_id, _Artifact(updater))
        except AgentFailed as error:
            await updater.failed(updater.new_agent_message([Part(text=str(error))]))
            return
        except Exception as error:
            log.exception("the agent raised an error")
            text = f"internal error: {type(error).__name__}"
            await updater.failed(updater.new_agent_message([Part(text=text)]))
            return
        await updater.complete()

    async def _answer(self, prompt: str, context_id: str, artifact: _Artifact) -> None:
        if not isinstance(self._agent, Streaming):
            reply = await self._agent.ask(prompt, context_id=context_id, timeout_s=self._timeout_s)
            await artifact.end(reply)
            return
        stream = self._agent.stream(prompt, context_id=context_id, timeout_s=self._timeout_s)
        async with aclosing(stream) as pieces:
            async for piece in pieces:
                if isinstance(piece, Reply):
                    await artifact.end(piece)
                else:
                    await artifact.take(piece)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, *identify(context)).cancel()


class _Artifact:
    """Artifact of a reply; its text is sent piece by piece."""

    def __init__(self, updater: TaskUpdater) -> None:
        self._updater = updater
        self._sent = ""
        self._waiting = ""
        self._last = time.monotonic()

    async def take(self, piece: str | None) -> None:
        """Add a piece; None discards all pieces.

        The waiting pieces are sent if the last event is old enough.
        """
        if piece is None:
            # the next piece replaces the text sent so far
            self._sent = self._waiting = ""
            return
        self._waiting += piece
        if time.monotonic() - self._last >= PIECE_EVERY_S:
            await self._send(self._waiting, self._sent)

    async def end(self, reply: Reply) -> None:
        """Send the rest of the reply, or the whole reply if the text sent so far differs."""
        sent = self._sent if reply.text.startswith(self._sent) else ""
        await self._send(reply.text[len(sent) :], sent, reply=reply)

    async def _send(self, text: str, sent: str, *, reply: Reply | None = None) -> None:
        await self._updater.add_artifact(
            [Part(text=text)],
            artifact_id="reply",
            metadata=(reply and reply.metadata) or None,
            append=bool(sent),
            last_chunk=reply is not None,
        )
        self._sent, self._waiting, self._last = sent + text, "", time.monotonic()
