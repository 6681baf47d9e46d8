"""Cost of a whole assessment over A2A on loopback, with a real green agent, purple agent and
client.

    python benchmarks/bench_end_to_end.py [--queries 50] [--concurrency 2] [--agent oracle]
    python benchmarks/bench_end_to_end.py --queries 5000 --concurrency 2 --repeat 1
    python benchmarks/bench_end_to_end.py --concurrency 8 --agent copier
    python benchmarks/bench_end_to_end.py --application k8s --queries 2000 --repeat 1
    python benchmarks/bench_end_to_end.py --application k8s --queries 200 --concurrency 8 \
        --set world=varied --set briefing=ticket --set time_budget_s=10000 --repeat 1

Prints a table with the wall time from sending the request to the last event, and the CPU time of
the service with its children. The table also has the peak memory in each quarter of the run, and
that of the service's first process, where a leak would show. The memory is PSS, which counts each
page once over all processes. Below the table, each run's episodes that were not solved safely are
listed with index, label, outcome, turns and reason, as in the journal. On a busy machine a large
run needs a larger ``time_budget_s`` than the default. The agent ``copier`` answers immediately with
a program that copies its network and holds both copies for a while.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from a2a.client import ClientConfig, ClientFactory
from a2a.client.card_resolver import A2ACardResolver
from a2a.helpers import new_text_message
from a2a.types.a2a_pb2 import Role, SendMessageRequest

from netarena.a2a.purple import serve_agent
from netarena.model import AgentInfo, Reply
from netarena.run.journal import JOURNAL_NAME, read_episodes
from netarena.task.failure import why
from netarena.task.label import COUNTED

MIB = 2**20
#: Time limit for a service to stop, on a busy machine. After this time the service is killed, which
#: does not affect the measurements.
STOP_S = 60.0
#: Number of labels of each application's standard config, over which queries are spread.
LABELS = {"malt": 12, "route": 15, "k8s": 15}
#: Number of labels of tickets, for every application.
TICKET_LABELS = len(COUNTED)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for parent in found:
        try:
            tasks = list(Path(f"/proc/{parent}/task").iterdir())
            for task in tasks:
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def pss_bytes(pid: int) -> tuple[int, int]:
    """Return the memory in bytes of a process with its descendants, and of the process itself."""
    sizes = []
    for member in family(pid):
        try:
            text = Path(f"/proc/{member}/smaps_rollup").read_text()
        except OSError:
            continue
        sizes.append(sum(int(ln.split()[1]) for ln in text.splitlines() if ln[:4] == "Pss:"))
    return sum(sizes) * 1024, sizes[0] * 1024 if sizes else 0


def cpu_s(pid: int) -> float:
    """Return the CPU time in s of a process and its descendants, including ended descendants."""
    ticks = 0
    for member in family(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rsplit(") ", 1)[1].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Watch(threading.Thread):
    """Samples the memory of a service until ``over`` is set."""

    def __init__(self, pid: int, every_s: float = 0.05) -> None:
        super().__init__(daemon=True)
        self.pid, self.every_s, self.over = pid, every_s, threading.Event()
        #: Memory of the service with its children, and of its first process, in bytes.
        self.samples: list[tuple[int, int]] = []

    def run(self) -> None:
        while not self.over.wait(self.every_s):
            self.samples.append(pss_bytes(self.pid))

    @property
    def peak(self) -> int:
        """Return the peak memory of the service with its children, in bytes."""
        return max((whole for whole, _ in self.samples), default=0)

    def peaks(self, parts: int) -> list[list[int]]:
        """Return the peaks of the two samples in each of ``parts`` equal periods, in MiB."""
        length = -(-len(self.samples) // parts)
        found = []
        for kind in range(2):
            sizes = [sample[kind] // MIB for sample in self.samples]
            pieces = [sizes[n * length : (n + 1) * length] for n in range(parts)]
            found.append([max(piece, default=0) for piece in pieces])
        return found


async def wait_for(url: str) -> None:
    async with asyncio.timeout(60), httpx.AsyncClient() as http:
        while True:
            try:
                if (await http.get(f"{url}.well-known/agent-card.json")).is_success:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)


async def request(
    green: str, purple: str, role: str, config: dict[str, object]
) -> tuple[float, list[str]]:
    """Send a request as AgentBeats' client does; return wall time in s and the artifact's parts."""
    parts: list[str] = []
    async with httpx.AsyncClient(timeout=None) as http:
        card = await A2ACardResolver(http, green).get_agent_card()
        client = ClientFactory(ClientConfig(httpx_client=http, streaming=True)).create(card)
        text = json.dumps({"participants": {role: purple}, "config": config})
        message = new_text_message(text, role=Role.ROLE_USER)
        begin = time.perf_counter()
        async for event in client.send_message(SendMessageRequest(message=message)):
            if event.WhichOneof("payload") == "artifact_update":
                parts += [part.text for part in event.artifact_update.artifact.parts]
        return time.perf_counter() - begin, parts


@dataclass
class Started:
    """A running green agent and purple agent, and the config that both use."""

    green: str
    purple: str
    config: dict[str, object]
    service_pid: int


def read_value(text: str) -> object:
    """Return a config key's value as the command line reads it: JSON if valid, otherwise text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@contextmanager
def started(arguments: argparse.Namespace, folder: Path) -> Iterator[Started]:
    green_port, purple_port = free_port(), free_port()
    green, purple = (f"http://127.0.0.1:{port}/" for port in (green_port, purple_port))
    given = {key: read_value(text) for key, text in (one.split("=", 1) for one in arguments.set)}
    ticket = given.get("briefing") == "ticket"
    labels = TICKET_LABELS if ticket else LABELS[arguments.application]
    config: dict[str, object] = {
        "seed": 7,
        "num_queries": -(-arguments.queries // labels),
        "end_index": arguments.queries,
        "concurrency": arguments.concurrency,
        **given,
    }
    pairs = [
        f"--set={key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in config.items()
        if key != "seed"
    ]
    python = [sys.executable, "-m"]
    service = [*python, "netarena", "serve", arguments.application, "--port", str(green_port)]
    service += ["--out", str(folder)]
    if arguments.agent == "copier":
        agent = [sys.executable, __file__, "--serve-copier", str(purple_port)]
    else:
        agent = [*python, "a2a_purple", "--port", str(purple_port), "--strategy", arguments.agent]
        agent += ["--application", arguments.application, "--seed", "7", *pairs]
    quiet = subprocess.DEVNULL
    processes = [
        subprocess.Popen(command, cwd=folder, stdout=quiet, stderr=quiet)
        for command in (service, agent)
    ]
    try:
        asyncio.run(both(green, purple))
        yield Started(green, purple, config, processes[0].pid)
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


COPIES = """```python
def process_graph(graph_data):
    import time

    graph = graph_data.copy()
    time.sleep(1)
    return {"type": "text", "data": len(graph), "updated_graph": graph}
```"""


class Copier:
    """An agent whose answers all copy the network."""

    info = AgentInfo(name="copier")

    async def open(self, *, timeout_s: float) -> None:
        """Do nothing, because no preparation is needed."""

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        return Reply(text=COPIES)

    async def aclose(self) -> None:
        """Do nothing, because there is nothing to release."""


def tell_losses(folder: Path, queries: int) -> list[str]:
    """Return a line for each episode in the journals of ``folder`` that was not solved safely.

    If the assessment's time ran out and the journals have fewer than ``queries`` episodes, a last
    line states how many queries were asked.
    """
    found, graded = [], 0
    for path in sorted(folder.rglob(JOURNAL_NAME)):
        for one in read_episodes(path):
            graded += 1
            if said := why(one):
                found.append(
                    f"{one.index} {one.label}, {one.outcome}, {one.iterations} turns: {said}"
                )
    return found if graded == queries else [*found, f"{graded} of {queries} queries were asked"]


Measured = tuple[float, float, list[list[int]], dict[str, float]]


def measure(arguments: argparse.Namespace, folder: Path) -> Measured:
    """Return wall time and CPU time in s, memory peaks in MiB, and the summary."""
    with started(arguments, folder) as run:
        watch = Watch(run.service_pid, 0.05 if arguments.queries < 500 else 1.0)
        watch.start()
        before = cpu_s(run.service_pid)
        wall_s, parts = asyncio.run(
            request(run.green, run.purple, f"{arguments.application}_operator", run.config)
        )
        used_s = cpu_s(run.service_pid) - before
        watch.over.set()
        watch.join()
        return wall_s, used_s, watch.peaks(4), json.loads(parts[-1])


async def both(*urls: str) -> None:
    await asyncio.gather(*map(wait_for, urls))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--agent", default="oracle")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--application", choices=LABELS, default="malt")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=TEXT")
    parser.add_argument("--serve-copier", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_copier:
        serve_agent(Copier(), port=arguments.serve_copier, name="copier", description="copies")
        return
    print(f"{arguments.queries} queries, concurrency {arguments.concurrency}, {arguments.agent}")
    print("| run | wall s | service CPU s | peak MiB by quarter | first process | solved safely |")
    print("| --- | --- | --- | --- | --- | --- |")
    losses: list[str] = []
    for number in range(1, arguments.repeat + 1):
        with tempfile.TemporaryDirectory() as folder:
            wall_s, used_s, peaks, summary = measure(arguments, Path(folder))
            losses += [
                f"run {number}: {line}" for line in tell_losses(Path(folder), arguments.queries)
            ]
        memory = " | ".join(", ".join(map(str, peak)) for peak in peaks)
        print(f"| {number} | {wall_s:.2f} | {used_s:.2f} | {memory} "
              f"| {summary['avg_solved_safely']:.2f} |", flush=True)  # fmt: skip
    print("\n".join(["", *losses] if losses else []), end="\n" if losses else "")


if __name__ == "__main__":
    main()
