"""Test of the adversarial search, with agents that have planted weaknesses, in all applications.

    python benchmarks/bench_search.py [--cases route,k8s] [--seeds 1] [--budget 400] [--fresh 40]
        [--real 0] [--audit 0]

Each agent solves every query, except those that have a planted condition. During the search, the
verdict is computed from the drawn cell, and no query is generated. Fresh queries are generated, and
the condition is read from the query and its config. ``--real N`` also runs N queries of each case
in live worlds and compares the verdicts. ``--audit N`` audits N found queries per case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from netarena.agent.interface import Brief, load_agent
from netarena.analysis.search import Found, Search
from netarena.analysis.strata import ALL, Cell, Feature, words
from netarena.config import Config
from netarena.model import Query
from netarena.report.markdown import table
from netarena.run.assessment import conduct
from netarena.run.scope import Scope, derive_seed
from netarena.run.search import BATCH
from netarena.task.application import load
from netarena.task.label import kinds_of
from netarena.task.reactive import Reactive

Weakness = frozenset[Feature]
#: In a space with at most this number of cells, each cell is checked for queries.
FEW = 200


def weak(**features: str) -> Weakness:
    """Return the features as a condition: the agent fails queries that have all of them."""
    pairs = (item for item in features.items())
    return frozenset(Feature(axis, one) for axis, text in pairs for one in text.split("+"))


#: Name of a case -> application, fixed config keys, and the planted condition. If a condition has
#: several features, queries with one of these features fail more often than other queries.
CASES: Mapping[str, tuple[str, Mapping[str, object], Weakness]] = {
    "malt: cannot rank": ("malt", {}, weak(action="rank")),
    "malt: cannot read held-out words": ("malt", {}, weak(phrasing="held_out")),
    "malt: no loops in varied words": ("malt", {}, weak(level="level4", phrasing="varied")),
    "route: no ARP entries of hosts": (
        "route",
        {"emulator": "netns"},
        weak(fault="host_neighbour"),
    ),
    "route: no drawn networks": ("route", {"emulator": "netns"}, weak(world="varied")),
    "route: no lost addresses in tickets": (
        "route",
        {"emulator": "netns"},
        weak(fault="remove_ip", briefing="ticket"),
    ),
    "route: not three faults in four subnets": (
        "route",
        {"emulator": "netns"},
        weak(faults="3", num_switches="4"),
    ),
    "k8s: no changed ports": ("k8s", {}, weak(fault="change_port")),
    "k8s: no large worlds": ("k8s", {}, weak(num_apps="[40,40]")),
    "k8s: no peer labels in drawn worlds": ("k8s", {}, weak(fault="peer_label", world="varied")),
    "backbone: no OSPF costs": ("backbone", {"emulator": "netns"}, weak(fault="ospf_cost")),
    "backbone: no BGP passwords in tickets": (
        "backbone",
        {"emulator": "netns"},
        weak(fault="bgp_password", briefing="ticket"),
    ),
}


def facts(scope: Scope, config: Config, query: Query) -> frozenset[Feature]:
    """Return the features of a query, read from the query and its config."""
    if isinstance(scope.application, Reactive):
        kinds = kinds_of(query.label)
        own = {Feature("fault", kind) for kind in kinds} | {Feature("faults", str(len(kinds)))}
    else:
        own = {Feature("action", action.kind) for action in query.actions}
        own.add(Feature("level", query.level))
    keys = config.model_dump(mode="json")
    told = {
        Feature(key, value if isinstance(value, str) else json.dumps(value, separators=(",", ":")))
        for key, value in keys.items()
    }
    return frozenset(own | told)


def search(scope: Scope, condition: Weakness, seed: int, budget: int) -> list[Found]:
    """Return the strata that a search with ``budget`` queries finds; verdicts are computed."""
    state = Search(scope.space, random.Random(seed))
    while len(state.history) < budget:
        draws = [draw for _ in range(BATCH) if (draw := state.ask()) is not None]
        if not draws:
            break
        for draw in draws[: budget - len(state.history)]:
            state.tell(draw, failed=condition <= scope.space.features(draw.cell))
    return state.finish()


def draw(scope: Scope, cells: list[Cell], seed: int, number: int) -> list[tuple[Config, Query]]:
    """Return generated queries of ``cells`` in turn; cells without queries are left out."""
    found: list[tuple[Config, Query]] = []
    for at in range(4 * number):
        cell, own = cells[at % len(cells)], derive_seed(seed, "bench", at)
        if len(found) < number and (query := scope.query(cell, own)) is not None:
            found.append((scope.config(cell, own), query))
    return found


def share_of(scope: Scope, condition: Weakness) -> float:
    """Return the share of uniformly drawn queries that have the condition.

    Setting, group of labels, and label in the group are each drawn uniformly. Cells without queries
    do not count in a space of at most ``FEW`` cells; in larger spaces this is not checked.
    """
    space = scope.space
    groups = Counter(label.group for label in space.labels)
    few = len(space.settings) * len(space.labels) <= FEW
    whole = found = 0.0
    for setting in range(len(space.settings)):
        for at, label in enumerate(space.labels):
            cell = Cell(setting, at)
            if few and scope.query(cell, 1) is None:
                continue
            weight = 1 / groups[label.group]
            whole += weight
            found += weight * (condition <= space.features(cell))
    return found / whole


async def play(scope: Scope, condition: Weakness, drawn: list[tuple[Config, Query]]) -> int:
    """Play ``drawn`` in live worlds; return how many verdicts differ from the computed verdicts."""
    app, differ = scope.application, 0
    async with app:
        for config, query in drawn:
            fails = condition <= facts(scope, config, query)
            brief = Brief(app, config, config.seed or 0, app.role)
            agent = load_agent("noop" if fails else "oracle", brief)
            with tempfile.TemporaryDirectory() as folder:
                told = await conduct(app, config, {app.role: agent}, out=Path(folder))
            differ += fails == bool(told[app.role]["avg_solved_safely"])
    return differ


def audit(scope: Scope, cells: list[Cell], number: int) -> str:
    """Return the last line of an audit of ``number`` queries, for the setting with the most
    labels."""
    settings = [cell.setting for cell in cells]
    setting = max({*settings}, key=settings.count)
    labels = [scope.space.labels[cell.label].name for cell in cells if cell.setting == setting]
    values = scope.values(setting, labels)
    sets = [
        word for key, value in values.items() for word in ("--set", f"{key}={json.dumps(value)}")
    ]
    command = [sys.executable, "-m", "netarena", "audit", scope.application.name, *sets]
    done = subprocess.run(
        [*command, "--num-queries", str(number), "--seed", "1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return (done.stdout + done.stderr).strip().splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="", help="comma-separated prefixes of case names")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--budget", type=int, default=400)
    parser.add_argument("--fresh", type=int, default=40)
    parser.add_argument("--real", type=int, default=0)
    parser.add_argument("--audit", type=int, default=0)
    options = parser.parse_args()
    scopes: dict[str, Scope] = {}
    rows, right = [], 0
    for name, (application, fixed, condition) in CASES.items():
        if not name.startswith(tuple(options.cases.split(","))):
            continue
        if application not in scopes:
            app = load(application)
            scopes[application] = Scope.of(app, app.config_type.parse(dict(fixed)))
        scope = scopes[application]
        for seed in range(1, options.seeds + 1):
            begin = time.monotonic()
            found = search(scope, condition, seed, options.budget)
            rng = random.Random(seed)
            cells = scope.spread([one.stratum for one in found], rng)
            fresh = draw(scope, cells, seed, options.fresh) if cells else []
            hits = sum(condition <= facts(scope, config, query) for config, query in fresh)
            share = hits / len(fresh) if fresh else 0.0
            right += share >= 0.9
            uniform = share_of(scope, condition)
            told = "; ".join(f"({words(one.stratum)})" for one in found) or "nothing"
            extra = []
            if options.real and fresh:
                uniform_cells = [scope.space.draw(ALL, rng) for _ in range(options.real)]
                others = draw(scope, [c for c in uniform_cells if c], seed, options.real // 2)
                played = fresh[: options.real - len(others)] + others
                differ = asyncio.run(play(scope, condition, played))
                extra.append(f"{differ} of {len(played)} verdicts on live worlds differ")
            if options.audit and cells:
                extra.append(audit(scope, cells, options.audit))
            row = [name, str(seed), f"{100 * uniform:.1f}", f"{hits} of {len(fresh)}", told, *extra]
            rows.append(row[:5])
            sys.stderr.write(f"{' | '.join(row)} ({time.monotonic() - begin:.0f} s)\n")
    head = ["planted weakness", "seed", "uniform, %", "fresh queries with it", "found"]
    sys.stdout.write("\n".join(table(head, rows)) + "\n")
    sys.stdout.write(
        f"\nIn {right} of {len(rows)} searches, at least 90 % of the new queries have the planted "
        "weakness.\n"
    )
    return 0 if right >= 0.9 * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
