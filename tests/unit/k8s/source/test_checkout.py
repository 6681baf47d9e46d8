"""A folder of manifests whose application has a different structure than Online Boutique."""

from __future__ import annotations

import os
import random
import re
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pytest

from netarena.errors import ConfigError
from netarena_k8s import query as query_module
from netarena_k8s.app import Kubernetes
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.embedded.apiserver.default_objects import objects
from netarena_k8s.fault.table import KINDS, draw
from netarena_k8s.prompt import tell_intent
from netarena_k8s.query import world_of
from netarena_k8s.source import checkout
from netarena_k8s.source.checkout import (
    MAX_APPS,
    MAX_VALUES,
    digest_checkout,
    read_checkout,
    read_workloads,
)
from netarena_k8s.world.boutique import boutique
from tests.fake.deal import deal

APP = """
apiVersion: v1
kind: Namespace
metadata: {name: market, labels: {team: market, kubernetes.io/metadata.name: market}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web-v2, namespace: market}
spec:
  replicas: 3
  selector: {matchLabels: {role: web}}
  template:
    metadata: {labels: {role: web, release: v2}}
    spec:
      serviceAccountName: front
      containers:
      - {name: nginx, image: "nginx:1.27", ports: [{name: http, containerPort: 8080}]}
      - {name: metrics, ports: [{name: metrics, containerPort: 9100}]}
---
# kubectl takes these too
---
apiVersion: v1
kind: Service
metadata: {name: web-public}
spec: {type: NodePort, selector: {role: web}, ports: [{port: 443, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {role: web}
  ports: [{name: http, port: 80, targetPort: http}, {name: metrics, port: 9100}]
---
apiVersion: v1
kind: List
items:
- apiVersion: apps/v1
  kind: StatefulSet
  metadata: {name: db}
  spec:
    serviceName: db
    selector: {matchLabels: {role: db}}
    template:
      metadata: {labels: {role: db}}
      spec: {containers: [{name: postgres, ports: [{containerPort: 5432}]}]}
- {apiVersion: v1, kind: Service, metadata: {name: db},
   spec: {clusterIP: None, selector: {role: db}, ports: [{port: 5432, targetPort: 1}]}}
- apiVersion: apps/v1
  kind: DaemonSet
  metadata: {name: collector}
  spec:
    selector: {matchLabels: {role: collector}}
    template:
      metadata: {labels: {role: collector}}
      spec: {containers: [{name: collector, ports: [{containerPort: 8125, protocol: UDP}]}]}
- {apiVersion: v1, kind: Service, metadata: {name: statsd},
   spec: {selector: {role: collector}, ports: [{port: 8125, protocol: UDP}]}}
- {apiVersion: v1, kind: Service, metadata: {name: mail},
   spec: {type: ExternalName, externalName: mail.example.com}}
- {apiVersion: v1, kind: Pod, metadata: {name: job, labels: {role: job}},
   spec: {containers: [{name: job}]}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {a: b}}
- {apiVersion: v1, kind: ServiceAccount, metadata: {name: front}}
"""
POLICIES = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: market}
spec: {podSelector: {}, policyTypes: [Ingress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec: {podSelector: {matchLabels: {role: web}}, ingress: [{ports: [{port: http}]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db}
spec:
  podSelector: {matchLabels: {role: db}}
  ingress:
  - from: [{podSelector: {matchExpressions: [{key: role, operator: In, values: [web, job]}]}}]
    ports: [{port: 5432}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: collector}
spec:
  podSelector: {matchLabels: {role: collector}}
  ingress: [{from: [{namespaceSelector: {matchLabels: {team: market}}}], ports: &udp [
    {port: 8125, protocol: UDP}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: job}
spec:
  podSelector: {matchLabels: {role: job}}
  policyTypes: [Egress]
  egress:
  - {to: [{podSelector: {matchLabels: {role: db}}}], ports: [{port: 5432}]}
  - ports: [{port: 53, protocol: UDP}]
"""

OPEN = """spec:
  podSelector: {matchLabels: {role: db}}
  ingress: [{from: [{podSelector: {matchLabels: {role: web}}}], ports: [{port: 5432}]}]"""


def write(folder: Path, **files: str) -> str:
    """Write files to a folder.

    In keyword names, ``__`` stands for a slash, ``_`` for a dot, and ``!`` for an underscore.
    """
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".").replace("!", "_")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return str(folder)


@pytest.fixture
def shop(tmp_path):
    folder = tmp_path / "shop"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "x.yaml").write_text("kind: [")
    (folder / "here.yaml").symlink_to("/etc/passwd")
    return write(folder, app_yaml=APP, more__policies_yml=POLICIES, values_yaml="replicas: 3")


def test_manifests_of_any_workload_kind_become_a_world(shop):
    world = read_checkout(shop)
    assert [(app.name, app.workload, app.served_as) for app in world.apps] == [
        ("web-v2", "Deployment", "web"),
        ("db", "StatefulSet", "db"),
        ("collector", "DaemonSet", "statsd"),
        ("job", "Pod", "job"),
    ]
    assert [one.name for one in world.services] == ["web-public"]
    assert world.labels == {"team": "market"}
    assert [policy.name for policy in world.policies] == ["closed", "web", "db", "collector", "job"]
    # web's policy allows ingress from every pod, but job's policy allows egress only to db
    assert set(world.calls) == {
        ("db", "web-v2"),
        ("collector", "web-v2"),
        ("web-v2", "db"),
        ("job", "db"),
        ("web-v2", "collector"),
        ("db", "collector"),
    }
    assert (
        "web-v2 (role=web, release=v2): service web port 80/TCP to pod port 8080 (named http)"
        in tell_intent(world)
    )


def test_checkout_is_deployed_with_its_workload_kinds(shop):
    world = read_checkout(shop)
    addresses = {app.name: f"10.244.0.{n}" for n, app in enumerate(world.apps, start=2)}
    made = list(objects(world, "shop", addresses, datetime(2026, 1, 1, tzinfo=UTC)))
    by_kind: dict[str, dict[str, dict]] = {}
    for one in made:
        by_kind.setdefault(one["kind"], {})[one["metadata"]["name"]] = one
    assert {"web-v2", "db", "collector"} <= {
        *by_kind["Deployment"], *by_kind["StatefulSet"], *by_kind["DaemonSet"]
    }  # fmt: skip
    pods = by_kind["Pod"]
    assert {"db-0", "job"} <= pods.keys()
    assert "ownerReferences" not in pods["job"]["metadata"]
    assert pods["db-0"]["metadata"]["ownerReferences"][0]["kind"] == "StatefulSet"
    (web,) = (one for name, one in pods.items() if name.startswith("web-v2-"))
    assert web["spec"]["serviceAccountName"] == "front"
    assert web["spec"]["containers"][0]["image"] == "nginx:1.27"
    assert web["status"]["containerStatuses"][0]["image"] == "docker.io/library/nginx:1.27"
    services = by_kind["Service"]
    assert services["db"]["spec"]["clusterIP"] == "None"
    assert services["web-public"]["spec"]["ports"][0]["nodePort"] in range(30_000, 32_768)
    assert {"front", "operator", "default"} == by_kind["ServiceAccount"].keys()
    assert by_kind["Endpoints"]["web-public"]["subsets"][0]["ports"] == [
        {"port": 8080, "protocol": "TCP"}
    ]


@pytest.mark.requires("shared")
def test_microservices_demo_gives_the_standard_world(tmp_path, shared_data):
    """The release file and the folder of policies are read; the files next to them are ignored."""
    text = (shared_data / "k8s" / "boutique.yaml").read_text()
    documents = text.split("\n---\n")
    policies = [one for one in documents if "kind: NetworkPolicy" in one]
    folder = write(
        tmp_path,
        **{
            "release__kubernetes-manifests_yaml": "\n---\n".join(
                one for one in documents if one not in policies
            ),
            "kustomize__components__network-policies__kustomization_yaml": (
                "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nresources: []\n"
            ),
            "helm-chart__templates__ad_yaml": "{{- if .Values.ad }}\nkind: {{ x }}\n",
            "kubernetes-manifests__adservice_yaml": documents[3],
        },
    )
    place = tmp_path / "kustomize" / "components" / "network-policies"
    for number, policy in enumerate(policies):
        (place / f"network-policy-{number}.yaml").write_text(
            policy.replace("metadata:\n", "metadata:\n  namespace: YOUR_NAMESPACE\n", 1)
        )
    ours, theirs = boutique(), read_checkout(folder)
    assert sorted(theirs.calls) == sorted(
        (pair.source, pair.target)
        for pair, wanted in zip(ours.pairs, ours.intended, strict=True)
        if wanted
    )
    assert theirs.services == ours.services
    assert len(theirs.pairs) == 121


def test_queries_of_a_checkout_contain_its_world(shop):
    config = KubernetesConfig(num_queries=1, microservice_dir=shop, error_types=("change_port",))
    (query,) = deal(Kubernetes(), config, 1)
    assert world_of(query) == read_checkout(shop)


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_kind_can_be_drawn_on_a_checkout(shop, kind):
    found = [draw(read_checkout(shop), (kind,), random.Random(seed)) for seed in range(3)]
    # no policy of this application has two peers that the fault could join
    assert all(found) == (kind != "joined_peers")


def test_fault_combinations_that_do_not_fit_are_left_out_and_listed_once(
    tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(query_module, "_WORLDS", 3)  # attempts to draw several faults
    first, *_ = POLICIES.split("---")
    policy = first.replace("spec: {podSelector: {}, policyTypes: [Ingress]}", OPEN)
    folder = write(tmp_path / "few", app_yaml=APP, policy_yml=policy)
    app, config = Kubernetes(), KubernetesConfig(num_queries=1, microservice_dir=folder)
    labels = [*app.labels(config), *app.labels(config)]
    # the only policy can have only one fault
    assert labels
    assert not any("+" in label for label in labels)
    assert {query.label for query in app.generate(config, 1)} == set(labels)
    (told,) = [one for one in caplog.messages if "cannot have faults of the kinds" in one]
    assert "remove_ingress+add_ingress, " in told
    given = ("remove_ingress+add_ingress", "add_ingress", "joined_peers")
    with pytest.raises(ConfigError) as caught:
        app.labels(config.model_copy(update={"error_types": given}))
    assert str(caught.value) == (
        "config.error_types: the policies of config.microservice_dir cannot have faults of the "
        "kinds remove_ingress+add_ingress, joined_peers: omit these kinds"
    )
    # a query file gets the same labels, and a ticket has as many faults as fit
    written = config.model_copy(update={"benchmark_path": "queries.jsonl"})
    assert [*app.labels(written)] == labels[: len(labels) // 2]
    ticket = KubernetesConfig.parse({"briefing": "ticket", "microservice_dir": folder})
    assert [*app.labels(ticket)] == ["faults_0", "faults_1"]


def test_checkout_content_determines_the_hash_of_queries(shop):
    before, plain = KubernetesConfig(microservice_dir=shop), KubernetesConfig()
    kept, digest = before.shape_hash(), digest_checkout(shop)
    assert kept != plain.shape_hash()
    path = Path(shop) / "app.yaml"
    path.write_text("# a remark\n" + path.read_text())
    assert (before.shape_hash(), digest_checkout(shop)) == (kept, digest)
    path.write_text(path.read_text().replace("8080", "8081"))
    assert before.shape_hash() != kept


def test_checkout_replaces_only_the_standard_world(shop):
    with pytest.raises(
        ConfigError, match=r"config\.microservice_dir: must be null unless world is 'standard'"
    ):
        KubernetesConfig.parse({"microservice_dir": shop, "world": "varied"})


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 10)}]" for n in range(8)
)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("port: 5432, targetPort: 1", "port: 70000", ("app.yaml, document 6 (Service db): "
         "spec.ports.0.port: Input should be less than or equal to 65535")),
        ("matchLabels: {role: web}}\n  template", "matchLabels: {role: wob}}\n  template",
         "document 2 (Deployment web-v2): spec.selector: does not match"),
        ("{role: web, release: v2}", "{role: web, release: 2}", "metadata.labels.release"),
        ("metadata: {name: db}\n  spec:\n    serv", "metadata: {name: web-v2}\n  spec:\n    serv",
         "(StatefulSet web-v2): metadata.name: another workload has this name"),
        ("metadata: {name: web-v2, namespace: market}", "metadata: {name: w, namespace: mall}",
         "(Deployment w): namespace: the manifests use the namespaces 'mall' and 'market'"),
        ("type: NodePort", "type: Balancer", "spec.type: 'Balancer' is not one of"),
        ("kind: List\nitems:", "kind: List\nitems:\n- 7", "items: each item must be an object"),
        ("kind: List\nitems:", "kind: List\nitems: 7\nx:", "items: must be a list"),
        ("kind: List", "kind: List\n  x: y", "app.yaml cannot be read as YAML: line 35"),
        ("ingress: [{ports", "ingres: [{ports", 'unknown field "spec.ingres"'),
        ("{port: http}", "{port: http_1}", "(NetworkPolicy web): spec.ingress[0].ports[0].port"),
        ("{port: http}", "{port: [1]}", "json: cannot unmarshal array"),
        ("matchLabels: {team: market}", "matchLabels: {kubernetes.io/metadata.name: market}",
         "policies.yml, document 4 (NetworkPolicy collector): namespaceSelector"),
        ("namespaceSelector: {matchLabels: {team: market}}",
         ("namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, "
         "values: [market]}]}"), "has another name here"),
        ("networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web}",
         "extensions/v1beta1\nkind: NetworkPolicy\nmetadata: {name: web}",
         "apiVersion: must be networking.k8s.io/v1"),
        ("replicas: 3\n", f"replicas: 3\n  bomb: {{{BOMB.replace(chr(10), ', ')}}}\n",
         f"app.yaml cannot be read as YAML: more than {MAX_VALUES} values"),
        ("replicas: 3\n", "replicas: &x [*x]\n", f"more than {MAX_VALUES} values"),
        ("replicas: 3\n", "replicas: .inf\n", "(Deployment web-v2): 'inf' is not a JSON value"),
        ("replicas: 3\n", "replicas: {{ .Values.replicas }}\n", ("app.yaml, document 2 (Deployment "
         "web-v2): the collection in line 9 is not a key; keys must be strings")),
        ("replicas: 3\n", "replicas: 3\n{{- if .Values.web }}\n",
         "app.yaml cannot be read as YAML: line 11"),
        ("apps/v1\nkind: Deployment", "v1\nkind: Deployment", "apiVersion: 'v1' has no Deployment"),
        ("replicas: 3\n", "replicas: {~: 1}\n", "'None' is not a key; keys must be strings"),
        ("replicas: 3\n", "replicas: !!bool x\n", "app.yaml cannot be read as YAML: 'x'"),
        ("replicas: 3\n", "replicas: !!int ''\n", "app.yaml cannot be read as YAML: string index"),
        ("replicas: 3\n", f"replicas: {'[' * 500}{']' * 500}\n", "exceeded max depth"),
    ],
)  # fmt: skip
def test_invalid_manifest_is_reported_in_one_line_with_its_location(tmp_path, old, new, told):
    assert (APP + POLICIES).count(old) == 1
    names = {"app_yaml": APP.strip(), "policies_yml": POLICIES.strip()}
    folder = write(tmp_path, **{name: text.replace(old, new) for name, text in names.items()})
    with pytest.raises(ConfigError) as caught:
        read_checkout(folder)
    assert str(caught.value).startswith("config.microservice_dir: ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


#: accepted by a cluster but ignored here: (old, new, message, number of documents)
PASSED = [
    ("targetPort: http", "targetPort: https", ("app.yaml, document 5 (Service web): "
     "spec.ports.0.targetPort: 'https' is not a TCP port of Deployment web-v2"), 1),
    ("selector: {role: collector}, ports", "selector: {role: none}, ports",
     "(Service statsd): spec.selector: no workload of the manifests has these labels", 1),
    ("containers: [{name: postgres", "hostNetwork: true, containers: [{name: postgres",
     "(StatefulSet db): hostNetwork: no policy applies to pods on the host's network", 2),
    ("labels: {role: job}", "labels: {}", "(Pod job): metadata.labels: its pods have no label", 1),
    ("kind: Service\nmetadata: {name: web}", "metadata: {name: web}",
     "document 5 (web): it is not a manifest, because it has no kind", 1),
    ("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: job}",
     "kind: NetworkPolicy\nmetadata: {name: job}",
     "(NetworkPolicy job): it is not a manifest, because it has no apiVersion", 1),
    ("networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: job}",
     "crd.projectcalico.org/v1\nkind: NetworkPolicy\nmetadata: {name: job}",
     ("(NetworkPolicy job): apiVersion: the group crd.projectcalico.org is not the group of "
     "Kubernetes' NetworkPolicy"), 1),
    ("v1\nkind: Service\nmetadata: {name: web}",
     "serving.knative.dev/v1\nkind: Service\nmetadata: {name: web}",
     ("(Service web): apiVersion: the group serving.knative.dev is not the group of Kubernetes' "
     "Service"), 1),
    ("networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: job}",
     "cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: job}",
     "(CiliumNetworkPolicy job): kind: only policies of networking.k8s.io/v1 are read", 1),
    ("metadata: {name: job, labels: {role: job}}",
     "metadata: {name: job, labels: {role: job}, ownerReferences: [{kind: Job, name: job}]}",
     "(Pod job): metadata.ownerReferences: the owner of this object creates it", 1),
    *(("v1, kind: ConfigMap", f"{version}, kind: {kind}",
       f"({kind} settings): kind: workloads of this kind are not read", 0)
      for version, kind in (("batch/v1", "Job"), ("batch/v1", "CronJob"),
                            ("v1", "ReplicationController"))),
    ("v1, kind: ConfigMap, metadata: {name: settings}, data: {a: b}",
     "batch/v1, kind: JobList, items: [{metadata: {name: a}}, {metadata: {name: b}}]",
     "(Job b): kind: workloads of this kind are not read", 1),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "told", "number"), PASSED)
def test_irrelevant_manifest_is_skipped_and_named(tmp_path, caplog, old, new, told, number):
    assert (APP + POLICIES).count(old) == 1
    names = {"app_yaml": APP, "policies_yml": POLICIES}
    folder = write(tmp_path, **{name: text.replace(old, new) for name, text in names.items()})
    world = read_checkout(folder)
    assert len(world.pairs) > 1
    (line,) = caplog.messages
    assert caplog.records[0].levelname == "WARNING"
    assert f"{number + 3} documents are skipped: " in line
    assert told in line
    assert "\n" not in line


def test_skipped_manifests_are_counted_by_kind(tmp_path, caplog):
    caplog.set_level("INFO")
    chart = "name: shop\nreplicas: 2\n"
    folder = write(tmp_path, app_yaml=APP, policies_yml=POLICIES, values_yaml=chart)
    read_checkout(folder)
    assert [(one.levelname, one.message.partition(": ")[2]) for one in caplog.records] == [
        ("INFO", ("4 documents are skipped: without an effect on connections: 1 ConfigMap, "
         "1 Service without a selector, 1 ServiceAccount, 1 no manifest")),
    ]  # fmt: skip
    caplog.clear()
    many = "\n---\n".join(f"{{apiVersion: v2, name: chart{n}}}" for n in range(12))
    write(tmp_path, Chart_yaml=many)
    read_checkout(folder)
    assert "16 documents are skipped" in caplog.text
    assert "; 2 more; without an effect" in caplog.text


def test_manifests_that_a_cluster_accepts_are_accepted(tmp_path):
    known = read_checkout(write(tmp_path / "plain", app_yaml=APP, policies_yml=POLICIES))
    policies = POLICIES.split("---\n")
    items = "".join(
        f"- {textwrap.indent(one.strip(), '  ').strip()}\n".replace(
            "apiVersion: networking.k8s.io/v1\n  kind: NetworkPolicy\n  ", ""
        )
        for one in policies[1:]
    )
    listed = f"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicyList\nitems:\n{items}"
    dashboards = "apiVersion: 1\nproviders: [{name: grafana}]\n"
    template = "Resources:\n  Queue: !Sub {a: !Ref b, c: !GetAtt [d, e], f: !!binary aGk=}\n"
    taken = read_checkout(
        write(
            tmp_path / "taken",
            app_yaml=APP.replace("replicas: 3", "replicas: !!python/object:os.system 3"),
            closed_yaml=f"{policies[0]}status: {{}}\n",
            policies_json=listed,
            Chart_yaml="apiVersion: v2\nname: market\nversion: 1.0.0\noperator: =\n",
            grafana_yaml=dashboards,
            stack_yaml=template,
            panel_json='{"kind": "List", "items": [1, 2]}',
            values_yaml="1.5: .5\n",
            patch_yaml="kind: Deployment\nmetadata: {name: web-v2}\nspec: {replicas: 9}\n",
        )
    )
    assert taken == known


def test_replica_set_is_read_as_a_deployment(tmp_path):
    known = read_checkout(write(tmp_path / "plain", app_yaml=APP, policies_yml=POLICIES))
    text = APP.replace("kind: Deployment", "kind: ReplicaSet")
    folder = write(tmp_path / "set", app_yaml=text, policies_yml=POLICIES)
    assert read_checkout(folder) == known
    assert read_workloads(folder)["web-v2"]["kind"] == "Deployment"


def test_generated_name_is_the_same_each_time(tmp_path):
    pods = "".join(
        "---\n{apiVersion: v1, kind: Pod, metadata: {generateName: once-, labels: {role: job}}, "
        "spec: {containers: [{name: once}]}}\n"
        for _ in range(2)
    )
    names = []
    for place in ("a", "b"):
        folder = write(tmp_path / place, app_yaml=APP, once_yaml=pods, policies_yml=POLICIES)
        names.append([app.name for app in read_checkout(folder).apps][-2:])
        assert set(names[-1]) < read_workloads(folder).keys()
    (first, second), again = names
    assert again == [first, second]
    assert first != second
    assert all(re.fullmatch("once-[a-z0-9]{5}", one) for one in (first, second))


@pytest.mark.parametrize(
    "text",
    [
        "{apiVersion: v2, name: {{ .Values.name }}}",
        "? [a, b]\n: c",
        "limit: .inf\nnone: {~: 1}",
        "{apiVersion: v1, kind: List, items: [{apiVersion: x/v1, kind: Limit, spec: .nan}]}",
    ],
)
def test_values_unknown_to_json_matter_only_in_relevant_manifests(tmp_path, text):
    known = read_checkout(write(tmp_path, app_yaml=APP, policies_yml=POLICIES))
    assert read_checkout(write(tmp_path, other_yaml=text)) == known


def test_service_can_select_by_labels_that_controllers_add(tmp_path):
    services = """
    ---
    apiVersion: v1
    kind: Service
    metadata: {name: db-first}
    spec: {selector: {statefulset.kubernetes.io/pod-name: db-0}, ports: [{port: 5432}]}
    ---
    apiVersion: v1
    kind: Service
    metadata: {name: db-second}
    spec: {selector: {statefulset.kubernetes.io/pod-name: db-1}, ports: [{port: 5432}]}
    """
    text = APP + textwrap.dedent(services)
    world = read_checkout(write(tmp_path, app_yaml=text, policies_yml=POLICIES))
    assert [(one.name, one.app) for one in world.services] == [
        ("web-public", "web-v2"),
        ("db-first", "db"),
    ]


def test_copy_in_the_image_is_read_instead_of_the_given_folder(tmp_path, monkeypatch):
    folder = tmp_path / "copies" / "data" / "shop"
    folder.mkdir(parents=True)
    write(folder, app_yaml=APP, policies_yml=POLICIES)
    known = digest_checkout(str(folder))
    monkeypatch.setenv("NETARENA_MANIFESTS", str(tmp_path / "copies"))
    assert digest_checkout("/data/shop") == known
    with pytest.raises(ConfigError, match="nosuch does not exist"):
        read_checkout("/data/nosuch")


@pytest.mark.timeout(60)
def test_pipe_is_skipped_and_large_files_are_refused_before_parsing(tmp_path, monkeypatch):
    monkeypatch.setattr(checkout, "MAX_VALUES", 20_000)
    folder = write(tmp_path, app_yaml=APP, policies_yml=POLICIES)
    os.mkfifo(tmp_path / "pipe.yaml")
    known = read_checkout(folder)
    assert known.apps
    # the limit applies to all files together, or many files could take unlimited time
    (tmp_path / "a.json").write_text(f"[{'1,' * (20_000 - 100)}1]")
    with pytest.raises(
        ConfigError, match=r"the manifests up to app\.yaml have more than 20000 values"
    ):
        read_checkout(folder)


def test_keys_and_times_are_text_as_in_kubectl(tmp_path):
    labels = "{app: 2020-01-01, 7: a, true: b}"
    policies = f"{POLICIES}---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n"
    policies += f"metadata: {{name: odd}}\nspec: {{podSelector: {{matchLabels: {labels}}}}}\n"
    world = read_checkout(write(tmp_path, app_yaml=APP, policies_yml=policies))
    (odd,) = (one.spec for one in world.policies if one.name == "odd")
    wanted = {"app": "2020-01-01", "7": "a", "true": "b"}
    assert odd["podSelector"]["matchLabels"] == wanted


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "contains no YAML or JSON file"),
        ({"a_yaml": "a: 1"}, "no NetworkPolicy among the manifests"),
        ({"a_yaml": APP}, "no NetworkPolicy among the manifests"),
        ({"release__kubernetes-manifests_yaml": APP, "policies_yaml": POLICIES},
         "kustomize/components/network-policies"),
        ({"a_yaml": POLICIES}, "the manifests must have at least two workloads"),
        ({"a_yaml": POLICIES, "b_yaml": "\n---\n".join(
            f"{{apiVersion: v1, kind: Pod, metadata: {{name: p{n}, labels: {{a: b}}}}, "
            "spec: {containers: [{name: x}]}}" for n in range(MAX_APPS + 1)
        )}, f"{MAX_APPS + 1} workloads"),
    ],
)  # fmt: skip
def test_checkout_without_required_manifests_is_refused(tmp_path, files, told):
    with pytest.raises(ConfigError, match=told):
        read_checkout(write(tmp_path, **files))


def test_missing_checkout_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="nosuch does not exist or is not a folder"):
        read_checkout(str(tmp_path / "nosuch"))
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"bytes\.yaml cannot be read as YAML"):
        read_checkout(str(tmp_path))
