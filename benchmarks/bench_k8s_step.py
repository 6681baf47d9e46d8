"""Cost of a k8s step in addition to kubectl itself, and cost of measuring the step's pairs.

PYTHONPATH=apps python benchmarks/bench_k8s_step.py [--rounds 20]

CPU times count all processes of a command, including the cell's own. The minimum over the rounds
approximates the time on a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from netarena.errors import EnvironmentFailed
from netarena.sandbox.caller import Caller
from netarena.sandbox.cell import Cell
from netarena_k8s.cluster import Access
from netarena_k8s.embedded.cluster import Embedded
from netarena_k8s.embedded.datapath.wired import Wired
from netarena_k8s.kubectl import Kubectl, program, programs
from netarena_k8s.world.boutique import boutique

COMMANDS = ("true", "kubectl get pods", "kubectl get networkpolicy frontend -o yaml")


def bare(access: Access, rounds: int) -> dict[str, list[float]]:
    """Return the CPU time in s of each command without a cell, with discovery cached."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "kubeconfig")
        config.write_text(access.kubeconfig)
        environment = {
            "PATH": f"{program().parent}:/usr/bin:/bin",
            "KUBECONFIG": str(config),
            "KUBECACHEDIR": f"{folder}/cache",
            "HOME": folder,
            "GOMAXPROCS": "2",
        }
        for command in COMMANDS:
            for _ in range(rounds + 1):
                before = used()
                subprocess.run(
                    ["bash", "-c", command], env=environment, check=True, capture_output=True
                )
                found.setdefault(command, []).append(used() - before)
            del found[command][0]  # this run filled the cache
    return found


def used() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def show(what: str, times: list[float]) -> None:
    least, median = min(times), sorted(times)[len(times) // 2]
    print(f"{what:58} {least * 1000:7.1f} {median * 1000:7.1f}")


async def timed(times: list[float], what: Callable[[], Awaitable[object]]) -> None:
    begin = time.perf_counter()
    await what()
    times.append(time.perf_counter() - begin)


async def main(rounds: int) -> None:
    print(f"load {os.getloadavg()[0]:.1f}; minimum and median of {rounds} rounds, in ms")
    async with Embedded() as cluster:
        deployed = await cluster.deploy(boutique())
        async with deployed.admit(Caller(os.getpid())):
            spent_bare = await asyncio.to_thread(bare, deployed.access, rounds)
        for command, times in spent_bare.items():
            show(f"bare: {command} (CPU)", times)
        for walls in ("namespaces", "landlock"):
            try:
                async with Cell(programs(), walls) as cell:
                    kubectl = Kubectl(cell, deployed.access, deployed.admit)
                    await kubectl.run(COMMANDS[1])
                    for command in COMMANDS:
                        spent = []
                        for _ in range(rounds):
                            before = cell.cpu_s
                            await kubectl.run(command)
                            spent.append(cell.cpu_s - before)
                        show(f"cell, {walls}: {command} (CPU)", spent)
            except EnvironmentFailed as missing:
                print(f"cell, {walls}: {missing}")
        await deployed.close()
        wired = Wired(cluster)
        try:
            await wired.start()
        except EnvironmentFailed as missing:
            print(missing)
            return
        deploying: list[float] = []
        looking: list[float] = []
        closing: list[float] = []
        for _ in range(rounds):
            begin = time.perf_counter()
            shop = await wired.deploy(boutique())
            deploying.append(time.perf_counter() - begin)
            await timed(looking, shop.look)
            await timed(closing, shop.close)
        show("data plane: deploy 13 pods and an API server (clock)", deploying)
        show("data plane: rules, two rounds of 121 pairs (clock)", looking)
        show("data plane: close (clock)", closing)
        await wired.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    asyncio.run(main(parser.parse_args().rounds))
