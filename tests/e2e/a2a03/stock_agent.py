"""Purple agent built with version 0.3 of the SDK: ``stock_agent.py PORT KIND``.

KIND is the form of the reply: ``message``, ``task`` (an artifact), ``chunks``, ``status`` or
``raise``. Prints ``ready`` when it listens. The reply is the prompt in capitals and the context id.
"""

from __future__ import annotations

import sys

import uvicorn
from a2a.server.agent_execution import AgentExecutor
from a2a.server.apps import A2AStarletteApplication
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Part, TaskState, TextPart
from a2a.utils import new_agent_text_message, new_task


class Executor(AgentExecutor):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    async def execute(self, context, event_queue) -> None:
        reply = context.get_user_input().upper() + " " + context.context_id
        if self.kind == "raise":
            raise RuntimeError("broken")
        if self.kind == "message":
            await event_queue.enqueue_event(
                new_agent_text_message(reply, context_id=context.context_id)
            )
            return
        task = new_task(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        if self.kind == "status":
            message = new_agent_text_message(reply, context_id=task.context_id, task_id=task.id)
            await updater.update_status(TaskState.completed, message, final=True)
            return
        pieces = [reply] if self.kind == "task" else list(reply)
        for index, piece in enumerate(pieces):
            await updater.add_artifact(
                [Part(root=TextPart(text=piece))], artifact_id="a", append=index > 0
            )
        await updater.complete()

    async def cancel(self, context, event_queue) -> None:
        raise NotImplementedError


port, kind = int(sys.argv[1]), sys.argv[2]
card = AgentCard(
    name="stock",
    description="",
    url=f"http://127.0.0.1:{port}/",
    version="1",
    default_input_modes=["text"],
    default_output_modes=["text"],
    capabilities=AgentCapabilities(streaming="nostream" not in sys.argv),
    skills=[AgentSkill(id="a", name="a", description="a", tags=[])],
)
handler = DefaultRequestHandler(agent_executor=Executor(kind), task_store=InMemoryTaskStore())
app = A2AStarletteApplication(agent_card=card, http_handler=handler).build()
uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
