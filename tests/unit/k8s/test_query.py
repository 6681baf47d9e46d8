from __future__ import annotations

import json
import shlex

import jsonpatch
import pytest

from netarena.errors import ConfigError
from netarena_k8s.app import Kubernetes
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.fault.table import faulty
from netarena_k8s.query import faults_of, world_of
from netarena_k8s.world.exposure import opened
from netarena_k8s.world.model import reach
from tests.fake.deal import deal


def drawn(**values):
    config = KubernetesConfig.parse(values)
    return list(deal(Kubernetes(), config, 7))


def test_default_queries_cover_the_papers_kinds_and_pairs_with_their_levels():
    queries = drawn()
    assert [query.level for query in queries].count("level1") == 5
    assert [query.level for query in queries].count("level2") == 6
    assert {q.label for q in queries if q.level == "level3"} == {
        f"{kind}+add_egress"
        for kind in ("remove_ingress", "add_ingress", "change_port", "change_protocol")
    }


@pytest.mark.parametrize("world", ["standard", "varied"])
def test_every_order_of_the_solution_is_safe_and_restores_the_intended_state(world):
    for query in drawn(
        world=world, error_types=["extended", "add_ingress+add_egress", "change_port+pod_selector"],
        complexity_level=["level1", "level2", "level3"],
    ):  # fmt: skip
        net, faults = world_of(query), faults_of(query)
        start = {policy.name: policy for policy in faulty(net, faults)}
        for commands in Kubernetes().every_solution(query):
            there = dict(start)
            reached = reach(net, list(there.values()))
            assert reached != net.intended
            for reply in commands:
                words = shlex.split(reply.strip("`\n"))
                assert words[:3] == ["kubectl", "patch", "networkpolicy"]
                document = {"spec": there[words[3]].spec}
                spec = jsonpatch.apply_patch(document, json.loads(words[6]))["spec"]
                there[words[3]] = there[words[3]].model_copy(update={"spec": spec})
                now = reach(net, list(there.values()))
                for was, is_, wanted in zip(reached, now, net.intended, strict=True):
                    assert not (was == wanted != is_)
                assert not opened(net, [net.policies, tuple(start.values())], [*there.values()])
                reached = now
            assert reached == net.intended
            assert tuple(there.values()) == net.policies
        assert Kubernetes().solve(query) == next(Kubernetes().every_solution(query))


def test_unknown_and_repeated_error_types_are_refused():
    with pytest.raises(ConfigError, match="'remove' is not one of remove_ingress, add_ingress"):
        drawn(error_types=["remove"])
    with pytest.raises(ConfigError, match="up to 3 different kinds"):
        drawn(error_types=["a+a"])
