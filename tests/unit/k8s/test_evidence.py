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


def test_every_policy_is_a_candidate_and_the_faulty_ones_are_the_targets(queries):
    for query in queries:
        found = evidence(query)
        assert [one.name for one in found.candidates] == [
            policy.name for policy in world_of(query).policies
        ]
        targets = {one.name for one in found.candidates if one.target}
        assert targets == {fault.policy for fault in faults_of(query)}
        assert found.wrong == bool(query.actions)
        # compared with no other policy, for no fault is on it
        assert [one.name for one in found.candidates if one.role] == ["deny-all"]
        assert len({frozenset(one.form) for one in found.candidates}) == 1


def test_what_the_api_server_adds_to_a_policy_does_not_tell_the_faulty_ones(queries):
    for query in queries:
        for key in ("generation", "created", "managers", "annotations", "labels", "keys"):
            assert len({one.trace[key] for one in evidence(query).candidates}) == 1


def test_the_application_returns_it(queries):
    found = asyncio.run(Kubernetes().evidence(queries[1], CONFIG))
    assert found == evidence(queries[1])
