"""Cost of a run on Ray: episodes per minute, processor time, bytes and memory.

    .venv-ray/bin/python benchmarks/bench_scale.py [--episodes 120] [--workers 1,2,4,8] \
        [--places 8,32,128] [--think 2] [--seed 1] [--markdown docs/evidence/scale.md]

Each row is a run of k8s episodes with a scripted agent (oracle) that waits ``--think`` seconds
before each reply. Most of the time is therefore spent waiting, as with a model. ``places`` is
``concurrency``: the number of episodes that may ask the agent at the same time.

=============  =====================================================================================
column         meaning
=============  =====================================================================================
per minute     episodes per minute, from the start of the run to its end
efficiency     share of the places' time in which the agent is asked: episodes × mean time of
               an episode's replies / (``places`` × time of the run)
head CPU       processor time of the head's process (with Ray's threads) per episode, without the
               start of the workers
bytes          messages between the head and the workers per episode, both directions
head, worker   resident memory at the end; of the largest worker
busy cores     processor time of the whole machine per second; if it is near the number of cores,
               the efficiency says nothing about NetArena
=============  =====================================================================================
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from netarena.a2a.client import A2AAgent
from netarena.agent.process import free_port
from netarena.cli.executor import UrlSource
from netarena.report.markdown import replace_section, table
from netarena.run.assessment import conduct
from netarena.run.journal import JOURNAL_NAME, read_journal
from netarena.run.ray_pool import RayLink, RayPool
from netarena.run.remote import Remote
from netarena.task.application import load

AGENT = Path(__file__).with_name("thinking_agent.py")
TICKS = os.sysconf("SC_CLK_TCK")
START_S = 60.0


class Counted:
    """A link to a worker that counts the bytes of its messages."""

    def __init__(self, link: RayLink, pool: CountingPool) -> None:
        self._link, self._pool = link, pool

    @property
    def node(self) -> str:
        return self._link.node

    def send(self, data: bytes) -> None:
        self._pool.num_bytes += len(data)
        self._link.send(data)

    async def receive(self) -> bytes:
        data = await self._link.receive()
        self._pool.num_bytes += len(data)
        return data

    async def examine(self) -> None:
        await self._link.examine()

    async def close(self) -> None:
        await self._link.close()


class CountingPool:
    """A pool of workers that counts the bytes of all links' messages in ``num_bytes``."""

    def __init__(self, pool: RayPool) -> None:
        self._pool = pool
        self.num_bytes = 0

    @property
    def size(self) -> int:
        return self._pool.size

    async def hire(self) -> Counted:
        return Counted(await self._pool.hire(), self)


class Row(NamedTuple):
    """Results of one run; see the module's docstring."""

    workers: int
    places: int
    episodes: int
    per_minute: float
    efficiency: float
    head_ms: float
    num_bytes: float
    head_mib: float
    worker_mib: float
    busy_cores: float

    def cells(self) -> list[str]:
        return [
            str(self.workers),
            str(self.places),
            str(self.episodes),
            f"{self.per_minute:.0f}",
            f"{self.efficiency:.0%}",
            f"{self.head_ms:.1f} ms",
            f"{self.num_bytes:,.0f}",
            f"{self.head_mib:.0f} MiB",
            f"{self.worker_mib:.0f} MiB",
            f"{self.busy_cores:.1f}",
        ]


HEAD = [
    "workers", "places", "episodes", "per minute", "efficiency", "head CPU per episode",
    "bytes per episode", "head", "worker", "busy cores",
]  # fmt: skip


def machine_s() -> float:
    """Return the processor time that this machine has spent so far, in s."""
    fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, fields)
    return (user + nice + system + irq + softirq) / TICKS


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def workers_of(head: int) -> Iterator[int]:
    """Yield the worker processes below a process."""
    parents: dict[int, int] = {}
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            stat = (path / "stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
            parents[int(path.name)] = int(stat[1])
            if b"netarena.run.worker" in (path / "cmdline").read_bytes().split(b"\0"):
                found.append(int(path.name))
        except OSError:
            continue
    for pid in found:
        parent = pid
        while parent > 1 and parent != head:
            parent = parents.get(parent, 0)
        if parent == head:
            yield pid


async def measure(
    pool: RayPool, workers: int, places: int, given: argparse.Namespace, out: Path
) -> Row:
    """Play the episodes once and return the results."""
    app = load("k8s")
    num_queries = -(-given.episodes // 15)
    keys = {"num_queries": num_queries, "end_index": given.episodes, "seed": given.seed}
    config = app.config_type.parse({**keys, "concurrency": places})
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, AGENT, "k8s", "oracle", "--seed", str(given.seed)),
        *("--port", str(port), "--think", str(given.think)),
        *(f"--set={key}={value}" for key, value in keys.items() if key != "seed"),
        stdout=asyncio.subprocess.DEVNULL,
    )
    agent = A2AAgent(f"http://127.0.0.1:{port}/", name="bench")
    counting = CountingPool(pool)
    marks: dict[str, tuple[float, float, float]] = {}

    def mark(name: str) -> None:
        marks[name] = time.monotonic(), time.process_time(), machine_s()

    def source() -> UrlSource:
        return UrlSource(f"http://127.0.0.1:{port}/", None, agent.fetched)

    try:
        await agent.open(timeout_s=START_S)
        async with Remote(counting, {app.role: source}, print) as head:
            await head.check(app, config)  # starts the workers, outside of the measured time
            counting.num_bytes = 0
            mark("begin")
            await conduct(app, config, {app.role: agent}, out=out, executor=Started(head))
            mark("end")
            worker_mib = max(map(resident_mib, workers_of(os.getpid())), default=0.0)
    finally:
        process.terminate()
        await process.wait()
        await agent.aclose()
    wall_s, head_s, busy_s = (
        after - before for before, after in zip(marks["begin"], marks["end"], strict=True)
    )
    episodes = [*read_journal(out / JOURNAL_NAME, slim=False).episodes.values()]
    turns_s = sum(step.agent_s for one in episodes for step in one.steps) / len(episodes)
    rate = len(episodes) / wall_s
    return Row(
        workers=workers,
        places=places,
        episodes=len(episodes),
        per_minute=60 * rate,
        efficiency=rate * turns_s / min(places, len(episodes)),
        head_ms=1000 * head_s / len(episodes),
        num_bytes=counting.num_bytes / len(episodes),
        head_mib=resident_mib(os.getpid()),
        worker_mib=worker_mib,
        busy_cores=busy_s / wall_s,
    )


class Started:
    """An executor whose workers have already been started."""

    def __init__(self, head: Remote) -> None:
        self._head = head

    def __getattr__(self, name: str) -> Any:
        return getattr(self._head, name)

    async def check(self, *_: object) -> None:
        """Do nothing, because the workers have already been started."""


async def run(given: argparse.Namespace, folder: Path) -> list[Row]:
    rows = []
    for workers in map(int, given.workers.split(",")):
        async with RayPool(None, workers, workers) as pool:
            for places in map(int, given.places.split(",")):
                row = await measure(pool, workers, places, given, folder / f"{workers}-{places}")
                print(dict(zip(HEAD, row.cells(), strict=True)), flush=True)
                rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=120)
    parser.add_argument("--workers", default="1,2,4,8")
    parser.add_argument("--places", default="8,32,128")
    parser.add_argument("--think", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    if given.markdown:  # raises an error before the runs if the page lacks the section
        replace_section(given.markdown.read_text(encoding="utf-8"), "scale", ())
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(run(given, Path(folder)))
    lines = [
        (
            f"`python benchmarks/bench_scale.py --episodes {given.episodes}`, {os.cpu_count()} "
            f"processors, load {os.getloadavg()[0]:.0f} at the end:"
        ),
        "",
        *table(HEAD, [row.cells() for row in rows]),
    ]
    print(*lines, sep="\n")
    if given.markdown:
        page = given.markdown.read_text(encoding="utf-8")
        given.markdown.write_text(replace_section(page, "scale", lines), encoding="utf-8")


if __name__ == "__main__":
    main()
