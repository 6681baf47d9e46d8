from __future__ import annotations

import base64
import gzip
import json
import random
import re
import shlex

import jsonpatch
import pytest

from netarena.model import Query
from netarena.task.prompt import render
from netarena_k8s.agent import triage
from netarena_k8s.agent.triage import Triage, read_documents
from netarena_k8s.app import Kubernetes
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.declaration import claim_of
from netarena_k8s.fault.subtle import KINDS_OF_LARGE
from netarena_k8s.fault.table import action_of, draw_one, faulty
from netarena_k8s.query import faults_of, world_of
from netarena_k8s.reply import read_reply
from netarena_k8s.source.large import estate
from netarena_k8s.world.model import Net, Policy, World

CONFIG = KubernetesConfig.parse({"briefing": "ticket"})
SHOP = estate(random.Random(4), 20, 20)


def query_with(*kinds: str) -> Query:
    """Return a ticket for SHOP with a fault of each kind."""
    rng, faults = random.Random(3), []
    for kind in kinds:
        for policy in rng.sample(SHOP.policies, len(SHOP.policies)):
            fault = draw_one(SHOP, kind, policy, rng, KINDS_OF_LARGE)
            if fault is not None and fault.policy not in {one.policy for one in faults}:
                faults.append(fault)
                break
    assert len(faults) == len(kinds)
    return Query(
        id="k8s-x",
        application="k8s",
        version="2",
        seed=1,
        index=0,
        label=f"faults_{len(faults)}",
        level="level1",
        text="x",
        initial={"world": SHOP.model_dump(mode="json")},
        actions=tuple(map(action_of, faults)),
    )


def pack(world: World, policies: dict[str, dict]) -> str:
    """Return the output of the runbook's observation command."""
    lines = []
    for app in world.apps:
        ports = [
            {"containerPort": one.number, "name": one.name, "protocol": one.protocol}
            for one in app.ports
        ]
        lines.append(f"d{app.name}\t{json.dumps(app.labels)}\t{json.dumps(ports) if ports else ''}")
    for app in world.apps:
        served = [
            {"port": one.port, "targetPort": one.target, "protocol": one.protocol}
            for one in app.service
        ]
        if served:
            lines.append(f"s{app.name}\t{json.dumps(served)}")
    lines += [f"n{name}\t{json.dumps(spec)}" for name, spec in policies.items()]
    return base64.b64encode(gzip.compress("\n".join(lines).encode())).decode()


def play(query: Query) -> tuple[list[str], dict[str, dict]]:
    """Return the operator's replies, and the policies after them."""
    world = world_of(query)
    policies = {one.name: dict(one.spec) for one in faulty(world, faults_of(query))}
    prompt = render(CONFIG.prompt_type, Kubernetes().brief(CONFIG, query, {}, ()))
    operator, moves, output = Triage(), [], ""
    while len(moves) < 12:
        move = read_reply(operator.reply(f"{prompt}{output}"))
        assert isinstance(move, str)
        moves.append(move)
        if claim_of(move) is not None:
            break
        if "gzip" in move:
            first, last = map(int, re.findall(r"cut -c(\d+)-(\d+)", move)[0])
            shown = pack(world, policies)[first - 1 : last]
        else:
            words = shlex.split(move)
            name, patch = words[3], json.loads(words[words.index("-p") + 1])
            policies[name] = jsonpatch.apply_patch({"spec": policies[name]}, patch)["spec"]
            shown = f"networkpolicy/{name} patched\n{name}\t{json.dumps(policies[name])}"
        output = f"\n\nTurn {len(moves)}\nCommand: x\nOutput:\n{shown}\n\nWhat now?"
    return moves, policies


def is_right(policies: dict[str, dict]) -> bool:
    net = Net(SHOP, [Policy(name=name, spec=spec) for name, spec in policies.items()])
    right = tuple(net.reaches(pair) for pair in SHOP.pairs) == SHOP.intended
    return right and all(map(net.allows, SHOP.uses))


def test_triage_of_a_false_alarm_makes_no_change() -> None:
    moves, _ = play(query_with())
    assert all("gzip" in move for move in moves[:-1])
    assert len(moves) > 2
    assert moves[-1] == "done"


@pytest.mark.parametrize(
    "kinds",
    [("remove_ingress",), ("open_peer",), ("pod_selector",), ("dns_egress", "change_port")],
    ids="+".join,
)
def test_triage_repairs_all_faults_and_declares_each_changed_policy(kinds: tuple[str, ...]) -> None:
    query = query_with(*kinds)
    moves, policies = play(query)
    assert is_right(policies)
    claim = claim_of(moves[-1])
    assert claim is not None
    assert claim.causes
    changed = {move.split()[3] for move in moves[:-1] if "gzip" not in move}
    assert {cause.place for cause in claim.causes} == changed


def test_triage_declares_nothing_while_known_faults_remain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triage, "_repairs", lambda *_: ())
    moves, policies = play(query_with("remove_ingress"))
    assert not is_right(policies)
    assert len(moves) == 12
    assert all(claim_of(move) is None for move in moves)


def test_documentation_parsed_from_the_prompt_matches_the_plan() -> None:
    prompt = render(CONFIG.prompt_type, Kubernetes().brief(CONFIG, query_with(), {}, ()))
    (found, calls), told = read_documents(prompt, SHOP.apps), SHOP.plan
    assert told is not None
    assert {one.address for one in found.guests} == {one.address for one in told.guests}
    assert {one.cidr for one in found.partners} == {one.cidr for one in told.partners}
    read = World(apps=SHOP.apps, policies=(), plan=found)
    assert {*read.uses} == {*SHOP.uses}
    assert {*calls} == {*SHOP.calls}


@pytest.mark.parametrize("prompt", ["", "Intended state:\nnothing"])
def test_triage_prompt_without_a_plan_raises_an_error(prompt: str) -> None:
    operator = Triage()
    assert re.search("kubectl get deployments", operator.reply(prompt))
    with pytest.raises(ValueError, match="lists no teams"):
        operator.reply(f"{prompt}\nOutput:\n{pack(SHOP, {})}\n")
