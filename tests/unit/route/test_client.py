"""Places of networks in the kernel's neighbour table."""

from __future__ import annotations

import asyncio

import pytest

from netarena.errors import EnvironmentFailed
from netarena_route import client
from netarena_route.netlink import NeighbourTable


async def granted(count: int) -> None:
    """Let those that can go on do so."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.anyio
async def test_networks_wait_for_their_place_in_the_neighbour_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "neighbour_table", lambda: NeighbourTable(0, 1000))
    table = client._Table()
    began: list[int] = []

    async def begin(entries: int) -> None:
        await table.take(entries)
        began.append(entries)

    tasks = [asyncio.create_task(begin(entries)) for entries in (600, 300, 500, 400, 2000)]
    await granted(9)
    assert began == [600, 300]
    tasks[2].cancel()  # it is no longer waited for
    await granted(9)
    table.give(300)
    await granted(9)
    assert began == [600, 300, 400]
    table.give(600)
    await granted(9)
    assert began == [600, 300, 400]
    table.give(400)
    await granted(9)
    assert began == [600, 300, 400, 2000]  # one that is larger than the table goes alone
    assert [task.cancelled() for task in tasks] == [False, False, True, False, False]


@pytest.mark.anyio
async def test_a_place_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "neighbour_table", lambda: NeighbourTable(0, 1000))
    monkeypatch.setattr(client, "_PLACE_S", 0.01)
    table = client._Table()
    await table.take(600)
    with pytest.raises(EnvironmentFailed, match="fill the kernel's neighbour table of 1000"):
        await table.take(500)
    table.give(600)
    await table.take(500)
    with pytest.raises(EnvironmentFailed):  # what was given up takes no place
        await table.take(501)
    await table.take(500)
