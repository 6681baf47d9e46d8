from __future__ import annotations

import json
import random
import shlex

import jsonpatch
import pytest

from netarena_k8s.agent.form_reader import repairs
from netarena_k8s.source.alter import alter
from netarena_k8s.source.large import estate
from netarena_k8s.world.boutique import boutique
from tests.unit.k8s.agent.test_triage import pack

BACKEND = "checkoutservice"


def repaired(**changed):
    """Return the spec of Online Boutique's checkout service after the first repair."""
    world = boutique()
    specs = {policy.name: dict(policy.spec) for policy in world.policies}
    specs[BACKEND] |= changed
    for command in repairs(pack(world, specs)):
        name, operations = shlex.split(command)[3], json.loads(shlex.split(command)[-1])
        if name == BACKEND:
            return jsonpatch.apply_patch({"spec": specs[BACKEND]}, operations)["spec"]
    raise AssertionError("no repair")


RULE = {"from": [{"podSelector": {"matchLabels": {"app": "frontend"}}}],
        "ports": [{"port": 5050, "protocol": "TCP"}]}  # fmt: skip
SELECTOR = {"matchLabels": {"app": BACKEND}}


@pytest.mark.parametrize(
    ("changed", "part", "wanted"),
    [
        ({"policyTypes": ["Egress"]}, "policyTypes", ["Ingress", "Egress"]),
        ({"ingress": [{**RULE, "ports": [{"port": 5051, "protocol": "TCP"}]}]}, "ingress", [RULE]),
        (
            {"podSelector": {"matchLabels": {"app": BACKEND, "version": "stable"}}},
            "podSelector",
            SELECTOR,
        ),
    ],
)
def test_blind_repair_undoes_a_change_that_looks_like_a_fault(changed, part, wanted):
    assert repaired(**changed)[part] == wanted


def test_blind_repair_changes_many_policies_of_an_application_without_faults():
    rng = random.Random(2)
    world, _ = alter(estate(rng, 20, 20), rng)
    found = list(repairs(pack(world, {policy.name: policy.spec for policy in world.policies})))
    assert len(found) > 10
    assert all(command.startswith("kubectl patch networkpolicy ") for command in found)
