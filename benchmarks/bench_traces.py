"""Share of tickets solved by blind programs, which read only traces, not documentation or ticket.

    python benchmarks/bench_traces.py backbone [--tickets 30] [--seed 1] [--turns 12]
    python benchmarks/bench_traces.py route [--tickets 60] [--seed 1] [--turns 12]
    python benchmarks/bench_traces.py k8s [--tickets 100] [--seed 1] [--turns 1]

A blind program sends no probe. It reads every machine through the agent's sandbox before its turns
start. Then it undoes the newest or most unusual settings, one command per turn, and declares that
the task is done:

- backbone: compares the running configuration with /etc/frr/frr.conf, router by router, and
  restores each line that differs
- k8s: orders policies by scores of hand-written rules about forms (``agent.form_reader``), and
  replaces each policy with a policy without the suspicious form
- route: orders machines by scores of hand-written rules (order of sysctl inodes, gaps and order of
  nft handles, times of addresses, connections without an answer), and deletes each machine's
  newest rule, or the last route that the kernel did not add

Prints a line per ticket, then the share solved safely. False alarms are counted separately, because
a program that does nothing solves them. The goal is at most 2 % of tickets with a fault.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from netarena.analysis.intervals import clopper_pearson
from netarena.errors import EnvironmentFailed
from netarena.model import Query, State
from netarena.task.application import Application, Environment
from netarena_backbone.app import Backbone
from netarena_k8s.agent.form_reader import repairs
from netarena_k8s.agent.triage import DUMP
from netarena_k8s.app import Kubernetes
from netarena_network.evidence import Scene, decode, examine, read_program
from netarena_route.app import Route

GOAL = 0.02


def undo_configuration(readings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (router, command) that restore the running configuration from the file on disk."""
    for name, read in readings.items():
        if "frr" not in read:
            continue
        running, on_disk = _lines(read["frr"]["running"]), _lines(read["frr.conf"])
        wanted, there = set(on_disk), set(running)
        lines = [(context, f"no {line}") for context, line in running
                 if (context, line) not in wanted and not line.startswith("no ")]  # fmt: skip
        lines += [one for one in on_disk if one not in there]
        if not lines:
            continue
        command = ["vtysh", "-c", "configure terminal"]
        for context, line in lines:
            for part in filter(None, (context, line, "exit" if context else "")):
                command += ["-c", part]
        yield name, shlex.join(command)


def _lines(text: str) -> list[tuple[str, str]]:
    """Return the lines of a configuration, each with the first line of its section."""
    found, context = [], ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith(("!", "Building", "Current", "frr version", "end", "exit")):
            continue
        if not raw.startswith(" "):
            context = line if line.startswith(("router ", "interface ", "route-map ")) else ""
            found.append(("", line))
        else:
            found.append((context, line))
    return found


def undo_youngest(query: Query, scene: Scene, readings: Mapping[str, Any], state: Any
                  ) -> Iterator[tuple[str, str]]:  # fmt: skip
    """Yield (machine, command) that delete the newest rule or route, most suspicious first."""
    found = examine(query, scene, readings, state)
    rules = ("sysctl.inode falls~rank", "rule.nft_falls", "rule.nft_gaps",
             "addr.created spread~off",
             "link.carrier_downs most~rank", "rule.unreplied~rank")  # fmt: skip
    hosts = [one for one in found.candidates if one.trace]
    hosts.sort(key=lambda one: -max(one.trace.get(rule, 0.0) for rule in rules))
    for one in hosts:
        read = readings[one.name]
        rule = max(_rules(read["nft"]), default=None)
        routes = [route for route in read["route"] if route[0][4] != 255 and route[0][5] == 3]
        if rule is not None:
            handle, family, table, chain = rule
            yield one.name, f"nft delete rule {family} {table} {chain} handle {handle}"
        elif routes:
            header, attributes = routes[-1]
            address = attributes.get("1")
            where = _dotted(address) if isinstance(address, int) else "0.0.0.0"
            yield one.name, f"ip route del {where}/{header[1]}"


def _rules(text: str) -> Iterator[tuple[int, str, str, str]]:
    for entry in json.loads(text or '{"nftables": []}')["nftables"]:
        if "rule" in entry:
            rule = entry["rule"]
            yield rule["handle"], rule["family"], rule["table"], rule["chain"]


def _dotted(address: int) -> str:
    return ".".join(map(str, address.to_bytes(4, "little")))


async def plan_k8s(
    app: Kubernetes, query: Query, world: Environment, initial: State
) -> Iterator[Any]:
    """Return the blind program's commands for one Kubernetes ticket."""
    del app, query, initial
    return repairs((await world.execute(DUMP)).output.strip())


async def plan_route(app: Route, query: Query, world: Environment, initial: State) -> Iterator[Any]:
    """Return the blind program's commands for one routing ticket."""
    scene = app.scene(query)
    command = f"python3 -c {shlex.quote(read_program())}"
    readings = {}
    for name in scene.roles:
        done = await world.execute({"machine": name, "command": command})
        readings[name] = decode(name, done.output)
    found = (
        undo_youngest(query, scene, readings, initial)
        if scene.endpoints
        else undo_configuration(readings)
    )
    return ({"machine": machine, "command": repair} for machine, repair in found)


#: Kind of ticket -> application, config keys, and the function that plans the commands.
KINDS: Mapping[str, tuple[type[Application], Mapping[str, str], Callable[..., Any]]] = {
    "route": (Route, {"emulator": "netns"}, plan_route),
    "backbone": (Backbone, {"emulator": "netns"}, plan_route),
    "k8s": (Kubernetes, {}, plan_k8s),
}


async def play(
    app: Application, query: Query, world: Environment, plan: Callable[..., Any], turns: int
) -> tuple[bool, bool]:
    """Run the blind program in a world; return whether the result is correct, and safe."""
    try:
        initial = before = await world.open()
        commands = await plan(app, query, world, initial)
        safe, judged = True, app.judge(query, initial, before, before)
        for command, _ in zip(commands, range(turns), strict=False):
            await world.execute(command)
            after = await world.observe()
            judged = app.judge(query, initial, before, after)
            safe, before = safe and judged.safe, after
        return judged.correct, safe
    finally:
        await world.close()


async def measure(kind: str, tickets: int, seed: int, turns: int) -> int:
    application, keys, plan = KINDS[kind]
    app = application()
    config = app.config_type.parse({"briefing": "ticket", "seed": seed, **keys})
    labels = len(app.labels(config))
    config = config.model_copy(update={"num_queries": -(-tickets // labels)})
    solved, faulty, alarms, harmless = 0, 0, 0, 0
    async with app:
        for query in app.generate(config, seed):
            if query.index >= tickets:
                break
            try:
                right, safe = await play(app, query, app.environment(query, config), plan, turns)
            except EnvironmentFailed as failed:
                sys.stdout.write(f"{query.id}: not counted: {failed}\n")
                continue
            good = right and safe
            sys.stdout.write(f"{query.label}: {'right' if right else 'wrong'}, "
                             f"{'safe' if safe else 'not safe'}\n")  # fmt: skip
            sys.stdout.flush()
            if query.actions:
                solved, faulty = solved + good, faulty + 1
            else:
                harmless, alarms = harmless + good, alarms + 1
    low, high = clopper_pearson(solved, faulty)
    sys.stdout.write(
        f"{kind}: {solved} of {faulty} tickets with a fault solved safely "
        f"({100 * low:.0f}–{100 * high:.0f} %), {harmless} of {alarms} false alarms left "
        "unchanged\n"
    )
    return int(faulty > 0 and solved / faulty > GOAL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=[*KINDS])
    parser.add_argument("--tickets", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--turns", type=int, default=12)
    given = parser.parse_args()
    sys.exit(asyncio.run(measure(given.kind, given.tickets, given.seed, given.turns)))
