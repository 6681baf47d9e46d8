"""Any ``netarena.agent.Agent``, served over A2A: what a purple agent of ours is made of.

A task is sent at once, and says that it is working: gateways and 0.3 streams then know that
somebody is there. The reply is an artifact of one text part.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types.a2a_pb2 import Part, Task, TaskState, TaskStatus
from starlette.applications import Starlette

from netarena.a2a.card import CardText
from netarena.a2a.request import check_url
from netarena.a2a.service import build_app, identify, listen, run_app, url_of
from netarena.agent import Agent
from netarena.errors import AgentFailed

#: seconds for one reply, where whoever asks has no deadline of its own
REPLY_TIMEOUT_S = 3600.0

log = logging.getLogger(__name__)


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
    """An ASGI application in which ``agent`` answers messages; it is neither opened nor closed."""
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
    """Serve ``agent`` until SIGTERM or SIGINT; ``ready`` is told the URL once it listens.

    Port 0 takes a free one. Raises ConfigError when the address cannot be had, or ``card_url``
    is no URL.
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
        ready(url_of(listener))
    run_app(app, listener)


class _AnswerExecutor(AgentExecutor):
    def __init__(self, agent: Agent, timeout_s: float) -> None:
        self._agent = agent
        self._timeout_s = timeout_s

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task_id, context_id = identify(context)
        await event_queue.enqueue_event(
            # without the prompt in its history: the client knows it, and it may be large
            Task(
                id=task_id,
                context_id=context_id,
                status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED),
            )
        )
        updater = TaskUpdater(event_queue, task_id, context_id)
        await updater.start_work()
        try:
            reply = await self._agent.ask(
                context.get_user_input(), context_id=context_id, timeout_s=self._timeout_s
            )
        except AgentFailed as error:
            await updater.failed(updater.new_agent_message([Part(text=str(error))]))
            return
        except Exception as error:
            log.exception("the agent broke")
            text = f"internal error: {type(error).__name__}"
            await updater.failed(updater.new_agent_message([Part(text=text)]))
            return
        await updater.add_artifact(
            [Part(text=reply.text)],
            artifact_id="reply",
            metadata=reply.metadata or None,
            append=False,
            last_chunk=True,
        )
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, *identify(context)).cancel()
