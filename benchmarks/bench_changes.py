"""Computed audit of change requests of the backbone, and scripted agents without a network.

    python benchmarks/bench_changes.py --requests 15 --seed 1 --labels change_2,change_3
    python benchmarks/bench_changes.py --requests 0 --read ONE.jsonl TWO.jsonl

Draws requests as a run does, and computes every state that an agent passes through. ``--requests``
is the number of requests of each label. The program proves each refusal independently of NetArena's
own code. Results are tables in Markdown on standard output; progress is on standard error. An
interrupted run prints the results so far. ``--save`` appends one line of JSON per request to a
file, and ``--read`` adds such lines to the tables.

The agents differ only in the order of their commands. ``netarena run`` runs the first three with
the same code, and calls the second one ``shuffle``:

- ``push``: configures one machine per turn completely for the target, in the order of names. This
  includes the repair of latent faults.
- ``push, random order``: the same, with the machines in random order.
- ``heuristic``: makes changes that bring something into service first, then changes of costs and
  preferences, and changes that take something out of service last. Each turn makes one change on
  one machine. Latent faults are not repaired.
- ``text order``: each turn makes one change on one machine, in the order of the text. Latent faults
  are not repaired.
- ``noop``: declares immediately that the task is done.

No agent refuses a change. ``safe`` is judged for the changes that can be made.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from ipaddress import IPv4Network
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import networkx as nx

from netarena.analysis.intervals import clopper_pearson
from netarena.report.markdown import table
from netarena.sdk import Query
from netarena_backbone.agent.order import heuristic, push
from netarena_backbone.app import Backbone
from netarena_backbone.declaration import REFUSALS
from netarena_backbone.planned.plan import Plan
from netarena_backbone.planned.request import Request
from netarena_backbone.planned.stages import Left, Stages
from netarena_backbone.query import CHANGES, case_of
from netarena_backbone.real.leftover import traces
from netarena_backbone.state import WORKS, intended, misfits, predicted
from netarena_backbone.world.contingency import during, failures
from netarena_backbone.world.model import World
from netarena_backbone.world.render import render

#: Rules whose violation means that documented traffic is lost.
TRAFFIC = frozenset({"pair_broken", "service_broken"})
#: Agent name -> function that returns the agent's turns for a request, each as the parts of changes
#: that it configures.
AGENTS: Mapping[str, Callable[[Plan, random.Random], list[Left]]] = MappingProxyType(
    {
        "push": lambda plan, _: push(plan),
        "push, random order": push,
        "heuristic": lambda plan, _: heuristic(plan),
        "text order": lambda plan, _: [
            frozenset({place}) for place in plan.stages.straightforward()
        ],
        "noop": lambda _, __: [],
    }
)
Record = dict[str, Any]


# Validity of requests.


def invalid(app: Backbone, query: Query, plan: Plan) -> Iterator[str]:
    """Yield a description of each defect of a request."""
    yield from app.doubts(query)
    stages = plan.stages
    order = next(stages.safe_orders(), None)
    if order is None:
        return
    assert stages.today is not None
    assert stages.target is not None
    if not stages.is_safe(order) or {*order} != stages.every:
        yield "the reference order is unsafe or incomplete"
    start = stages.facts(stages.every)
    if start is None or (not misfits(stages.target, start) and not any(required(plan))):
        yield "an agent that does nothing solves the request"
    yield from left_out(plan)
    made = iter(stages.changes)
    for number, one in enumerate(plan.requests, start=1):
        if one.because and not PROOFS[one.because](plan, one):
            yield f"change {number} must be refused ({one.because}), but this reason is not proven"
        if not one.because:
            feasible = next(made)
            if feasible.key != one.change.key:
                yield f"change {number} can be made, but the plan does not make it"
            for word in REFUSALS:
                if word != "no_redundancy" and contradicts(word, plan, one):
                    yield f"change {number} can be made, but the reason {word} to refuse it applies"


def required(plan: Plan) -> list[bool]:
    """Return for each part of a change whether the final configuration differs because of it."""
    found = []
    edits = [edit for edit in plan.edits() if edit.strict]
    for edit in edits:
        if edit.before.commands != edit.after.commands:
            found.append(True)
        else:  # only files of FRR and services differ; comparing them needs no network
            (trace,) = traces([edit], render(plan.target).cables)
            found.append(bool(trace.new or trace.gone))
    return found


def left_out(plan: Plan) -> Iterator[str]:
    """Yield a description of each part without which the final state would still be correct."""
    stages, settings = plan.stages, iter(required(plan))
    for place, part in enumerate(stages.parts):
        differs = shown(plan, stages.at([place])) != "never"
        if place not in stages.of_faults:
            differs |= next(settings)
        if not differs:
            yield f"the final state is correct without part {place} on {part.machine}"


def shown(plan: Plan, world: World) -> str:
    """Return when a difference between ``world`` and the target can be observed.

    The result is ``afterwards`` (without a contingency), ``in a contingency``, or ``never``.
    """
    now = predicted(world)
    if now is None or misfits(plan.stages.target or {}, now):
        return "afterwards"
    for one in failures(plan.target):
        then = predicted(during(world, one))
        if then is None or misfits(intended(during(plan.target, one)), then):
            return "in a contingency"
    return "never"


# Proofs of refusals, independent of planned/refusal.py.


def running(world: World) -> nx.Graph:
    """Return the graph of the provider's routers and of the links with OSPF at both ends."""
    graph = nx.Graph()
    graph.add_nodes_from(router.name for router in world.routers)
    for link in world.links:
        if {link.one[0], link.other[0]} <= world.names:
            ports = [world.router(name).port(port) for name, port in (link.one, link.other)]
            if all(port.ospf is not None and not port.ospf.passive for port in ports):
                graph.add_edge(link.one[0], link.other[0])
    return graph


def sessions(world: World) -> set[tuple[int, str, str]]:
    """Return the BGP sessions with other ASes as (AS number, router, address of the peer)."""
    return {
        (peer.asn, router.name, peer.address)
        for router in world.routers
        for peer in router.bgp.peers
        if peer.asn != world.asn and not peer.shutdown
    }


def lost(plan: Plan, one: Request) -> bool:
    """Return whether a change ends traffic that is documented today and in the target."""
    today, target = plan.stages.today, plan.stages.target
    then = predicted(one.change.edit(plan.target))
    if today is None or target is None or then is None:
        return False
    return any(today.get(f) == target.get(f) == WORKS for f in misfits(target, then))


def is_cut(plan: Plan, one: Request) -> bool:
    """Return whether a change removes a bridge of the network or the only session with an AS."""
    if not lost(plan, one):
        return False
    made = one.change.edit(plan.target)
    today, target = running(plan.world), running(plan.target)
    bridges = {frozenset(edge) for edge in nx.bridges(nx.compose(today, target))}
    gone = {frozenset(edge) for edge in nx.difference(target, running(made)).edges}
    if bridges & gone:
        return True
    before = sessions(plan.world) | sessions(plan.target)
    ended = sessions(plan.target) - sessions(made)
    return any(sum(asn == other for other, _, _ in before) == 1 for asn, _, _ in ended)


def addresses(world: World) -> Counter[str]:
    """Return how often each address occurs on all machines; prefix lengths are ignored."""
    return Counter(
        port.address.partition("/")[0]
        for machine in world.machines.values()
        for port in machine.ports
    )


def contradicts(word: str, plan: Plan, one: Request) -> bool:
    """Return whether the words of a request contradict the documentation or use a known address."""
    if word == "address_in_use" and one.kind == "renumber":
        asked = re.findall(r"(\d+\.\d+\.\d+\.\d+)/\d+ on", one.change.words)
        target = addresses(plan.target)
        mine = {} if one.because else Counter(asked)
        known = [addresses(plan.world), Counter(target) - Counter(mine)]
        return any(all(some[address] > 0 for some in known) for address in asked)
    if word == "own_prefix" and "This peer announces" in one.change.words:
        told = one.change.words.rpartition("This peer announces")[2]
        block = IPv4Network(plan.world.block)
        return any(
            IPv4Network(prefix).subnet_of(block)
            for prefix in re.findall(r"\d+\.\d+\.\d+\.\d+/\d+", told)
        )
    if word == "documented_service" and one.kind.endswith("_filter") and one.method == "close":
        return blocks_service(plan, one)
    return False


def blocks_service(plan: Plan, one: Request) -> bool:
    """Return whether a change ends a service that is documented today and in the target."""
    today, target = plan.stages.today, plan.stages.target
    then = predicted(one.change.edit(plan.target))
    if today is None or target is None or then is None:
        return False
    ended = [fact for fact in misfits(target, then) if fact.sort == "service"]
    return any(today.get(fact) == target.get(fact) == WORKS for fact in ended)


PROOFS: dict[str, Callable[[Plan, Request], bool]] = {
    "no_redundancy": is_cut,
    **{
        word: partial(contradicts, word)
        for word in ("address_in_use", "own_prefix", "documented_service")
    },
}


# Agents.


def walk(stages: Stages, turns: Iterable[Left]) -> dict[str, bool]:
    """Return whether an agent's turns configure all parts, and whether all turns are safe.

    A turn counts as safe if its effect depends on a tie in the selection of routes.
    """
    left, safe = stages.every, True
    for turn in turns:
        after = left - turn
        if after != left and stages.harms(left, after):
            safe = False
        left = after
    return {"done": not left, "safe": safe}


def fixed_refusals(plan: Plan) -> Iterator[str]:
    """Yield the refusal (number and word) that is right, if exactly one change must be refused."""
    for number, word in plan.refused.items():
        if len(plan.refused) == 1:
            yield f"{number} {word}"


# Examination of one request.


def forms(one: Request) -> list[str]:
    """Return the properties of a request that its text shows without the documentation."""
    found = [f"{one.kind}.{one.method}"]
    if one.kind == "renumber":
        for address, length in re.findall(r"(\d+)/(\d+) on", one.change.words)[:1]:
            found.append(f"renumber.link, /{length}, {'first' if int(address) < 2 else 'later'}")
    if "This peer announces" in one.change.words:
        nets = re.findall(r"/(\d+)", one.change.words.rpartition("announces")[2])
        found.append(f"neighbour_add.set_up, {len(nets)} of /{min(nets)}")
    return found


def examine(app: Backbone, query: Query, seed: int) -> Record:
    """Return the record of a request, from which the tables are computed."""
    plan = case_of(query).plan
    assert plan is not None
    stages, rng = plan.stages, random.Random(f"{seed} {query.index}")
    orders: Record = {}
    faults = sorted(stages.of_faults)
    for name, order in (("text", stages.straightforward()), ("name", stages.by_machine())):
        whole = [*faults, *order]
        steps = [stages.harms(*step) for step in stages.steps(whole)]
        rules = Counter(rule for step in steps for rule, _ in step or ())
        orders[name] = None if None in steps else dict(rules)
    reference = next(stages.safe_orders(), [])
    without = [frozenset({place}) for place in reference if place not in stages.of_faults]
    latent = [*latent_faults(plan)]
    if latent:
        latent[0]["harm"] = not walk(stages, without)["safe"]
    agents = {agent: walk(stages, find(plan, rng)) for agent, find in AGENTS.items()}
    for agent in ("heuristic", "text order"):
        turns = [frozenset({place}) for place in faults] + AGENTS[agent](plan, rng)
        agents[agent]["told"] = all(walk(stages, turns).values())
    return {
        "label": query.label,
        "index": query.index,
        "seed": query.seed,
        "invalid": [*invalid(app, query, plan)],
        "requests": [
            {"name": f"{one.kind}.{one.method}", "because": one.because, "forms": forms(one)}
            for one in plan.requests
        ],
        "parts": len(stages.parts),
        "routers": len(plan.world.routers),
        "orders": orders,
        "latent": latent,
        "agents": agents,
        "refused": [*fixed_refusals(plan)],
        "worlds": stages.number_of_worlds,
    }


def latent_faults(plan: Plan) -> Iterator[Record]:
    """Yield, for each latent fault, the part of a request's record about it."""
    stages = plan.stages
    changed = [one.machines for one in stages.changes]
    made = zip(changed, (one for one in plan.requests if not one.because), strict=True)
    adding = [some for some, one in made if one.kind in {"link_back", "neighbour_add"}]
    for place, (fault, change) in enumerate(zip(plan.faults, stages.faults, strict=True)):
        left = [part for part in stages.of_faults if stages.parts[part].owner == place]
        then = stages.facts(left) or {}
        yield {
            "kind": f"{fault.kind}.{fault.method}",
            "shown": shown(plan, change.edit(plan.target)),
            "sorts": sorted({fact.sort for fact in misfits(stages.target or {}, then)}),
            "machine of a change": any(fault.machine in some for some in changed),
            "machine of link_back or neighbour_add": any(fault.machine in some for some in adding),
        }


# Tables.


def share(number: int, of: int) -> str:
    """Return a number with its share and the exact 95 % interval in percent."""
    if not of:
        return "-"
    low, high = clopper_pearson(number, of)
    return f"{number} of {of} ({100 * number / of:.0f} %, {100 * low:.0f} to {100 * high:.0f})"


def decides(one: Record) -> bool:
    """Return whether both simple orders (of the text, of names) interrupt documented traffic."""
    return all(TRAFFIC & {*(rules or ())} for rules in one["orders"].values())


def solved(one: Record, agent: str) -> bool:
    played = one["agents"][agent]
    return bool(played["done"]) and not any(r["because"] for r in one["requests"])


def played_safely(one: Record, agent: str) -> bool:
    """Return whether an agent made all feasible changes safely; its refusals do not count."""
    played = one["agents"][agent]
    return bool(played["done"] and played["safe"])


def several(records: Sequence[Record]) -> list[Record]:
    return [one for one in records if len(one["requests"]) > 1]


def tables(records: Sequence[Record]) -> Iterator[str]:
    many = several(records)
    groups = {label: [r for r in records if r["label"] == label] for label in CHANGES}
    groups = {label: some for label, some in groups.items() if some}
    groups["several changes"] = many
    rows = []
    for label, some in groups.items():
        rows.append([
            label, len(some), sum(bool(one["invalid"]) for one in some),
            share(sum(map(decides, some)), len(some)),
            share(sum(bool(one["latent"]) for one in some), len(some)),
            share(sum(any(r["because"] for r in one["requests"]) for one in some), len(some)),
        ])  # fmt: skip
    yield "Requests:"
    yield from table(
        ["label", "requests", "invalid", "order decides", "latent fault", "with a refusal"], rows
    )
    yield "Agents, solved safely:"
    yield from table(
        ["agent", *groups],
        [
            [agent, *(share(sum(solved(r, agent) and r["agents"][agent]["safe"] for r in some),
                            len(some)) for some in groups.values())]
            for agent in AGENTS
        ],
    )  # fmt: skip
    yield "Agents, requests with several changes:"
    yield from table(
        [
            "agent",
            "solved",
            "safe",
            "solved safely if it knew the refusals",
            "and also the latent faults",
        ],
        [
            [
                agent,
                share(sum(solved(r, agent) for r in many), len(many)),
                share(sum(r["agents"][agent]["safe"] for r in many), len(many)),
                share(sum(played_safely(r, agent) for r in many), len(many)),
                share(
                    sum(r["agents"][agent].get("told", played_safely(r, agent)) for r in many),
                    len(many),
                ),
            ]
            for agent in AGENTS
        ],
    )
    yield from _policies(many)
    yield from _counts(records, many)


def _policies(many: Sequence[Record]) -> Iterator[str]:
    hits = Counter(text for one in many for text in one["refused"])
    yield "Refusing a fixed change with a fixed word, and pushing all others, several changes:"
    names = [f"{n} {word}" for n, word in product(range(1, 5), REFUSALS)]
    yield from table(
        ["policy", "solved"], [[name, share(hits[name], len(many))] for name in names if hits[name]]
    )


def _counts(records: Sequence[Record], many: Sequence[Record]) -> Iterator[str]:
    made, refused = Counter[str](), Counter[str]()
    for one in records:
        for asked in one["requests"]:
            for form in asked["forms"]:
                (refused if asked["because"] else made)[form] += 1
    yield "Changes by form (kind and method, and details that the words show):"
    yield from table(
        ["form", "can be made", "must be refused"],
        [[form, made[form], refused[form]] for form in sorted({*made, *refused})],
    )
    yield "Refusals by reason and place:"
    place = Counter(
        (asked["because"], number)
        for one in many
        for number, asked in enumerate(one["requests"], start=1)
        if asked["because"]
    )
    yield from table(
        ["reason", "1", "2", "3", "4"],
        [[word, *(place[word, number] for number in range(1, 5))] for word in REFUSALS],
    )
    yield from _rules(many, made, refused)
    faulty = [one["latent"] for one in records if one["latent"]]
    faults = [fault for some in faulty for fault in some]
    yield "Latent faults:"
    kinds = Counter(fault["kind"] for fault in faults)
    yield from table(["kind", "number"], kinds.most_common())
    yield "Latent faults, properties:"
    yield from table(
        ["property", "share"],
        [
            ["requests in which the safe order does harm unless the faults are repaired first",
             share(sum(some[0]["harm"] for some in faulty), len(faulty))],
            *(
                [f"faults that show {when}",
                 share(sum(fault["shown"] == when for fault in faults), len(faults))]
                for when in ("afterwards", "in a contingency")
            ),
            *(
                [f"wrong after the changes: {'path' if sort == 'way' else sort}",
                 share(sum(sort in fault["sorts"] for fault in faults), len(faults))]
                for sort in ("ping", "service", "way", "route", "adjacency", "session")
            ),
            *(
                [f"on the {name}", share(sum(fault[name] for fault in faults), len(faults))]
                for name in ("machine of a change", "machine of link_back or neighbour_add")
            ),
        ],
    )  # fmt: skip
    backs = [
        one
        for one in records
        if any(r["name"].startswith(("link_back", "neighbour_add")) for r in one["requests"])
    ]
    others = [one for one in records if one not in backs]
    yield "Requests with a latent fault:"
    yield from table(
        ["requests", "with a latent fault"],
        [
            ["with link_back or neighbour_add",
             share(sum(bool(r["latent"]) for r in backs), len(backs))],
            ["without", share(sum(bool(r["latent"]) for r in others), len(others))],
        ],
    )  # fmt: skip
    yield "Time and size:"
    times = sorted(one["drawing"] for one in records)
    parts = sorted(one["parts"] for one in records)
    yield from table(
        ["value", "mean", "median", "maximum"],
        [
            [name, f"{sum(some) / len(some):.1f}", some[len(some) // 2], some[-1]]
            for name, some in (("processor time to generate a request, s", times), ("parts", parts))
        ],
    )


def _rules(many: Sequence[Record], made: Counter[str], refused: Counter[str]) -> Iterator[str]:
    """Yield tables of how well simple rules find the change that must be refused.

    The rules use the forms of the requests; a random choice is shown for comparison.
    """
    with_one = [one for one in many if any(r["because"] for r in one["requests"])]
    if not with_one:
        return
    weight = {form: refused[form] / (refused[form] + made[form]) for form in {*made, *refused}}
    score = dict.fromkeys(("the first", "the last", "the form that is refused most often"), 0)
    for one in with_one:
        asked = one["requests"]
        right = next(n for n, r in enumerate(asked) if r["because"])
        by_form = max(range(len(asked)), key=lambda n: max(weight[f] for f in asked[n]["forms"]))
        for name, guess in zip(score, (0, len(asked) - 1, by_form), strict=True):
            score[name] += guess == right
    chance = sum(1 / len(one["requests"]) for one in with_one)
    yield "Requests with a refusal: rules that name the refused change, fitted to these requests:"
    yield from table(
        ["rule", "right"],
        [
            ["chance", f"{chance:.1f} of {len(with_one)}"],
            *([name, share(number, len(with_one))] for name, number in score.items()),
        ],
    )
    yield "Whether a request with several changes has a refusal, by its form:"
    groups: dict[str, list[Record]] = defaultdict(list)
    for one in many:
        names = {form for r in one["requests"] for form in r["forms"]}
        for name in names & {*refused}:
            groups[name].append(one)
        for name in properties(one):
            groups[name].append(one)
    yield from table(
        ["requests", "with a refusal"],
        [
            ["all", share(len(with_one), len(many))],
            *(
                [name, share(sum(one in with_one for one in groups[name]), len(groups[name]))]
                for name in sorted(groups)
            ),
        ],
    )


def properties(one: Record) -> Iterator[str]:
    """Yield properties of a whole request that might reveal that a change must be refused."""
    names = [r["name"] for r in one["requests"]]
    kinds = Counter(name.partition(".")[0] for name in names)
    if max(kinds.values()) > 1:
        yield "(two changes of one kind)"
    if not {*kinds} & {"link_back", "router_back", "neighbour_add"}:
        yield "(nothing is brought into service)"
    if not {*kinds} & {"link_out", "neighbour_remove"}:
        yield "(nothing is taken out of service)"


def measure(labels: Sequence[str], number: int, seed: int, save: Path | None) -> Iterator[Record]:
    app = Backbone()
    keys = {"world": "backbone", "emulator": "netns", "briefing": "ticket"}
    config = app.config_type.parse({**keys, "error_types": [*labels], "num_queries": number})
    drawn, begin = iter(app.generate(config, seed)), time.monotonic()
    total = number * len(labels)
    for count in range(1, total + 1):
        cpu = time.process_time()
        query = next(drawn)
        drawing = time.process_time() - cpu
        record = {**examine(app, query, seed), "drawing": round(drawing, 1)}
        if save is not None:
            with save.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        used = time.monotonic() - begin
        sys.stderr.write(
            f"{count}/{total} {query.label}: {drawing:.1f} s, "
            f"ETA {used / count * (total - count):.0f} s"
            f"{''.join('; INVALID: ' + text for text in record['invalid'])}\n"
        )
        yield record


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--requests", type=int, default=15, help="number of requests per label")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--labels", default=",".join(CHANGES), help="comma-separated labels")
    parser.add_argument("--save", type=Path, help="file to which results are appended")
    parser.add_argument("--read", type=Path, nargs="*", default=[], help="files with results")
    options = parser.parse_args()
    labels = options.labels.split(",")
    if unknown := [label for label in labels if label not in CHANGES]:
        parser.error(f"--labels: unknown label {unknown[0]!r}; use {', '.join(CHANGES)}")
    records = [
        json.loads(line)
        for path in options.read
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        if options.requests > 0:
            records.extend(measure(labels, options.requests, options.seed, options.save))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; printing the results so far\n")
    if records:
        print("\n".join(tables(records)))
    sys.exit(any(one["invalid"] for one in records))


if __name__ == "__main__":
    main()
