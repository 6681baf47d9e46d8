from __future__ import annotations

import random

import pytest
from a2a.server.context import ServerCallContext
from a2a.types.a2a_pb2 import Artifact, Part, Task, TaskState, TaskStatus

from netarena.a2a.store import BoundedTaskStore, Pile

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


async def test_oldest_ended_tasks_are_removed_first():
    store = BoundedTaskStore(max_ended=2)
    for name in "abc":
        await store.save(task(name), CONTEXT)
    assert await kept(store, *"abc") == ["b", "c"]


async def test_total_size_of_ended_tasks_is_limited_but_the_last_task_is_kept():
    store = BoundedTaskStore(max_bytes=1000)
    for name in "ab":
        await store.save(task(name, size=400), CONTEXT)
    assert await kept(store, *"ab") == ["a", "b"]
    await store.save(task("c", size=5000), CONTEXT)
    assert await kept(store, *"abc") == ["c"]


async def test_running_tasks_are_kept():
    store = BoundedTaskStore(max_ended=1, max_bytes=10)
    for name in "abc":
        await store.save(task(name, TaskState.TASK_STATE_WORKING, size=100), CONTEXT)
    assert await kept(store, *"abc") == ["a", "b", "c"]


async def test_task_that_is_saved_again_counts_once():
    store = BoundedTaskStore(max_ended=2)
    for name in "aab":
        await store.save(task(name), CONTEXT)
    assert await kept(store, *"ab") == ["a", "b"]


def artifact(*texts: str) -> Artifact:
    return Artifact(artifact_id="a", name="n", parts=[Part(text=text) for text in texts])


def test_parts_are_returned_unchanged():
    pile = Pile()
    whole = artifact()
    for texts in (["one"], ["two", "", "7"], ["é\u2028" * 1000]):
        event = artifact(*texts)
        pile.take(event)
        assert len(event.parts) == 1, (
            "the SDK copies one short part, whatever the size of the event"
        )
        whole.parts.extend(event.parts)
    pile.put_back(whole)
    assert whole == artifact("one", "two", "", "7", "é\u2028" * 1000)


def test_parts_are_stored_compressed():
    draw = random.Random(1)
    texts = [" ".join(str(draw.randrange(100)) for _ in range(1000)) for _ in range(16)]
    pile = Pile()
    event = artifact(*texts)
    pile.take(event)
    assert event.ByteSize() < 20
    assert 0 < pile.size < sum(map(len, texts)) * 0.6


async def test_parts_of_a_task_are_removed_with_the_task():
    store = BoundedTaskStore(max_ended=1)
    held = store.pile("a")
    held.take(artifact("x"))
    await store.save(task("a"), CONTEXT)
    await store.save(task("b"), CONTEXT)
    assert store.pile("a") is not held
    late = Artifact(parts=[Part(text="0")])
    held.put_back(late)
    assert late.parts[0].text == "x", "the parts are missing for a client that still reads"
    gone = Artifact(parts=[Part(text="0")])
    store.pile("a").put_back(gone)
    assert not gone.parts


async def test_parts_count_towards_the_bytes_of_an_ended_task():
    store = BoundedTaskStore(max_bytes=1000)
    for name in "ab":
        store.pile(name).take(artifact(random.Random(name).randbytes(900).hex()))
        await store.save(task(name), CONTEXT)
    assert await kept(store, *"ab") == ["b"]
