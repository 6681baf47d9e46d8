"""Tasks of a service, in memory: all that run, and the last ones that ended."""

from __future__ import annotations

from collections import OrderedDict

from a2a.server.agent_execution.active_task import TERMINAL_TASK_STATES
from a2a.server.context import ServerCallContext
from a2a.server.tasks import InMemoryTaskStore
from a2a.types.a2a_pb2 import Task

#: ended tasks that a client may still come back for
MAX_ENDED = 100
#: bytes of ended tasks together; the last one is kept whatever its size
MAX_ENDED_BYTES = 32 * 2**20


class BoundedTaskStore(InMemoryTaskStore):
    """The SDK's store, which keeps everything, with an end: the oldest ended tasks go first.

    Nothing is lost by it: results are on disk.
    """

    def __init__(self, *, max_ended: int = MAX_ENDED, max_bytes: int = MAX_ENDED_BYTES) -> None:
        super().__init__()
        self._max_ended = max_ended
        self._max_bytes = max_bytes
        self._ended: OrderedDict[str, tuple[int, ServerCallContext]] = OrderedDict()

    async def save(self, task: Task, context: ServerCallContext) -> None:
        await super().save(task, context)
        if task.status.state not in TERMINAL_TASK_STATES:
            return
        self._ended[task.id] = task.ByteSize(), context
        while len(self._ended) > self._max_ended or (
            len(self._ended) > 1 and sum(size for size, _ in self._ended.values()) > self._max_bytes
        ):
            oldest, (_, owner) = self._ended.popitem(last=False)
            await self.delete(oldest, owner)
