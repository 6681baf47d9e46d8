"""The standard world matches its documentation and the manifests of a real cluster."""

from __future__ import annotations

import pytest
import yaml

from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.model import render_policy


def test_standard_world_has_121_pairs_with_the_documented_calls():
    world = boutique()
    assert len(world.apps) == 12
    assert len(world.policies) == 13
    assert len(world.pairs) == len(world.intended) == 121
    wanted = {
        (pair.source, pair.target)
        for pair, intended in zip(world.pairs, world.intended, strict=True)
        if intended
    }
    everyone = {(app.name, "frontend") for app in world.apps if app.name != "frontend"}
    assert wanted == set(world.calls) | everyone
    # the reference's prompt contradicts its own policies here
    assert {
        ("checkoutservice", "productcatalogservice"),
        ("checkoutservice", "cartservice"),
    } <= wanted
    assert not {("frontend", "paymentservice"), ("frontend", "emailservice")} & wanted


@pytest.mark.requires("shared")
def test_standard_world_equals_the_manifests_of_the_real_cluster(shared_data):
    documents = list(yaml.safe_load_all((shared_data / "k8s" / "boutique.yaml").read_text()))
    theirs = {
        one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "NetworkPolicy"
    }
    world = boutique()
    ours = {policy.name: render_policy(policy, "x")["spec"] for policy in world.policies}
    assert ours == theirs
    services = {
        one["metadata"]["name"]: [
            (port["port"], port["targetPort"], port["name"]) for port in one["spec"]["ports"]
        ]
        for one in documents
        if one["kind"] == "Service" and one["metadata"]["name"] != "frontend-external"
    }
    assert services == {
        app.name: [(port.port, port.target, port.name) for port in app.service]
        for app in world.apps
        if app.service
    }
