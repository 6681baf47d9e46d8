"""Reported effects of network policies: one row per report, with its source and result.

The situations are public; the policies were written for this test. A row has a policy's spec, a
connection, and whether the connection works. The policy is in the namespace ``shop`` and applies to
the pods of ``db`` unless the spec says otherwise. Add a row for each new report.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from netarena_k8s.world.policy import Endpoint, Port, Rules

NAMESPACES = {"shop": {"team": "a"}, "lab": {"team": "b"}, "kube-system": {}}
WEB = Endpoint("10.0.0.1", "shop", {"app": "web"}, (Port(8080, "TCP", "http"),))
DB = Endpoint("10.0.0.2", "shop", {"app": "db"}, (Port(5432, "TCP", "sql"),))
LAB_WEB = Endpoint("10.0.1.1", "lab", {"app": "web"}, (Port(8080, "TCP", "http"),))
LAB_DB = Endpoint("10.0.1.2", "lab", {"app": "db"}, (Port(5432, "TCP", "sql"),))
DNS = Endpoint("10.0.2.1", "kube-system", {"k8s-app": "kube-dns"}, (Port(53, "UDP", "dns"),))
INTERNET = Endpoint("203.0.113.9")

WEB_PODS = {"podSelector": {"matchLabels": {"app": "web"}}}
TEAM_B = {"namespaceSelector": {"matchLabels": {"team": "b"}}}
ANY_SPACE: dict[str, Any] = {"namespaceSelector": {}}


class Row(NamedTuple):
    """One reported case."""

    source: str
    #: short description
    what: str
    spec: dict[str, Any]
    caller: Endpoint
    callee: Endpoint
    port: int
    works: bool
    protocol: str = "TCP"


ROWS = (
    Row(
        "projectcalico/calico#8049", "egress by the service's port, which the pod does not have",
        {"egress": [{"to": [WEB_PODS], "ports": [{"port": 80}]}], "policyTypes": ["Egress"]},
        DB, WEB, 8080, False,
    ),
    Row(
        "kubernetes/website#8295", "egress by the pod's port, as it must be",
        {"egress": [{"to": [WEB_PODS], "ports": [{"port": 8080}]}], "policyTypes": ["Egress"]},
        DB, WEB, 8080, True,
    ),
    Row(
        "rowanruseler/helm-charts#16", "a named port is that of the pod",
        {"ingress": [{"ports": [{"port": "sql"}]}]},
        WEB, DB, 5432, True,
    ),
    Row(
        "application-stacks/runtime-component-operator#606", "ingress by the service's port",
        {"ingress": [{"from": [TEAM_B], "ports": [{"port": 80}]}]},
        LAB_WEB, DB, 5432, False,
    ),
    Row(
        "ahmetb/kubernetes-network-policy-recipes#27", "both selectors in one peer: both must hold",
        {"ingress": [{"from": [{**TEAM_B, **WEB_PODS}]}]},
        LAB_DB, DB, 5432, False,
    ),
    Row(
        "ahmetb/kubernetes-network-policy-recipes#27", "both hold",
        {"ingress": [{"from": [{**TEAM_B, **WEB_PODS}]}]},
        LAB_WEB, DB, 5432, True,
    ),
    Row(
        "MicrosoftDocs/WSL#2600", "the same in two peers, one dash more: either is enough",
        {"ingress": [{"from": [TEAM_B, WEB_PODS]}]},
        LAB_DB, DB, 5432, True,
    ),
    Row(
        "projectcalico/calico#2789", "pods of a label here, and all of any namespace",
        {
            "egress": [{"to": [WEB_PODS, ANY_SPACE], "ports": [{"port": 8080}]}],
            "policyTypes": ["Egress"],
        },
        DB, LAB_WEB, 8080, True,
    ),
    Row(
        "cilium/cilium#4513", "an empty namespace selector is all pods, and nobody outside",
        {"egress": [{"to": [ANY_SPACE]}], "policyTypes": ["Egress"]},
        DB, INTERNET, 443, False,
    ),
    Row(
        "cilium/cilium#4513", "lookups of such a policy go to the name server",
        {
            "egress": [{"to": [ANY_SPACE], "ports": [{"port": 53, "protocol": "UDP"}]}],
            "policyTypes": ["Egress"],
        },
        DB, DNS, 53, True, "UDP",
    ),
    Row(
        "noironetworks/aci-containers#1487", "who may call is not who may be called",
        {
            "ingress": [{"from": [{**TEAM_B, **WEB_PODS}]}],
            "egress": [{"to": [{**TEAM_B, "podSelector": {"matchLabels": {"app": "db"}}}]}],
            "policyTypes": ["Ingress", "Egress"],
        },
        DB, LAB_WEB, 8080, False,
    ),
    Row(
        "kubernetes/kubernetes#51351", "ingress rules alone isolate no egress",
        {"ingress": [{"from": [WEB_PODS]}]},
        DB, INTERNET, 443, True,
    ),
    Row(
        "kubernetes/website#5529", "without policyTypes egress rules make it egress too",
        {"egress": [{"to": [WEB_PODS]}]},
        DB, INTERNET, 443, False,
    ),
    Row(
        "kubernetes/website#5529", "and ingress in any case, here of nobody",
        {"egress": [{"to": [WEB_PODS]}]},
        WEB, DB, 5432, False,
    ),
    Row(
        "openshift/enhancements#2094", "a policy of egress alone leaves ingress open",
        {"egress": [{"to": [WEB_PODS]}], "policyTypes": ["Egress"]},
        LAB_WEB, DB, 5432, True,
    ),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.source}: {row.what}")
def test_network_policy_allows_the_expected_traffic(row: Row) -> None:
    spec = {"podSelector": {"matchLabels": {"app": "db"}}, **row.spec}
    manifest = {"metadata": {"name": "p", "namespace": "shop"}, "spec": spec}
    rules = Rules([manifest], NAMESPACES)
    assert rules.allow(row.caller, row.callee, row.port, row.protocol) is row.works
