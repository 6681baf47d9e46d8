from __future__ import annotations

import pytest
from a2a.server.context import ServerCallContext
from a2a.types.a2a_pb2 import Artifact, Part, Task, TaskState, TaskStatus

from netarena.a2a.store import BoundedTaskStore

pytestmark = pytest.mark.anyio
CONTEXT = ServerCallContext()


def task(name: str, state: TaskState = TaskState.TASK_STATE_COMPLETED, size: int = 0) -> Task:
    return Task(
        id=name,
        context_id="c",
        status=TaskStatus(state=state),
        artifacts=[Artifact(artifact_id="a", parts=[Part(text="x" * size)])],
    )


async def kept(store: BoundedTaskStore, *names: str) -> list[str]:
    return [name for name in names if await store.get(name, CONTEXT) is not None]


async def test_the_oldest_ended_tasks_go_first():
    store = BoundedTaskStore(max_ended=2)
    for name in "abc":
        await store.save(task(name), CONTEXT)
    assert await kept(store, *"abc") == ["b", "c"]


async def test_their_bytes_are_bounded_and_the_last_one_is_kept():
    store = BoundedTaskStore(max_bytes=1000)
    for name in "ab":
        await store.save(task(name, size=400), CONTEXT)
    assert await kept(store, *"ab") == ["a", "b"]
    await store.save(task("c", size=5000), CONTEXT)
    assert await kept(store, *"abc") == ["c"]


async def test_tasks_that_run_stay():
    store = BoundedTaskStore(max_ended=1, max_bytes=10)
    for name in "abc":
        await store.save(task(name, TaskState.TASK_STATE_WORKING, size=100), CONTEXT)
    assert await kept(store, *"abc") == ["a", "b", "c"]


async def test_a_task_that_is_saved_again_counts_once():
    store = BoundedTaskStore(max_ended=2)
    for name in "aab":
        await store.save(task(name), CONTEXT)
    assert await kept(store, *"ab") == ["a", "b"]
