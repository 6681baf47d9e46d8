"""Manifests of deployments on a real cluster."""

import json

import pytest
from k8s_real import pod

from netarena.errors import EnvironmentFailed
from netarena_k8s.embedded.apiserver.rbac import RULES
from netarena_k8s.real.client import path_of
from netarena_k8s.real.manifest import (
    MEASURER,
    OWNED,
    OWNER,
    app_manifests,
    right_manifests,
)
from netarena_k8s.real.measure import Address, addresses_of, places_of
from netarena_k8s.real.rbac import INSIDE
from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.model import (
    App,
    ContainerPort,
    ServicePort,
    World,
)


def test_every_manifest_kind_has_a_path_and_its_permissions_are_checked():
    made = [*app_manifests(boutique(), "shop", "image"), *right_manifests("shop")]
    for one in made:
        assert path_of(one["kind"], "shop").startswith(("/api/v1/", "/apis/"))
    assert path_of("Pod", "shop", "p", "exec") == "/api/v1/namespaces/shop/pods/p/exec"
    asked = {(need.group, need.resource, verb) for need in INSIDE for verb in need.verbs}
    for rule in RULES:
        for resource in rule.resources:
            assert {(rule.group, resource, verb) for verb in rule.verbs} <= asked
    names = {one["metadata"]["name"] for one in made if one["kind"] == "Service"}
    assert {"frontend", "frontend-external"} <= names
    (external,) = [one for one in made if one["metadata"]["name"] == "frontend-external"]
    assert external["spec"]["loadBalancerClass"] == "netarena/none"


def test_only_ready_pods_that_are_not_terminating_are_probed():
    web = App(
        name="web",
        labels={"app": "web"},
        ports=(ContainerPort(number=8080),),
        service=(ServicePort(port=80, target=8080),),
    )
    world = World(apps=(web,), policies=())
    pods = [
        pod("a", {"app": "web"}, "10.0.0.1", deletionTimestamp="now"),
        pod("b", {"app": "web"}, "10.0.0.2", ready=False),
        pod("c", {"app": "web", "hash": "1"}, "10.0.0.3"),
        pod("d", {"app": "other"}, "10.0.0.4"),
    ]
    places = places_of(world, pods)
    assert [place.ip for place in places.values()] == ["10.0.0.3"]
    assert addresses_of(world, {"web": "10.96.0.1"}, places) == {"web": Address("10.96.0.1", 80)}
    assert addresses_of(world, {"web": "None"}, places) == {"web": Address("10.0.0.3", 8080)}


def test_user_supplied_workload_manifests_get_a_measuring_sidecar():
    web = App(name="web", labels={"app": "web"})
    written = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"tier": "front"}},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "server", "image": "shop/web:1"}]},
            },
        },
    }
    before = json.dumps(written)
    world = World(apps=(web,), policies=())
    (made,) = app_manifests(world, "shop", "standin:1", {"web": written})
    assert made["metadata"]["namespace"] == "shop"
    assert made["metadata"]["labels"] == {"tier": "front", OWNED: OWNER}
    assert made["spec"]["replicas"] == 1  # each pair is measured from one pod
    own, beside = made["spec"]["template"]["spec"]["containers"]
    assert own == {"name": "server", "image": "shop/web:1"}
    assert (beside["name"], beside["image"], beside["args"]) == (MEASURER, "standin:1", ["listen"])
    assert json.dumps(written) == before
    with pytest.raises(EnvironmentFailed, match="the manifests have no workload web"):
        list(app_manifests(world, "shop", "standin:1", {}))
