from __future__ import annotations

import asyncio

import pytest

from netarena_k8s.app import Kubernetes
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.evidence import evidence
from netarena_k8s.query import faults_of, world_of

CONFIG = KubernetesConfig.parse(
    {"briefing": "ticket", "num_apps": 20, "error_types": ["faults_0", "faults_2"]}
)


@pytest.fixture(scope="module")
def queries():
    return list(Kubernetes().generate(CONFIG, 2))


def test_every_policy_is_a_candidate_and_faulty_ones_are_targets(queries):
    for query in queries:
        found = evidence(query)
        assert [one.name for one in found.candidates] == [
            policy.name for policy in world_of(query).policies
        ]
        targets = {one.name for one in found.candidates if one.target}
        assert targets == {fault.policy for fault in faults_of(query)}
        assert found.wrong == bool(query.actions)
        # deny-all is not compared with other policies, because it never has a fault
        assert [one.name for one in found.candidates if one.role] == ["deny-all"]
        assert len({frozenset(one.form) for one in found.candidates}) == 1


def test_server_metadata_of_policies_does_not_reveal_the_faulty_ones(queries):
    for query in queries:
        candidates = evidence(query).candidates
        for key in ("generation", "created", "managers", "annotations", "labels", "keys"):
            assert len({one.trace[key] for one in candidates}) == 1


def test_evidence_of_the_application_equals_that_of_the_module(queries):
    found = asyncio.run(Kubernetes().evidence(queries[1], CONFIG))
    assert found == evidence(queries[1])
