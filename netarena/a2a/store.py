"""In-memory store of a service's tasks: all running tasks and the most recently ended ones.

The SDK stores each task twice, and copies the task for its subscribers at each event. Therefore the
SDK receives only references. This module stores the parts of each event once, in compressed form.
It replaces them with one part that contains the number of the stored entry. ``Handler`` restores
the parts in responses. The cost of an event therefore depends only on its own data, and only
references are queued for a slow client.

Any client that knows a task's id, which cannot be guessed, can see and cancel the task. Any client
that names the task's context can list the task.
"""

from __future__ import annotations

import uuid
import zlib
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.agent_execution.active_task import TERMINAL_TASK_STATES
from a2a.server.context import ServerCallContext
from a2a.server.events import Event, EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore
from a2a.types.a2a_pb2 import (
    Artifact,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
)
from a2a.utils.errors import InvalidParamsError

#: Maximum number of stored tasks that have ended.
MAX_ENDED = 100
#: Maximum number of bytes of all stored tasks that have ended. The most recently ended task is
#: stored even if it is larger.
MAX_ENDED_BYTES = 32 * 2**20
#: Maximum number of uncompressed artifact bytes in one page of a list of tasks. In memory, the
#: compressed artifacts may take only a hundredth of this. A page with the artifacts of a single
#: task may be larger.
MAX_LISTED_BYTES = 32 * 2**20
#: The fastest compression level; it reduces records to a third.
_LEVEL = 1


class Pile:
    """Compressed parts of a task's artifacts, with one entry per event."""

    def __init__(self) -> None:
        self._batches: list[bytes] = []
        #: Number of bytes of compressed data.
        self.size = 0
        #: Number of bytes of the data before compression.
        self.whole_size = 0

    def take(self, artifact: Artifact) -> None:
        """Store the parts of ``artifact`` and replace them with a reference."""
        whole = Artifact(parts=artifact.parts).SerializeToString()
        batch = zlib.compress(whole, _LEVEL)
        del artifact.parts[:]
        artifact.parts.append(Part(text=str(len(self._batches))))
        self._batches.append(batch)
        self.size += len(batch)
        self.whole_size += len(whole)

    def put_back(self, artifact: Artifact) -> None:
        """Replace references in ``artifact`` with the stored parts; omit removed parts."""
        tickets = [int(part.text) for part in artifact.parts]
        del artifact.parts[:]
        for ticket in tickets:
            if ticket < len(self._batches):
                artifact.MergeFromString(zlib.decompress(self._batches[ticket]))


class BoundedTaskStore(InMemoryTaskStore):
    """The SDK's task store with a size limit; tasks that ended first are removed first.

    No result is lost, because results are also on disk.
    """

    def __init__(self, *, max_ended: int = MAX_ENDED, max_bytes: int = MAX_ENDED_BYTES) -> None:
        super().__init__()
        self._max_ended = max_ended
        self._max_bytes = max_bytes
        self._piles: dict[str, Pile] = {}
        self._ended: OrderedDict[str, tuple[int, ServerCallContext]] = OrderedDict()

    def pile(self, task_id: str) -> Pile:
        """Return the stored parts of a task, which ``delete`` removes together with the task."""
        return self._piles.setdefault(task_id, Pile())

    async def save(self, task: Task, context: ServerCallContext) -> None:
        await super().save(task, context)
        if task.status.state not in TERMINAL_TASK_STATES:
            return
        self._ended[task.id] = task.ByteSize() + self.pile(task.id).size, context
        while len(self._ended) > self._max_ended or (
            len(self._ended) > 1 and sum(size for size, _ in self._ended.values()) > self._max_bytes
        ):
            oldest, (_, owner) = self._ended.popitem(last=False)
            await self.delete(oldest, owner)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        await super().delete(task_id, context)
        self._piles.pop(task_id, None)


class CompactExecutor(AgentExecutor):
    """Wrapper of an executor that passes artifacts to the SDK as references."""

    def __init__(self, executor: AgentExecutor, store: BoundedTaskStore) -> None:
        self._executor = executor
        self._store = store

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._executor.execute(context, _CompactQueue(event_queue, self._store))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._executor.cancel(context, _CompactQueue(event_queue, self._store))


class _CompactQueue(EventQueue):
    def __init__(self, queue: EventQueue, store: BoundedTaskStore) -> None:
        self._queue = queue
        self._store = store

    async def enqueue_event(self, event: Event) -> None:
        if isinstance(event, TaskArtifactUpdateEvent):
            self._store.pile(event.task_id).take(event.artifact)
        await self._queue.enqueue_event(event)


class Handler(DefaultRequestHandler):
    """The SDK's request handler, which restores the parts that ``CompactExecutor`` replaced."""

    task_store: BoundedTaskStore

    def _whole(self, task: Task) -> Task:
        """Return a copy of a task with the stored parts in place of references."""
        pile = self.task_store.pile(task.id)
        copy = Task()
        copy.CopyFrom(task)
        for artifact in copy.artifacts:
            pile.put_back(artifact)
        return copy

    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task | None:
        task = await super().on_get_task(params, context)
        return task and self._whole(task)

    async def on_list_tasks(
        self, params: ListTasksRequest, context: ServerCallContext
    ) -> ListTasksResponse:
        if not params.context_id:
            # clients do not log in, so a list without a context contains no tasks
            params = ListTasksRequest.FromString(params.SerializeToString())
            params.context_id = str(uuid.uuid4())
        page: ListTasksResponse = await super().on_list_tasks(params, context)
        sizes = [self.task_store.pile(task.id).whole_size for task in page.tasks if task.artifacts]
        if len(sizes) > 1 and sum(sizes) > MAX_LISTED_BYTES:
            raise InvalidParamsError(
                message=f"the artifacts of this page have {sum(sizes)} bytes; the maximum is "
                f"{MAX_LISTED_BYTES}; ask for a smaller pageSize, or omit includeArtifacts"
            )
        for task in page.tasks:
            task.CopyFrom(self._whole(task))
        return page

    async def on_cancel_task(
        self, params: CancelTaskRequest, context: ServerCallContext
    ) -> Task | None:
        task = await super().on_cancel_task(params, context)
        return task and self._whole(task)

    async def on_message_send(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> Message | Task:
        result = await super().on_message_send(params, context)
        return self._whole(result) if isinstance(result, Task) else result

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        async with aclosing(super().on_message_send_stream(params, context)) as events:
            async for event in self._whole_events(events):
                yield event

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        async with aclosing(super().on_subscribe_to_task(params, context)) as events:
            async for event in self._whole_events(events):
                yield event

    async def _whole_events(
        self, events: AsyncGenerator[Event, None]
    ) -> AsyncGenerator[Event, None]:
        pile: Pile | None = None
        async for event in events:
            if isinstance(event, Task):
                # hold a reference to the parts, because the task may be removed before its last
                # event is read
                pile = self.task_store.pile(event.id)
                yield self._whole(event)
            elif isinstance(event, TaskArtifactUpdateEvent):
                pile = pile or self.task_store.pile(event.task_id)
                # other subscribers receive the same event object
                copy = TaskArtifactUpdateEvent()
                copy.CopyFrom(event)
                pile.put_back(copy.artifact)
                yield copy
            else:
                yield event
