"""Cost of the embedded cluster: a world, an observation and a turn; observations change nothing.

    python benchmarks/bench_k8s.py [--rounds 20] [--looks 10000]

Prints a table of medians in ms: wall time, CPU time, and wall time as a share of the maximum
allowed. "turn" is one `kubectl get` of an agent. The time of "kubectl", the same command with the
same discovery cache but without a sandbox, is subtracted from it. CPU time is also meaningful on a
busy machine; it does not include commands in a cell, whose processes are not children of this
process. "judge 40 writes" judges one command in the largest world of tickets: each write closes an
opening and also blocks intended traffic. Afterwards an unchanged world is observed repeatedly, and
all observations must be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from netarena.model import JsonValue
from netarena.sandbox.caller import Caller
from netarena.sandbox.cell import Cell
from netarena_k8s.app import Kubernetes
from netarena_k8s.cluster import Access, Sight
from netarena_k8s.config import MAX_LARGE, KubernetesConfig
from netarena_k8s.embedded.cluster import Embedded
from netarena_k8s.environment import KubernetesEnvironment
from netarena_k8s.kubectl import program, programs
from netarena_k8s.query import world_of
from netarena_k8s.source.large import estate
from netarena_k8s.source.varied import varied
from netarena_k8s.state import judge, make_state
from netarena_k8s.world.model import Policy, World, Write, reach

AT_ONCE = 8
COMMAND = "kubectl get networkpolicies"
#: Maximum time of each operation on a quiet machine with two processors, in ms.
MOST_MS = {
    "matrix, boutique": 5.0,
    "matrix, random world": 5.0,
    "ready": 150.0,
    "look": 5.0,
    "turn minus kubectl": 50.0,
    "judge 40 writes": 1500.0,
}
WRITES = 40


def cpu_s() -> float:
    """Return the CPU time of this process and its children, including the API server, in s."""
    ticks = 0
    family = [os.getpid()]
    for pid in family:
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                family += map(int, (task / "children").read_text().split())
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def report(name: str, wall_ms: float, cpu_ms: float) -> None:
    most = MOST_MS.get(name)
    share = f"{wall_ms / most:8.2f}" if most else ""
    sys.stdout.write(f"{name:<24}{wall_ms:10.1f}{cpu_ms:10.1f}{share}\n")


async def time_rounds(work: Callable[[], Awaitable[object]], rounds: int) -> tuple[float, float]:
    """Call ``work`` repeatedly; return the median wall time and the mean CPU time, in ms."""
    before_s, walls = cpu_s(), []
    for _ in range(rounds):
        began = time.perf_counter()
        await work()
        walls.append(time.perf_counter() - began)
    return statistics.median(walls) * 1000, (cpu_s() - before_s) / rounds * 1000


async def time_kubectl(access: Access, rounds: int) -> tuple[float, float]:
    """Return wall and CPU time in ms of ``COMMAND`` as a separate process, without a sandbox."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "kubeconfig"
        config.write_text(access.kubeconfig)
        known = {"PATH": f"{program().parent}:/usr/bin:/bin", "GOMAXPROCS": "2"}
        known |= {"KUBECONFIG": str(config), "KUBECACHEDIR": f"{folder}/cache", "HOME": folder}

        async def run() -> None:
            process = await asyncio.create_subprocess_exec(
                "bash", "-c", COMMAND, env=known, stdout=subprocess.DEVNULL
            )
            if await process.wait():
                raise RuntimeError("kubectl failed")

        await run()  # fills the cache
        return await time_rounds(run, rounds)


def many_writes() -> tuple[World, str, str]:
    """Return a large world, and its states before and after a command with 40 writes, as JSON."""
    rng = random.Random(4)
    world = estate(rng, MAX_LARGE, MAX_LARGE)
    names = rng.sample(sorted(policy.name for policy in world.policies), WRITES)

    def rewritten(rules: list[JsonValue]) -> tuple[Policy, ...]:
        return tuple(
            Policy(name=one.name, spec={**one.spec, "ingress": rules}) if one.name in names else one
            for one in world.policies
        )

    before, after = rewritten([{}]), rewritten([])
    specs = {policy.name: policy.spec for policy in after}
    writes = tuple(Write(what=f"patch {name}", name=name, spec=specs[name]) for name in names)
    return (
        world,
        json.dumps(make_state(Sight(before, reach(world, before)))),
        json.dumps(make_state(Sight(after, reach(world, after), writes=writes))),
    )


async def main(rounds: int, looks: int) -> None:
    sys.stdout.write(f"{'':<24}{'wall':>10}{'CPU':>10}{'of most':>8}\n")
    config = KubernetesConfig.parse({"error_types": ["change_port"], "num_queries": 1})
    app = Kubernetes()
    (query,) = app.generate(config, seed=1)
    for name, world in (
        ("matrix, boutique", world_of(query)),
        ("matrix, random world", varied(random.Random(1))),
    ):

        async def compute(world: object = world) -> None:
            reach(world, world.policies)

        report(name, *await time_rounds(compute, rounds))

    world, before, after = many_writes()

    async def judge_writes() -> None:
        start, end = json.loads(before), json.loads(after)
        if "pair_broken" not in {one.rule for one in judge(world, start, start, end).findings}:
            raise RuntimeError("no write removed intended traffic")

    report("judge 40 writes", *await time_rounds(judge_writes, max(1, rounds // 4)))

    async with Embedded() as cluster, AsyncExitStack() as stack:
        cell = Cell(programs())
        stack.push_async_callback(cell.close)
        await cell.start()

        def make() -> KubernetesEnvironment:
            return KubernetesEnvironment(query, cluster, cell)

        async def open_and_close() -> None:
            environment = make()
            try:
                await environment.open()
            finally:
                await environment.close()

        await open_and_close()
        report("ready", *await time_rounds(open_and_close, rounds))
        environment = make()
        first = await environment.open()
        try:
            report("look", *await time_rounds(environment.observe, rounds))
            await environment.execute(COMMAND)
            turn = await time_rounds(lambda: environment.execute(COMMAND), rounds)
            shop = await cluster.deploy(world_of(query))
            async with shop.admit(Caller(os.getpid())):
                bare = await time_kubectl(shop.access, rounds)
            await shop.close()
            report("turn", *turn)
            report("kubectl", *bare)
            report("turn minus kubectl", turn[0] - bare[0], turn[1] - bare[1])
            began = time.perf_counter()
            changed = sum([await environment.observe() != first for _ in range(looks)])
            passed_s = time.perf_counter() - began
        finally:
            await environment.close()

        async def episode() -> None:
            environment = make()
            try:
                await environment.open()
                for reply in app.solve(query):
                    await environment.execute(app.parse(reply))
                after = await environment.observe()
                if not app.judge(query, first, first, after).correct:
                    raise RuntimeError(f"the reference solution did not repair the world: {after}")
            finally:
                await environment.close()

        report("episode", *await time_rounds(episode, rounds))

        async def at_once() -> None:
            await asyncio.gather(*(episode() for _ in range(AT_ONCE)))

        report(f"{AT_ONCE} episodes at once", *await time_rounds(at_once, max(1, rounds // 4)))
    sys.stdout.write(
        f"{looks} observations of an unchanged world in {passed_s:.1f} s; {changed} differ\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--looks", type=int, default=10_000)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.rounds, arguments.looks))
