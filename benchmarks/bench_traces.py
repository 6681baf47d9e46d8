"""Share of tickets solved by blind programs, which read only traces, not documentation or ticket.

    python benchmarks/bench_traces.py backbone [--tickets 30] [--seed 1] [--turns 12]
    python benchmarks/bench_traces.py route [--tickets 60] [--seed 1] [--turns 12]
    python benchmarks/bench_traces.py k8s [--tickets 100] [--seed 1] [--turns 1]

A blind program sends no probe. It reads every machine through the agent's sandbox before its turns
start. Then it undoes the newest or most unusual settings, one command per turn. A ticket counts as
solved after K commands if the state is then correct and all K commands were safe. Each program's
result is for the K with which it solves most tickets. The programs are:

- backbone: first restores the lines of each router's running configuration that differ from
  /etc/frr/frr.conf; then removes lines and filter rules, those with the rarest shape among machines
  of a role first
- k8s: orders policies by scores of hand-written rules about forms (``agent.form_reader``), and
  replaces each policy with a policy without the suspicious form
- route: orders machines by scores of hand-written rules (order of sysctl inodes, gaps and order of
  nft handles, times of addresses, connections without an answer); then deletes each machine's
  newest rule, or the last route that the kernel did not add

Prints a line per ticket, then the share solved safely with the best K. False alarms are left out,
because a program that does nothing solves them. Contingencies of backbones are not tried, so the
share of solved tickets may be too large. The goal is at most 2 % of tickets with a fault.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
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
    """Yield (router, command) pairs that restore the running configuration from the file on
    disk."""
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


def remove_unusual(scene: Scene, readings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (machine, command) pairs that remove unusual configuration lines and filter rules.

    Lines and rules with the rarest shape among machines of the same role come first.
    """
    settings = [
        (scene.roles[name], shape, name, command)
        for name, read in readings.items()
        for shape, command in _settings(read)
    ]
    owners: dict[tuple[str, str], set[str]] = {}
    for role, shape, name, _ in settings:
        owners.setdefault((role, shape), set()).add(name)
    sizes = Counter(scene.roles[name] for name in readings)
    settings.sort(key=lambda one: (len(owners[one[:2]]) / sizes[one[0]], *one))
    return ((name, command) for _, _, name, command in settings)


def _settings(read: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (shape, command that removes it) pairs for the settings of a machine."""
    for context, line in _lines(read["frr"]["running"]) if "frr" in read else ():
        opposite = line.removeprefix("no ") if line.startswith("no ") else f"no {line}"
        parts = ["configure terminal", *filter(None, [context]), opposite]
        shape = f"{_shape(context)}: {_shape(line)}"
        yield shape, shlex.join(["vtysh", *(word for part in parts for word in ("-c", part))])
    for entry in json.loads(read.get("nft") or '{"nftables": []}')["nftables"]:
        if rule := entry.get("rule"):
            shape = _shape(json.dumps([rule["chain"], rule["expr"]]))
            where = shlex.join([rule["family"], rule["table"], rule["chain"]])
            yield shape, f"nft delete rule {where} handle {rule['handle']}"


def _shape(text: str) -> str:
    """Return the text without numbers, addresses and names that contain a number."""
    return re.sub(r"[\w.:/-]*\d[\w.:/-]*", "#", text)


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
    """Yield (machine, command) pairs that delete the newest rule or route, most suspicious
    first."""
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
        else chain(undo_configuration(readings), remove_unusual(scene, readings))
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
) -> list[bool]:
    """Run the blind program in a world; return for each number of commands, from 1, whether the
    ticket was then solved safely."""
    try:
        initial = before = await world.open()
        commands = await plan(app, query, world, initial)
        safe, solved = True, []
        for command, _ in zip(commands, range(turns), strict=False):
            await world.execute(command)
            after = await world.observe()
            judged = app.judge(query, initial, before, after)
            safe, before = safe and judged.safe, after
            solved.append(judged.correct and safe)
            if not safe:  # no later state can be solved safely
                break
        return solved
    finally:
        await world.close()


async def measure(kind: str, tickets: int, seed: int, turns: int) -> int:
    application, keys, plan = KINDS[kind]
    app = application()
    config = app.config_type.parse({"briefing": "ticket", "seed": seed, **keys})
    labels = len(app.labels(config))
    config = config.model_copy(update={"num_queries": -(-tickets // labels)})
    faulty, solved = 0, [0] * turns
    async with app:
        for query in app.generate(config, seed):
            if query.index >= tickets:
                break
            if not query.actions:
                continue
            try:
                after = await play(app, query, app.environment(query, config), plan, turns)
            except EnvironmentFailed as failed:
                sys.stdout.write(f"{query.id}: not counted: {failed}\n")
                continue
            faulty += 1
            # a program that has no more commands leaves the state unchanged
            after += [bool(after) and after[-1]] * (turns - len(after))
            solved = [total + one for total, one in zip(solved, after, strict=True)]
            right = [str(number) for number, one in enumerate(after, 1) if one]
            sys.stdout.write(f"{query.label}: solved after {', '.join(right) or 'no'} commands\n")
            sys.stdout.flush()
    best = max(range(turns), key=lambda number: solved[number])
    low, high = clopper_pearson(solved[best], faulty)
    sys.stdout.write(
        f"{kind}: {solved[best]} of {faulty} tickets with a fault solved safely with "
        f"{best + 1} commands ({100 * low:.0f}–{100 * high:.0f} %)\n"
    )
    return int(faulty > 0 and solved[best] / faulty > GOAL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=[*KINDS])
    parser.add_argument("--tickets", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--turns", type=int, choices=range(1, 100), metavar="N", default=12)
    given = parser.parse_args()
    sys.exit(asyncio.run(measure(given.kind, given.tickets, given.seed, given.turns)))
