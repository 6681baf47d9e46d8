"""Cost of a training step with the core, and with each adapter whose framework is installed.

    python benchmarks/bench_training.py [--steps 200] [--markdown docs/evidence/training.md]

Run the benchmark with the interpreter of ``.venv-gymnasium`` or ``.venv-openenv`` for these
adapters. Processor time includes this process and all its descendants (API server, networks,
commands, sandboxes). The start of worlds is reported separately. Memory is the additional memory of
one more session (PSS).
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from netarena.report.markdown import replace_section
from netarena.training.arena import Seat
from netarena_k8s.query import world_of
from netarena_k8s.solution import fenced, patch_command

_PORTS = itertools.count(20_000)
_TICKS = os.sysconf("SC_CLK_TCK")
SESSIONS = 4
#: World -> application, config keys, and the goal in steps per second and core.
WORLDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "k8s, patches as text": ("k8s", {"patches": "direct"}, 300),
    "k8s, kubectl": ("k8s", {}, 8),
    "route, netns": ("route", {"emulator": "netns"}, 20),
    "malt": ("malt", {}, 30),
}


def processes() -> list[int]:
    """Return the ids of this process and all its descendants."""
    parents: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                stat = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(path.name)] = int(stat[1])
    found, todo = [], [os.getpid()]
    while todo:
        found.append(todo.pop())
        todo += [pid for pid, parent in parents.items() if parent == found[-1]]
    return found


def cpu_s() -> float:
    """Return the CPU time in s of ``processes()``, including ended processes.

    The time for finding the processes is subtracted. On a machine with many processes, it would
    exceed the time of the measured steps.
    """
    begin = time.thread_time()
    found = processes()
    cpu_s.looking_s += time.thread_time() - begin
    total = 0
    for pid in found:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, stat[11:15]))
    return total / _TICKS - cpu_s.looking_s


cpu_s.looking_s = 0.0


def memory_mib() -> float:
    total = 0
    for pid in processes():
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1])
    return total / 1024


def replies(application: Any, query: Any) -> Iterator[str]:
    """Yield each turn's reply: an answer, an observation, or a change that breaks or repairs."""
    if application.name == "malt":
        yield application.solve(query)[0]
        return
    if application.name == "route":
        machine = world_name(query)
        while True:
            yield f'{{"machine": "{machine}", "command": "ip route show"}}'
    broken = {action.parameters["policy"] for action in query.actions}
    policy = next(
        one
        for one in world_of(query).policies
        if one.name not in broken and one.spec.get("ingress")
    )
    # no two commands are equal, so that no result comes from a cache
    for port in _PORTS:
        rules = [{**rule, "ports": [{"port": port}]} for rule in policy.spec["ingress"]]
        shut = {**policy.spec, "ingress": rules}
        yield fenced(patch_command(policy.name, policy.spec, shut))
        yield fenced(patch_command(policy.name, shut, policy.spec))


def world_name(query: Any) -> str:
    return str(query.initial["world"]["prefix"]) + "_r0"


def measure(
    start: Callable[[int], Any], act: Callable[[str], bool], seat: Callable[[], Any], steps: int
) -> tuple[float, float, float, float]:
    """Run at least ``steps`` steps; return rates of steps and times of starts.

    The result is (steps per s of wall time, steps per s of processor time, wall time in ms of a
    world's start, processor time in ms of a world's start).
    """
    taken = task = 0
    spent = {"start": [0.0, 0.0], "act": [0.0, 0.0]}

    @contextmanager
    def timed(what: str) -> Iterator[None]:
        cpu, wall = cpu_s(), time.monotonic()
        yield
        spent[what][0] += time.monotonic() - wall
        spent[what][1] += cpu_s() - cpu

    start(0)  # not timed: creates resources that later starts reuse
    while taken < steps:
        task += 1
        seat().close()  # not timed: tears down the previous world and its processes
        with timed("start"):
            start(task)
        with timed("act"):
            for reply in replies(seat().application, seat().query):
                taken += 1
                if act(reply):
                    break
    (start_wall, start_cpu), (wall, cpu) = spent["start"], spent["act"]
    return (
        taken / wall,
        taken / max(cpu, 1 / _TICKS),
        1e3 * start_wall / task,
        1e3 * start_cpu / task,
    )


def core(name: str, keys: dict[str, Any], steps: int) -> tuple[float, ...]:
    seat = Seat(name, keys)
    found = measure(
        lambda task: seat.start(1, task), lambda text: seat.act(text).done, lambda: seat, steps
    )
    seat.close()
    return found


def by_gymnasium(name: str, keys: dict[str, Any], steps: int) -> tuple[float, ...]:
    import gymnasium

    import netarena.training.gym  # noqa: F401 -- registers the ids

    env = gymnasium.make(f"NetArena/{name.capitalize()}-v0", **keys)

    def act(text: str) -> bool:
        _, _, over, cut, _ = env.step(text)
        return over or cut

    found = measure(
        lambda task: env.reset(seed=1, options={"task": task}),
        act,
        lambda: env.unwrapped.seat,
        steps,
    )
    env.close()
    return found


def by_trl(name: str, keys: dict[str, Any], steps: int) -> tuple[float, ...]:
    """Return the result of ``measure`` for the calls that TRL's trainer makes, without generation
    of text."""
    from netarena.training.trl import make_environment

    rollout = make_environment(name, keys)()

    def act(text: str) -> bool:
        seat = rollout._seat
        tool, values = seat.application.tools.kinds(seat.config)[0], _values(seat, text)
        return getattr(rollout, tool.name)(**values) == "The task has ended."

    found = measure(lambda task: rollout.reset(1, task), act, lambda: rollout._seat, steps)
    rollout._seat.close()
    return found


def _values(seat: Any, text: str) -> dict[str, str]:
    move = seat.application.parse(text)
    return move if isinstance(move, dict) else {"command": move}


def by_openenv(name: str, keys: dict[str, Any], steps: int) -> tuple[float, ...]:
    from openenv.core.generic_client import GenericEnvClient

    given = [f"--set={key}={value}" for key, value in keys.items()]
    server = subprocess.Popen(
        [sys.executable, "-m", "netarena", "openenv", name, "--port", "0", *given],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = re.search(r"at (http://\S+?)/?$", server.stderr.readline().strip())[1]
        # the client draws the same queries, because the replies depend on them
        drawn = Seat(name, keys)
        with GenericEnvClient(base_url=url).sync() as client:

            def start(task: int) -> None:
                client.reset(seed=1, task=task)
                found.query = draw(drawn.application, drawn.config, 1, task)

            from netarena.training.session import draw

            class Found:
                application = drawn.application
                query: Any = None

                def close(self) -> None:
                    """Do nothing, because the server closes the session."""

            found = Found()
            return measure(
                start, lambda text: client.step({"text": text}).done, lambda: found, steps
            )
    finally:
        server.send_signal(signal.SIGTERM)
        sys.stderr.write(server.communicate()[1])


def memory_per_session(name: str, keys: dict[str, Any]) -> float:
    first = Seat(name, keys)
    first.start(1, 0)
    first.act("Nothing.")
    before = memory_mib()
    seats = [Seat(name, keys) for _ in range(SESSIONS)]
    for task, seat in enumerate(seats, start=1):
        seat.start(1, task)
    after = memory_mib()
    for seat in (first, *seats):
        seat.close()
    return (after - before) / SESSIONS


DOORS = {
    "core": (None, core),
    "Gymnasium": ("gymnasium", by_gymnasium),
    "OpenEnv": ("openenv", by_openenv),
    "TRL": (None, by_trl),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--doors", default=",".join(DOORS))
    parser.add_argument(
        "--worlds", default=";".join(WORLDS), help="worlds, separated by semicolons"
    )
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    rows = [
        (
            "| interface | world | steps per CPU second | goal | steps per second "
            "| CPU time to start | time to start | memory of a session |"
        ),
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    load = os.getloadavg()[0]
    for world in options.worlds.split(";"):
        name, keys, goal = WORLDS[world]
        held = memory_per_session(name, keys)
        for door in options.doors.split(","):
            needs, run = DOORS[door]
            if needs and find_spec(needs) is None:
                continue
            steps = options.steps if goal > 8 else max(20, options.steps // 10)
            rate, per_core, start_ms, start_cpu_ms = run(name, keys, steps)
            memory = f"{held:.1f} MiB" if door == "core" else ""
            # a server closes a world when the next world starts, so the CPU time of the closed
            # world's processes is not counted
            start_cpu = f"{start_cpu_ms:.0f} ms" if door != "OpenEnv" else ""
            rows.append(
                f"| {door} | {world} | {per_core:.0f} | {goal} | {rate:.0f} "
                f"| {start_cpu} | {start_ms:.0f} ms | {memory} |"
            )
            print(rows[-1], flush=True)
    loads = sorted((load, os.getloadavg()[0]))
    about = (
        f"`python benchmarks/bench_training.py --steps {options.steps}`, {os.cpu_count()} "
        f"processors, load {loads[0]:.0f} to {loads[1]:.0f}:"
    )
    print(about)
    if options.markdown:
        page = options.markdown.read_text(encoding="utf-8")
        page = replace_section(page, f"speed {options.doors}", [about, "", *rows])
        options.markdown.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
