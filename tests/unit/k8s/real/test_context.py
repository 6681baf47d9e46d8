"""Reading of kubeconfigs, and reports about clusters that cannot be used."""

import asyncio
import os
from functools import partial

import pytest
import yaml
from k8s_real import unanswered

from netarena.errors import ConfigError, EnvironmentFailed
from netarena.model import Severity
from netarena_k8s.app import Kubernetes
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.real import client, cluster, diagnosis, rbac
from netarena_k8s.real.client import Refused
from netarena_k8s.real.context import check_context, current_context, namespace_of


def kubeconfig(folder, name="config", current="kind-kind", contexts=("kind-kind", "work")):
    file = folder / name
    file.write_text(
        yaml.safe_dump(
            {"current-context": current, "contexts": [{"name": one} for one in contexts]}
        )
    )
    return str(file)


def test_current_context_of_a_readable_kubeconfig_is_the_default_cluster(tmp_path):
    app = Kubernetes()
    assert app.defaults({}) == {}
    assert app.defaults({"KUBECONFIG": str(tmp_path / "none")}) == {}
    assert app.defaults({"KUBECONFIG": kubeconfig(tmp_path)}) == {"cluster": "kind-kind"}


def test_kubeconfigs_are_merged_and_invalid_kubeconfigs_are_reported(tmp_path):
    first = kubeconfig(tmp_path, "first", current=None, contexts=["a"])
    both = f"{first}{os.pathsep}{kubeconfig(tmp_path)}"
    assert current_context(both) == "kind-kind"
    check_context("a", both)
    with pytest.raises(ConfigError, match="'b' must be 'embedded' or a context of"):
        check_context("b", both)
    with pytest.raises(ConfigError, match="has no current-context"):
        current_context(first)
    broken = tmp_path / "broken"
    for text, told in (
        (b"a: [", "is not YAML"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"- 1", "is not a kubeconfig"),
        (b"contexts: 5", "is not a kubeconfig"),
    ):
        broken.write_bytes(text)
        for read in (current_context, partial(check_context, "a"), partial(namespace_of, "a")):
            with pytest.raises(ConfigError, match=told):
                read(str(broken))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"namespace": "x"}, "set cluster too"),
        ({"images": "boutique"}, "set cluster too"),
        (
            {"cluster": "k", "images": "boutique"},
            "set microservice_dir to a checkout of microservices-demo",
        ),
        ({"cluster": "k", "namespace": "x", "concurrency": 2}, "must be 1 if namespace is set"),
        (
            {"cluster": "k", "namespace": "x", "world": "varied"},
            "must be 'standard' if namespace is set",
        ),
        (
            {"cluster": "k", "namespace": "default", "error_types": ["namespace_peer+add_ingress"]},
            "namespace_peer uses default as the other namespace",
        ),
        ({"cluster": "k"}, "'k' must be 'embedded' or a context of"),
    ],
)
def test_invalid_combination_of_config_keys_is_refused(values, told, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path))
    with pytest.raises(ConfigError, match=told):
        diagnosis.check(KubernetesConfig.parse(values))
    diagnosis.check(KubernetesConfig.parse({}))


def test_cluster_that_does_not_answer_is_reported_in_one_line(tmp_path, monkeypatch):
    unanswered(tmp_path, monkeypatch)
    (check,) = diagnosis.diagnose(os.environ)
    assert (check.name, check.ok, check.detail) == (
        "cluster c", False, "its API did not answer within 1 s",
    )  # fmt: skip
    assert diagnosis.diagnose({}) == []


def test_cluster_that_refuses_connections_is_reported_with_the_reason(tmp_path, monkeypatch):
    unanswered(tmp_path, monkeypatch)
    monkeypatch.setattr(diagnosis, "_WITHIN_S", 20.0)
    # this limit applies only to services that shut down
    monkeypatch.setattr(client, "_PARTING_S", 3600.0)
    monkeypatch.setattr(client, "CHECK_S", 0.1)
    monkeypatch.setattr(cluster, "CHECK_S", 0.1)
    (check,) = diagnosis.diagnose(os.environ)
    assert check.detail == "the cluster's API at https://127.0.0.1:1: Connection refused"
    assert check.remedy == "run kubectl get namespaces"
    with pytest.raises(EnvironmentFailed, match=r"https://127\.0\.0\.1:1: Connection refused"):
        asyncio.run(cluster.clean("c"))


def test_unreadable_kubeconfig_is_reported_as_a_note(tmp_path):
    (check,) = diagnosis.diagnose({"KUBECONFIG": str(tmp_path)})
    assert (check.ok, check.severity) == (False, Severity.NOTE)
    assert check.detail == f"KUBECONFIG does not name a readable file: {tmp_path}"


@pytest.mark.parametrize(
    ("context", "allowed", "told"),
    [
        ({}, {None, "default"}, "the API answers and grants all required permissions"),
        ({}, {None}, "the API answers and grants all required permissions"),
        ({"namespace": "mine"}, {"mine"}, "allows one episode at a time, with namespace=mine; "),
        ({}, {"default"}, "allows one episode at a time, with namespace=default; "),
        ({"namespace": "mine"}, {"default"}, ""),
        ({}, set(), ""),
    ],
)  # fmt: skip
def test_report_of_permissions_for_one_namespace_contains_the_config_key_to_set(
    tmp_path, monkeypatch, context, allowed, told
):
    async def missing(_api, namespace, _workloads):
        return [] if namespace in allowed else ["create namespaces"]

    async def get(_api, _path):
        raise Refused(403, "may not be seen")

    unanswered(tmp_path, monkeypatch, **context)
    monkeypatch.setattr(rbac, "missing_rights", missing)
    monkeypatch.setattr(client.Api, "get", get)
    (check,) = diagnosis.diagnose(os.environ)
    assert check.ok == bool(told)
    words = (
        told
        or "the kubeconfig lacks these permissions in namespaces that NetArena creates: "
        "create namespaces"
    )
    assert words in check.detail
    assert check.remedy == ("" if told else "docs/cluster.md lists the rights")


def test_missing_namespace_is_reported_with_the_command_that_creates_it(tmp_path, monkeypatch):
    async def get(_api, path):
        assert path == "/api/v1/namespaces/nope"
        raise Refused(404, "not found")

    unanswered(tmp_path, monkeypatch)
    monkeypatch.setattr(client.Api, "get", get)
    with pytest.raises(ConfigError, match="no namespace nope: kubectl create namespace nope"):
        diagnosis.check(KubernetesConfig.parse({"cluster": "c", "namespace": "nope"}))
