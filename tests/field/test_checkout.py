"""Reported folders of manifests: one row per report, with its source and the result of reading it.

The situations are public; the manifests were written for this test. A row adds files to those of a
small application, or replaces some of its files. It has the expected pairs that may connect and the
expected warning about ignored objects, or the reason why the folder is refused. Results follow what
a real cluster accepts or refuses. Add a row for each new report.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from netarena.errors import ConfigError
from netarena_k8s.source.checkout import read_checkout

WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, ports: [{name: http, containerPort: 8080}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
"""
DB = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: db, ports: [{containerPort: 5432}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {selector: {app: db}, ports: [{port: 5432}]}
"""
BATCH = """
apiVersion: v1
kind: Pod
metadata: {name: batch, labels: {app: batch}}
spec: {containers: [{name: batch}]}
"""
POLICY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: 5432}]
"""
CLOSED = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {}, policyTypes: [Ingress]}
"""
EGRESS = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: out}
spec:
  podSelector: {matchLabels: {app: batch}}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: http}]
"""
SPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {0}}}\n"
DNS = """
apiVersion: v1
kind: Service
metadata: {name: dns, namespace: kube-system}
spec: {selector: {k8s-app: kube-dns}, ports: [{port: 53, protocol: UDP}]}
"""
SHOP = {"web.yaml": WEB, "db.yaml": DB, "batch.yaml": BATCH, "policy.yaml": POLICY}
#: allowed pairs of the unchanged application: web and db have a service, and web has no policy
AS_EVER = "batch>web db>web web>db"


class Refused(NamedTuple):
    """The expected text of the one-line error message."""

    words: str


class Row(NamedTuple):
    """One reported case."""

    source: str
    #: short description
    what: str
    #: files that replace those of the application or are added to them
    files: Mapping[str, str]
    #: pairs that may connect
    comes_to: str | Refused = AS_EVER
    #: expected warning about ignored objects
    told: str = ""


def changed(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


ROWS = (
    # files
    Row("kubernetes/kube-state-metrics#653", "a kustomization, which says neither kind nor version",
        {"kustomization.yaml": "resources: [web.yaml, db.yaml]\n"}),
    Row("kubernetes-sigs/kustomize#738", "a kustomization that says both",
        {"kustomization.yaml": "kind: Kustomization\napiVersion: kustomize.config.k8s.io/v1beta1"}),
    Row("digitalocean/Kubernetes-Starter-Kit-Developers#209", "nothing before the first line of it",
        {"web.yaml": f"---\n{WEB}---\n"}),
    Row("fluxcd/flux#761", "a document that is a comment alone",
        {"web.yaml": f"# the shop's front\n---\n{WEB}"}),
    Row("dotnet/tye#402", "a mark of the order of bytes", {"web.yaml": f"\ufeff{WEB.lstrip()}"}),
    Row("mikefarah/yq#1860", "line ends of Windows", {"web.yaml": WEB.replace("\n", "\r\n")}),
    Row("fabric8io/kubernetes-client#5466", "a tab that indents",
        {"web.yaml": changed(WEB, "  selector: {matchLabels", "\tselector: {matchLabels")},
        Refused("web.yaml cannot be read as YAML: line 6")),
    Row("kgateway-dev/kgateway#1453", "a template of a chart",
        {"templates.yaml": "{{- if .Values.on }}\nkind: Deployment\n{{- end }}\n"},
        Refused("templates.yaml cannot be read as YAML")),
    # namespaces
    Row("kubernetes-sigs/kustomize#880", "a namespace object that nothing lives in",
        {name: text.replace("metadata: {name:", "metadata: {namespace: shop, name:")
         for name, text in SHOP.items()}
        | {"ns.yaml": f"{SPACE.format('shop')}---\n{SPACE.format('monitoring')}"},
        told="no object of the application is in this namespace"),
    Row("kubernetes-sigs/kustomize#880", "a service of another namespace that selects nothing here",
        {"web.yaml": WEB.replace("metadata: {name:", "metadata: {namespace: shop, name:"),
         "dns.yaml": DNS}, told="no workload of the manifests has these labels"),
    Row("kubernetes/kubectl#1178", "the same object in two files", {"web2.yaml": WEB}),
    Row("kubernetes/kubectl#1178", "another form of it in a later file",
        {"web2.yaml": WEB.replace("8080", "8081")},
        told="web.yaml, document 1 (Deployment web): web2.yaml, document 1, replaces it"),
    Row("kubernetes/kubectl#1178", "another policy of the same name in a later file",
        {"z.yaml": CLOSED.replace("closed", "db")}, "",
        "policy.yaml, document 1 (NetworkPolicy db): z.yaml, document 1, replaces it"),
    Row("kubernetes/kubectl#1178", "the same in an earlier file",
        {"a.yaml": CLOSED.replace("closed", "db")},
        told="a.yaml, document 1 (NetworkPolicy db): policy.yaml, document 1, replaces it"),
    Row("kubernetes/kubectl#1178", "an earlier form that no cluster would take",
        {"a.yaml": changed(WEB, "labels: {app: web}", "labels: {app: no}")},
        told="a.yaml, document 1 (Deployment web): web.yaml, document 1, replaces it"),
    Row("kubernetes/kubectl#1178", "one folder below the other: files by their paths",
        {"a/policy.yaml": CLOSED.replace("closed", "db")},
        told="a/policy.yaml, document 1"),
    Row("kubernetes/kubernetes#26202", "a selector that a later file changes",
        {"web2.yaml": WEB.replace("app: web", "app: front")},
        Refused("web2.yaml, document 1 (Deployment web): spec.selector: a cluster does not allow "
                "changes of this field: web.yaml, document 1 contains the same object with "
                "another value")),
    Row("kubernetes/kubernetes#49908", "a pod's ports that a later file changes",
        {"batch2.yaml": changed(BATCH, "{name: batch}]", "{name: batch, ports: "
                                "[{containerPort: 1}]}]")}, Refused("spec: a cluster does not")),
    Row("kubernetes/kubernetes#49908", "a pod's image that a later file changes",
        {"batch2.yaml": changed(BATCH, "{name: batch}]", "{name: batch, image: new}]")},
        told="(Pod batch): batch2.yaml, document 1, replaces it"),
    # lists
    Row("k0sproject/k0s#1211", "a list, which has no name",
        {"policy.yaml": "apiVersion: v1\nkind: List\nitems:\n- " + POLICY.strip().replace(
            "\n", "\n  ")}),
    Row("gavinbunney/terraform-provider-kubectl#52", "several documents of one file",
        {"web.yaml": f"{WEB}---\n{DB}---\n{BATCH}", "db.yaml": "", "batch.yaml": ""}),
    # special words of YAML
    Row("kubernetes/kubernetes#23251", "a label that YAML takes for no text",
        {"web.yaml": changed(WEB, "labels: {app: web}", "labels: {app: web, release: false}")},
        Refused("spec.template.metadata.labels.release")),
    Row("dgkanatsios/CKAD-exercises#88", "the same in a policy, in a word of YAML's own",
        {"policy.yaml": changed(POLICY, "matchLabels: {app: web}", "matchLabels: {access: yes}")},
        Refused("policy.yaml, document 1 (NetworkPolicy db): ")),
    Row("cncf/demo#115", "the same in quotes",
        {"web.yaml": changed(WEB, "labels: {app: web}", 'labels: {app: web, echo: "yes"}')}),
    # policies
    Row("kubernetes/website#4362", "a protocol in small letters",
        {"policy.yaml": changed(POLICY, "{port: 5432}", "{port: 5432, protocol: tcp}")},
        Refused('Unsupported value: "tcp"')),
    Row("kubernetes-client/java#115", "a number in quotes is a name, and no good one",
        {"policy.yaml": changed(POLICY, "{port: 5432}", '{port: "5432"}')},
        Refused("must contain at least one letter")),
    Row("cdk8s-team/cdk8s#2176", "a range from 0 on",
        {"policy.yaml": changed(POLICY, "{port: 5432}", "{port: 0, endPort: 65535}")},
        Refused("must be between 1 and 65535")),
    Row("kubernetes/website#38780", "ports beside the peers: both must hold", {}),
    Row("kubernetes/website#38780", "ports in a rule of their own: either is enough",
        {"policy.yaml": changed(POLICY, "\n    ports:", "\n  - ports:")},
        "batch>db batch>web db>web web>db"),
    Row("projectcalico/cni-plugin#458", "egress by a port's name, and to the name server",
        {"egress.yaml": f"{EGRESS}  - ports: [{{port: 53, protocol: UDP}}]\n"}),
    Row("aws/aws-network-policy-agent#230", "the same without the name server: nobody has a name",
        {"egress.yaml": EGRESS}, "db>web web>db"),
    Row("DandyDeveloper/charts#83", "a namespace that is closed, beside what opens it again",
        {"closed.yaml": CLOSED}, "web>db"),
    Row("microservices-demo/microservices-demo#771", "a closed namespace by an old annotation",
        {"old.yaml": "{apiVersion: v1, kind: Namespace, metadata: {name: shop, annotations: "
         "{net.beta.kubernetes.io/network-policy: '{}'}}}"}),
    Row("cilium/cilium#4513", "a policy of another group's kind",
        {"cilium.yaml": "{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: a},"
         " spec: {}}"}, told="(CiliumNetworkPolicy a): kind: only policies of networking"),
    # services
    Row("zegl/kube-score#144", "a service's port by name", {}),
    Row("kubernetes/website#26790", "a port that no container declares",
        {"web.yaml": changed(WEB, ", ports: [{name: http, containerPort: 8080}]", "")
         .replace("targetPort: http", "targetPort: 8080")}),
    Row("goauthentik/helm#104", "a port by a name that no container has",
        {"web.yaml": changed(WEB, "targetPort: http", "targetPort: web")}, "web>db",
        "(Service web): spec.ports.0.targetPort: 'web' is not a TCP port of Deployment web"),
    # workloads
    Row("metalbear-co/mirrord#2770", "a workload that selects by expressions alone",
        {"web.yaml": changed(WEB, "selector: {matchLabels: {app: web}}",
                             "selector: {matchExpressions: [{key: app, operator: In, values: "
                             "[web]}]}")}),
    Row("metalbear-co/mirrord#2770", "one whose expressions do not fit its own pods",
        {"web.yaml": changed(WEB, "selector: {matchLabels: {app: web}}",
                             "selector: {matchExpressions: [{key: app, operator: NotIn, values: "
                             "[web]}]}")}, Refused("spec.selector: does not match")),
    Row("GoogleCloudPlatform/microservices-demo#166", "a selector that its pods do not have",
        {"web.yaml": changed(WEB, "selector: {matchLabels: {app: web}}",
                             "selector: {matchLabels: {app: web, tier: front}}")},
        Refused("spec.selector: does not match")),
    Row("GoogleCloudPlatform/microservices-demo#166", "no selector at all, as of an old version",
        {"web.yaml": changed(WEB, "  selector: {matchLabels: {app: web}}\n", "")
         .replace("apps/v1", "extensions/v1beta1")}),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.source}: {row.what}")
def test_folder_of_manifests_is_read_or_refused_as_expected(
    row: Row, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, text in {**SHOP, **row.files}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    if isinstance(row.comes_to, Refused):
        with pytest.raises(ConfigError) as refused:
            read_checkout(str(tmp_path))
        assert row.comes_to.words in str(refused.value)
        return
    world = read_checkout(str(tmp_path))
    assert " ".join(sorted(">".join(pair) for pair in world.calls)) == row.comes_to
    assert row.told in caplog.text
    assert bool(row.told) == any(one.levelname == "WARNING" for one in caplog.records)
