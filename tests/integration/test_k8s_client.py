"""The Python client `kubernetes` changes policies on the embedded cluster."""

import asyncio
import json
import os
import warnings

import pytest

from netarena.sandbox.caller import Caller
from netarena_k8s.embedded.cluster import Embedded
from netarena_k8s.world.boutique import boutique

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the library's imports cause warnings
    from kubernetes import client, config

OPEN = {"spec": {"ingress": [{}]}}


def operate(access):
    """Send each kind of patch, a replacement, a conflict and refused requests as the operator."""
    with config.new_client_from_config_dict(json.loads(access.kubeconfig)) as api:
        policies = client.NetworkingV1Api(api)
        old = policies.read_namespaced_network_policy("adservice", "shop")
        # a dict is sent as a strategic merge patch, a list as a JSON patch
        dry = policies.patch_namespaced_network_policy("adservice", "shop", OPEN, dry_run="All")
        assert len(dry.spec.ingress) == 1
        new = policies.patch_namespaced_network_policy("adservice", "shop", OPEN)
        assert new.metadata.generation == old.metadata.generation + 1
        port = {"op": "add", "path": "/spec/ingress/0/ports", "value": [{"port": 9}]}
        new = policies.patch_namespaced_network_policy("adservice", "shop", [port])
        assert new.spec.ingress[0].ports[0].protocol == "TCP"
        assert new.metadata.managed_fields[-1].manager == "OpenAPI-Generator"
        with pytest.raises(client.ApiException) as caught:
            policies.replace_namespaced_network_policy("adservice", "shop", old)
        assert caught.value.status == 409
        new.spec = old.spec
        new = policies.replace_namespaced_network_policy("adservice", "shop", new)
        assert new.spec == old.spec
        port["value"] = [{"port": 0}]
        with pytest.raises(client.ApiException, match="must be between 1 and 65535, inclusive"):
            policies.patch_namespaced_network_policy("adservice", "shop", [port])
        with pytest.raises(client.ApiException, match="cannot delete resource"):
            policies.delete_namespaced_network_policy("adservice", "shop")


def administer(access):
    """Create and delete an object as the administrator."""
    with config.new_client_from_config_dict(json.loads(access.kubeconfig)) as api:
        policies = client.NetworkingV1Api(api)
        body = client.V1NetworkPolicy(
            metadata=client.V1ObjectMeta(generate_name="new-"),
            spec=client.V1NetworkPolicySpec(pod_selector=client.V1LabelSelector()),
        )
        made = policies.create_namespaced_network_policy("shop", body)
        assert made.spec.policy_types == ["Ingress"]
        gone = policies.delete_namespaced_network_policy(made.metadata.name, "shop")
        assert gone["status"] == "Success"


def test_python_client_writes_to_the_embedded_cluster():
    async def scene():
        world = boutique()
        async with Embedded() as cluster:
            shop = await cluster.deploy(world)
            async with shop.admit(Caller(os.getpid())):
                await asyncio.to_thread(operate, shop.access)
                await asyncio.to_thread(administer, shop.admin_access)
            sight = await shop.look()
            await shop.close()
        assert sight.reached == world.intended
        others = [one for one in sight.others if "new-" in one]
        assert others == []  # created and deleted objects leave no difference

    asyncio.run(scene())
