"""Check that verdicts are right if a real cluster is disturbed during an assessment.

    KUBECONFIG=... python benchmarks/chaos_cluster.py --restart-api COMMAND \
        --stop-plugin COMMAND --start-plugin COMMAND [--agent oracle] [--num-queries 2] [--seed 1] \
        [--think SECONDS]

The program causes these disturbances in turn, one after every few episodes: it restarts the API
server, deletes a pod of a workload set, or stops the network plug-in for ``--pause`` seconds. The
commands are shell lines for this cluster (docs/evidence/cluster.md has examples). At the end every
query of the oracle must be solved safely or be invalid. No query of noop may be solved, and no
NetArena namespace may be left. Otherwise the exit status is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from netarena.errors import EnvironmentFailed
from netarena_k8s.real.client import Api, path_of
from netarena_k8s.real.context import current_context
from netarena_k8s.real.lease import MINE

#: Agent -> expected outcome of its episodes that are not invalid.
EXPECTED: Mapping[str, str] = {"oracle": "solved", "noop": "unsolved"}
#: Number of episodes that end between two disturbances.
EVERY = 3
POLL_S = 0.5
LEFT_S = 180.0


async def shell(line: str) -> None:
    running = await asyncio.create_subprocess_shell(line)
    if await running.wait():
        raise SystemExit(f"failed: {line}")


async def spaces(api: Api) -> list[str]:
    """Return the names of NetArena's namespaces that are not being deleted."""
    return sorted(
        one["metadata"]["name"]
        for one in await api.find("Namespace", **MINE)
        if "deletionTimestamp" not in one["metadata"]
    )


async def count_most(api: Api, run: asyncio.subprocess.Process) -> int:
    """Return the maximum number of namespaces (``spaces``) at a time until the assessment ends."""
    most = 0
    while run.returncode is None:
        with contextlib.suppress(EnvironmentFailed):  # a disturbed API server may fail; count later
            most = max(most, len(await spaces(api)))
        await asyncio.sleep(POLL_S)
    return most


async def delete_pod(api: Api, rng: random.Random) -> None:
    """Delete a random pod of a running workload set, if there are any pods."""
    pods = [
        (space, name)
        for space in await spaces(api)
        for name in sorted(one["metadata"]["name"] for one in await api.find("Pod", space))
    ]
    if pods:
        space, name = rng.choice(pods)
        await api.delete(path_of("Pod", space, name))


def ended(out: Path) -> int:
    """Return the number of ended episodes in the journal, including attempts that are retried."""
    try:
        return (out / "journal.jsonl").read_bytes().count(b'{"event": "episode"')
    except OSError:
        return 0


async def disturb(
    run: asyncio.subprocess.Process, out: Path, ways: Mapping[str, Callable[[], Awaitable[None]]]
) -> Counter[str]:
    """Run the disturbances in turn until the assessment ends; return how often each was run."""
    done: Counter[str] = Counter()
    next_at = 1
    for name in itertools.cycle(ways):
        while run.returncode is None and ended(out) < next_at:  # noqa: ASYNC110 -- polls a file
            await asyncio.sleep(POLL_S)
        if run.returncode is not None:
            return done
        print(f"after {ended(out)} episodes: {name}", file=sys.stderr, flush=True)
        try:
            await ways[name]()
            done[name] += 1
        except EnvironmentFailed as error:  # a failed disturbance must not prevent the report
            print(error, file=sys.stderr, flush=True)
        next_at = ended(out) + EVERY
    return done


def agent_options(given: argparse.Namespace) -> tuple[str, str]:
    """Return the agent options of ``netarena run``; an agent that waits is served over A2A."""
    if not given.think:
        return "--agent", given.agent
    line = shlex.join(
        [
            *(sys.executable, str(Path(__file__).with_name("thinking_agent.py"))),
            *("k8s", given.agent, "--seed", str(given.seed), "--think", str(given.think)),
            *("--set", f"num_queries={given.num_queries}"),
        ]
    )
    return "--agent-cmd", f"{line} --port {{port}}"


async def left(api: Api) -> list[str]:
    """Return NetArena's namespaces that remain after a time limit."""
    deadline = time.monotonic() + LEFT_S
    found = ["unknown, because the namespaces cannot be listed"]
    while True:
        with contextlib.suppress(EnvironmentFailed):
            found = [one["metadata"]["name"] for one in await api.find("Namespace", **MINE)]
        if not found or time.monotonic() > deadline:
            return found
        await asyncio.sleep(POLL_S)


async def assess(given: argparse.Namespace, out: Path) -> bool:
    context = current_context(os.environ["KUBECONFIG"])
    api = await Api.connect(context)
    rng = random.Random(given.seed)

    async def stop_and_start() -> None:
        await shell(given.stop_plugin)
        try:
            await asyncio.sleep(given.pause)
        finally:
            await shell(given.start_plugin)

    ways: dict[str, Callable[[], Awaitable[None]]] = {
        "the API server is restarted": lambda: shell(given.restart_api),
        "a pod is deleted": lambda: delete_pod(api, rng),
        "the plug-in is stopped and started": stop_and_start,
    }
    start = time.monotonic()
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "netarena", "run", "k8s", *agent_options(given)),
        *("--num-queries", str(given.num_queries), "--seed", str(given.seed)),
        *("--set", f"cluster={context}", "--concurrency", str(given.concurrency)),
        *("--out", str(out), "--json"),
        stdout=subprocess.DEVNULL,
    )
    waiting = asyncio.create_task(run.wait())
    counting = asyncio.create_task(count_most(api, run))
    try:
        disturbed = await disturb(run, out, ways)
        status, most = await waiting, await counting
    finally:
        counting.cancel()
        if run.returncode is None:
            run.terminate()
            await waiting
    took_s = time.monotonic() - start
    remaining = await left(api)
    await api.close()
    results: list[dict[str, Any]] = json.loads((out / "results.json").read_text())["results"]
    *records, summary = results
    outcomes = Counter(
        one["outcome"] + ("" if one["outcome"] != "solved" or one["safe"] else ", not safely")
        for one in records
    )
    wrong = [
        f"{one['id']}: {one['outcome']}, {'safe' if one['safe'] else 'not safe'}"
        for one in records
        if one["outcome"] not in {EXPECTED[given.agent], "invalid"}
        or (one["outcome"] == "solved" and not one["safe"])
    ]
    print(
        f"{given.agent}, {len(records)} queries, concurrency {given.concurrency}, at most {most} "
        f"namespaces at the same time, {took_s:.0f} s,",
        end=" ",
    )
    print(f"load {os.getloadavg()[0]:.0f}, exit status {status}, complete: {summary['complete']}")
    print("disturbed:", "; ".join(f"{name} {times} times" for name, times in disturbed.items()))
    print("verdicts:", "; ".join(f"{times} {name}" for name, times in outcomes.items()))
    print("wrong:", *(wrong or ["none"]), sep="\n  ")
    print("left on the cluster:", ", ".join(remaining) or "nothing")
    return not (wrong or remaining or status or not summary["complete"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("restart-api", "stop-plugin", "start-plugin"):
        parser.add_argument(f"--{name}", required=True, metavar="COMMAND")
    parser.add_argument("--agent", choices=EXPECTED, default="oracle")
    parser.add_argument("--num-queries", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--think",
        type=float,
        default=0.0,
        help="seconds that the agent waits before each reply, while the cluster is idle",
    )
    parser.add_argument(
        "--pause", type=float, default=12.0, help="seconds for which the plug-in is stopped"
    )
    given = parser.parse_args()
    out = Path(tempfile.mkdtemp(prefix="netarena-chaos-"))
    fine = asyncio.run(assess(given, out))
    if fine:
        shutil.rmtree(out)
    else:
        print(f"failed; the run is in {out}")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
