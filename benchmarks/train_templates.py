"""Train a policy over command templates, with only Gymnasium, and compare it with a random one.

    python benchmarks/train_templates.py k8s --markdown docs/evidence/training.md

A template is a command with slots that are filled from the prompt. A policy picks one template per
turn, and no template twice in an episode. The trained policy stores each template's mean immediate
reward in each situation (a summary of the prompt). It picks templates that are promising or were
rarely tried. A score is the share of an assessment's queries that are solved safely; these queries
are not used for training. There are three scores: before the training, after the training, and for
a policy that picks at random.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium

import netarena.training.gym  # noqa: F401 -- registers the ids
from netarena.analysis.intervals import wilson
from netarena.report.markdown import replace_section

TURNS = 3
#: Bonus, in units of reward, for a template that was never tried in a situation.
HOPE = 40.0
#: Weight of the mean over all situations, as a number of tries in the current situation.
PRIOR = 1.0
Facts = dict[str, Any]


# Parsers of prompts.


_SUBNET = re.compile(
    r"^- (\S+) \(switch \S+\): router (\S+) (\S+) on (\S+); (\S+) (\S+) on (\S+)", re.MULTILINE
)
_ROW = re.compile(r"^(\S+) -> (.+)$", re.MULTILINE)


def read_route(prompt: str) -> tuple[str, Facts]:
    """Return the situation in a prompt, without names, and facts about its most affected subnet."""
    subnets = _SUBNET.findall(prompt)
    rows = {name: cells.split() for name, cells in _ROW.findall(prompt[prompt.rindex("Pingall") :])}
    missing = {row[4]: rows[row[4]].count("X") for row in subnets}
    router = subnets[0][1]
    worst = max(subnets, key=lambda row: (missing[row[4]], "X" in rows[router]))
    net, _, address, port, host, own, interface = worst
    kinds = sorted((len(cells), cells.count("X")) for name, cells in rows.items() if name != router)
    sign = f"{kinds} router {rows[router].count('X')}"
    return sign, {
        "router": router, "net": net, "address": address, "ip": address.split("/")[0],
        "port": port, "host": host, "own": own, "interface": interface,
        "nets": [row[0] for row in subnets],
    }  # fmt: skip


_WRONG = re.compile(r"^(\S+) -> (\S+): expected to (work|be blocked)", re.MULTILINE)
_CALLERS = re.compile(r"^- ([\w-]+): (.+)$", re.MULTILINE)
_POD_PORT = re.compile(
    r"^- ([\w-]+) \(([^)]*)\): service port \S+/(\w+) to pod port (\d+)", re.MULTILINE
)


def read_k8s(prompt: str) -> tuple[str, Facts]:
    """Return the situation in a prompt, without names, and facts with which templates are filled.

    The facts are the most affected sender and receiver, ports, and intended callers.
    """
    wrong = _WRONG.findall(prompt)
    sources, targets = ([row[at] for row in wrong] for at in (0, 1))
    source, target = (max(sorted({*names}), key=names.count) for names in (sources, targets))
    words = {row[2] for row in wrong}
    sign = f"{sorted(words)} {min(len({*sources}), 3)} to {min(len({*targets}), 3)}"
    ports = {name: (int(port), protocol) for name, _, protocol, port in _POD_PORT.findall(prompt)}
    intent = prompt[prompt.index("Each service with") : prompt.index("The applications, by")]
    callers = dict(_CALLERS.findall(intent))
    return sign, {"source": source, "target": target, "ports": ports, "callers": callers}


# Templates.


def route_templates() -> Mapping[str, Callable[[Facts], str]]:
    on_router = {
        "forward on": "sysctl -w net.ipv4.ip_forward=1",
        "forward policy": "iptables -P FORWARD ACCEPT",
        "forward source": "iptables -D FORWARD -s {nets[0]} -j DROP || "
        "iptables -D FORWARD -s {nets[1]} -j DROP",
        "rule": "ip rule del prohibit pref 0",
        "link up": "ip link set {port} up",
        "mtu": "ip link set {port} mtu 1500",
        "address": "ip addr flush dev {port} && ip addr add {address} brd + dev {port}",
        "route": "ip route flush exact {net}; "
        "ip route add {net} dev {port} proto kernel scope link src {ip}",
        "drop": "iptables -D INPUT -s {net} -j DROP; iptables -D OUTPUT -d {net} -j DROP",
        "reject": "iptables -D INPUT -s {net} -j REJECT; iptables -D OUTPUT -d {net} -j REJECT",
        "icmp": "iptables -D INPUT -s {net} -p icmp -j DROP; "
        "iptables -D OUTPUT -d {net} -p icmp -j DROP",
        "queue": "tc qdisc del dev {port} root",
        "look at links": "ip link show",
        "look at addresses": "ip addr show",
        "look at routes": "ip route show table all",
        "look at rules": "ip rule show",
        "look at filters": "iptables -S",
        "look at queues": "tc qdisc show",
        "neighbours": "ip neigh flush all",
        "accept input": "iptables -P INPUT ACCEPT",
        "forget": "ip route flush cache",
    }  # fmt: skip
    on_host = {
        "host link": "ip link set {interface} up",
        "host route": "ip route replace default via {ip}",
        "host look": "ip addr show",
    }
    both = [("router", on_router), ("host", on_host)]
    return {
        name: lambda facts, key=key, text=text: json.dumps(
            {"machine": facts[key], "command": text.format(**facts)}
        )
        for key, texts in both
        for name, text in texts.items()
    }


def _patch(end: str, op: str, path: str, value: Callable[[Facts], Any]) -> Callable[[Facts], str]:
    """Return a template that patches the policy of ``end``, ``source`` or ``target``."""

    def fill(facts: Facts) -> str:
        what = {"op": op, "path": f"/spec/{path}", "value": value(facts)}
        command = f"kubectl patch networkpolicy {facts[end]} --type=json -p '[{json.dumps(what)}]'"
        return f"```\n{command}\n```"

    return fill


def _ingress(*, callers: bool = True, port: bool = True) -> Callable[[Facts], Any]:
    """Return a function that computes the receiver's intended ingress rules from facts.

    Without ``callers`` or ``port``, the rules do not restrict callers or ports.
    """

    def fill(facts: Facts) -> list[dict[str, Any]]:
        told, rule = facts["callers"].get(facts["target"], ""), dict[str, Any]()
        if told == "every other application":
            return [{}]
        if callers:
            names = told.split(", ")
            rule["from"] = [{"podSelector": {"matchLabels": {"app": name}}} for name in names]
        if port:
            rule["ports"] = [{"port": _port(facts)[0], "protocol": _port(facts)[1]}]
        return [rule]

    return fill


def _port(facts: Facts) -> tuple[int, str]:
    return facts["ports"].get(facts["target"], (80, "TCP"))


def _plain(value: Any) -> Callable[[Facts], Any]:
    return lambda _: value


def k8s_templates() -> Mapping[str, Callable[[Facts], str]]:
    to, by, port = "target", "source", "ingress/0/ports/0"
    both = ["Ingress", "Egress"]
    table: Mapping[str, tuple[str, str, str, Callable[[Facts], Any]]] = {
        "intended ingress": (to, "add", "ingress", _ingress()),
        "ingress of the sender": (by, "add", "ingress", _plain([{}])),
        "any port": (to, "add", "ingress", _ingress(port=False)),
        "any caller": (to, "add", "ingress", _ingress(callers=False)),
        "open": (to, "add", "ingress", _plain([{}])),
        "close": (to, "add", "ingress", _plain([])),
        "drop first rule": (to, "remove", "ingress/0", _plain(None)),
        "drop second rule": (to, "remove", "ingress/1", _plain(None)),
        "port number": (to, "add", f"{port}/port", lambda facts: _port(facts)[0]),
        "protocol": (to, "add", f"{port}/protocol", lambda facts: _port(facts)[1]),
        "wrong protocol": (to, "add", f"{port}/protocol", _plain("UDP")),
        "egress of the sender": (by, "add", "egress", _plain([{}])),
        "egress of the receiver": (to, "add", "egress", _plain([{}])),
        "no egress": (by, "add", "egress", _plain([])),
        "drop egress": (by, "remove", "egress", _plain(None)),
        "ingress alone": (to, "add", "policyTypes", _plain(["Ingress"])),
        "both kinds": (to, "add", "policyTypes", _plain(both)),
        "another pod": (to, "add", "podSelector", _plain({})),
    }
    return {name: _patch(*entry) for name, entry in table.items()}


TASKS: Mapping[str, dict[str, Any]] = {
    "route": {
        "id": "NetArena/Route-v0",
        "keys": {"emulator": "netns", "complexity_level": "level1", "max_iterations": TURNS},
        "read": read_route,
        "templates": route_templates(),
    },
    "k8s": {
        "id": "NetArena/K8s-v0",
        "keys": {"patches": "direct", "complexity_level": "level1", "max_iterations": TURNS},
        "read": read_k8s,
        "templates": k8s_templates(),
    },
}


# Policies.


class Learner:
    """Policy that picks the template with the best mean reward and bonus in a situation.

    A template's mean over all situations is the prior for its mean in a situation.
    """

    def __init__(self, templates: Sequence[str], rng: random.Random) -> None:
        self._templates = templates
        self._rng = rng
        self._sums: dict[tuple[str, str], float] = defaultdict(float)
        self._tries: dict[tuple[str, str], int] = defaultdict(int)

    def pick(self, sign: str, tried: set[str], hope: float) -> str:
        left = [name for name in self._templates if name not in tried]
        self._rng.shuffle(left)
        return max(left, key=lambda name: self._worth(sign, name, hope))

    def learn(self, sign: str, name: str, earned: float) -> None:
        for key in ((sign, name), ("", name)):
            self._sums[key] += earned
            self._tries[key] += 1

    def _worth(self, sign: str, name: str, hope: float) -> float:
        all_tries = self._tries["", name]
        overall = self._sums["", name] / all_tries if all_tries else 0.0
        tries = self._tries[sign, name]
        mean = (self._sums[sign, name] + PRIOR * overall) / (tries + PRIOR)
        return mean + hope / math.sqrt(tries + 1)


class Chance:
    """Policy that picks a random template that was not tried in the episode."""

    def __init__(self, templates: Sequence[str], rng: random.Random) -> None:
        self._templates, self._rng = templates, rng

    def pick(self, sign: str, tried: set[str], hope: float) -> str:
        del sign, hope
        return self._rng.choice([name for name in self._templates if name not in tried])

    def learn(self, sign: str, name: str, earned: float) -> None:
        pass


def play(
    envs: Any, task: Mapping[str, Any], policy: Any, seed: int, *,
    hope: float = 0.0, episodes: int | None = None, until: float = math.inf,
) -> tuple[int, int]:  # fmt: skip
    """Play episodes; return the number solved safely and the number of episodes."""
    prompts, _ = envs.reset(seed=seed)
    number = envs.num_envs
    tried: list[set[str]] = [set() for _ in range(number)]
    solved = ended = 0
    while ended < (episodes or math.inf) and time.monotonic() < until:
        signs, names, replies = [], [], []
        for at, prompt in enumerate(prompts):
            if not prompt:  # the episode is over, and any reply starts the next episode
                picked = ("", "", "")
            else:
                sign, facts = task["read"](prompt)
                name = policy.pick(sign, tried[at], hope)
                picked = (sign, name, task["templates"][name](facts))
            for held, one in zip((signs, names, replies), picked, strict=True):
                held.append(one)
        prompts, rewards, over, cut, infos = envs.step(replies)
        for at in range(number):
            if not names[at]:
                tried[at] = set()
                continue
            tried[at].add(names[at])
            policy.learn(signs[at], names[at], float(rewards[at]))
            if over[at] or cut[at]:
                ended += 1
                solved += bool(infos["solved"][at]) and bool(infos["safe"][at])
    return solved, ended


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("application", choices=tuple(TASKS))
    parser.add_argument("--minutes", type=float, default=6.0, help="time limit of the training")
    parser.add_argument("--episodes", type=int, default=None, help="episodes of the training")
    parser.add_argument("--held-out", type=int, default=100, help="number of episodes per score")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--envs", type=int, default=4)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    task = TASKS[options.application]
    names = list(task["templates"])
    begin, load = time.monotonic(), os.getloadavg()[0]
    learning = gymnasium.make_vec(task["id"], options.envs, **task["keys"])
    # queries of an assessment, with another seed
    asked = gymnasium.make_vec(task["id"], options.envs, training=False, **task["keys"])
    learner = Learner(names, random.Random(options.seed))
    rows = []

    def score(who: str, policy: Any) -> None:
        frozen = lambda *_: None  # noqa: E731 -- nothing is learned from held-out queries
        policy.learn, kept = frozen, policy.learn
        solved, ended = play(asked, task, policy, 1_000_003, episodes=options.held_out)
        policy.learn = kept
        low, high = wilson(solved, ended)
        rows.append(
            f"| {options.application} | {who} | {100 * solved / ended:.0f} % "
            f"[{100 * low:.0f}–{100 * high:.0f}] | {solved} of {ended} |"
        )
        print(rows[-1], flush=True)

    score("random choice", Chance(names, random.Random(options.seed)))
    score("learner, before training", learner)
    start = time.monotonic()
    solved, ended = play(
        learning, task, learner, options.seed,
        hope=HOPE, episodes=options.episodes, until=start + 60 * options.minutes,
    )  # fmt: skip
    learnt_s = time.monotonic() - start
    score("learner, after training", learner)
    loads = sorted((load, os.getloadavg()[0]))
    about = (
        f"`python benchmarks/train_templates.py {options.application}`: {len(names)} templates, "
        f"{TURNS} turns; trained on {ended} episodes ({solved} of them solved safely) in "
        f"{learnt_s:.0f} s; all in {time.monotonic() - begin:.0f} s on {os.cpu_count()} "
        f"processors, load {loads[0]:.0f} to {loads[1]:.0f}:"
    )
    print(about)
    learning.close()
    asked.close()
    if options.markdown:
        head = ["| world | policy | solved safely | |", "| --- | --- | --- | --- |"]
        page = options.markdown.read_text(encoding="utf-8")
        page = replace_section(page, f"templates {options.application}", [about, "", *head, *rows])
        options.markdown.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
