"""The application's records, failures, variants and operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from netarena.errors import ConfigError
from netarena.model import AgentInfo, Episode, FailureKind, Outcome, Step
from netarena_k8s.app import Kubernetes, _result
from netarena_k8s.cluster import Sight
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.embedded.cluster import Embedded
from netarena_k8s.fault.table import COMBINED, faulty
from netarena_k8s.query import faults_of, world_of
from netarena_k8s.state import make_state
from netarena_k8s.world.model import reach


def test_record_lists_the_pairs_broken_and_repaired_by_each_step() -> None:
    app = Kubernetes()
    config = KubernetesConfig.parse({"error_types": ["remove_ingress"]})
    (query,) = app.generate(config, seed=4)
    world = world_of(query)
    (fault,) = faults_of(query)
    states = [
        make_state(Sight(policies, reach(world, policies)))
        for policies in (faulty(world, [fault]), world.policies)
    ]
    steps = [
        Step(prompt="", refused="the reply contains no command"),
        *(
            Step(prompt="", move="kubectl x", executed=True, state=after,
                 judgement=app.judge(query, states[0], before, after))
            for before, after in (states, states[::-1])
        ),
    ]  # fmt: skip
    episode = Episode(
        query_id=query.id, index=0, label=query.label, level=query.level, role=app.role,
        agent=AgentInfo(name="a"), prompt_type="react", outcome=Outcome.UNSOLVED,
        initial_state=states[0], steps=tuple(steps),
    )  # fmt: skip
    record = app.record(query, episode)
    refused, repaired, undone = record["results"]
    assert refused["llm_command"] == "No command: the reply contains no command"
    assert refused["healed"] == []
    assert [tuple(pair) for pair in repaired["healed"]] == list(fault.broken)
    assert repaired["mismatch_summary"] == "No mismatch."
    assert [tuple(pair) for pair in undone["broke"]] == list(fault.broken)
    assert record["narrowed"] == []
    (detail,) = record["error_detail"]
    assert detail["fault"].startswith("remove_ingress in the policy ")
    # a record contains no reference solution
    assert not detail.keys() & {"repair", "inject"}
    failure = app.explain(query, episode).failure
    assert failure is not None
    assert (failure.kind, failure.rule) == (FailureKind.SAFETY_VIOLATION, "pair_broken")


def test_record_and_outline_show_removed_traffic_outside_the_pairs() -> None:
    app = Kubernetes()
    (query,) = app.generate(KubernetesConfig.parse({"error_types": ["remove_ingress"]}), seed=4)
    world, faults = world_of(query), faults_of(query)
    first, mended, closed = (
        make_state(Sight(policies, reach(world, policies)))
        for policies in (
            faulty(world, faults),
            world.policies,
            # only deny-all applies to the load generator now
            tuple(one for one in world.policies if one.name != "loadgenerator"),
        )
    )
    steps = [
        Step(prompt="", move="kubectl x", executed=True, state=after,
             judgement=app.judge(query, first, before, after))
        for before, after in ((first, mended), (mended, closed))
    ]  # fmt: skip
    episode = Episode(
        query_id=query.id, index=0, label=query.label, level=query.level, role=app.role,
        agent=AgentInfo(name="a"), prompt_type="react", outcome=Outcome.UNSOLVED,
        initial_state=first, steps=tuple(steps),
    )  # fmt: skip
    record = app.record(query, episode)
    assert record["narrowed"] == record["results"][1]["narrowed"] != []
    assert "narrowed" not in record["results"][0]
    assert app.explain(query, episode).slim().outline().noted == ("narrowed",)
    assert app.explain(query, episode.model_copy(update={"steps": ()})).noted == ()


def test_public_scenarios_of_the_reference_use_the_standard_world(
    caplog: pytest.LogCaptureFixture,
) -> None:
    public = {
        "prompt_type": "zeroshot_base",
        "num_queries": 1,
        "max_iterations": 10,
        "benchmark_path": "./error_config.json",
        "output_dir": "./output",
        "regenerate_config": True,
    }
    for folder in ("/microservices-demo", "//microservices-demo", "/microservices-demo/."):
        caplog.clear()
        told = KubernetesConfig.parse({**public, "microservice_dir": folder})
        assert "no /microservices-demo here; the built-in manifests are used" in caplog.text
        assert told.microservice_dir is None
        assert told.shape() == KubernetesConfig.parse(public).shape()
    # a varied world does not use the folder, so no warning is needed
    varied = {"world": "varied", "microservice_dir": "/microservices-demo"}
    assert KubernetesConfig.parse(varied).microservice_dir is None


def test_record_lists_exposed_ports_and_touched_objects() -> None:
    app = Kubernetes()
    (query,) = app.generate(KubernetesConfig.parse({"error_types": ["remove_ingress"]}), seed=4)
    world = world_of(query)
    anything = {"ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "frontend"}}}]}]}
    wide = [
        one.model_copy(update={"spec": {**one.spec, **anything}})
        if one.name == "adservice"
        else one
        for one in world.policies
    ]
    healthy = make_state(Sight(world.policies, world.intended))
    after = make_state(Sight(tuple(wide), reach(world, wide), others=("a pod is gone",)))
    step = Step(prompt="", move="kubectl x", executed=True, state=after,
                judgement=app.judge(query, healthy, healthy, after))  # fmt: skip
    result = _result(world, step)
    assert result["exposed"] == [
        "frontend -> adservice: TCP 1-9554, TCP 9556-65535, all UDP, all SCTP"
    ]
    assert result["touched"] == ["Changed object: a pod is gone"]
    assert "touched" not in _result(world, step.model_copy(update={"judgement": None}))


def test_standard_world_is_flagged_as_solvable_without_observation() -> None:
    flags = {
        world: Kubernetes.baselines.solved_unseen_by(Kubernetes.config_type.parse({"world": world}))
        for world in ("standard", "varied")
    }
    assert flags == {"standard": "blanket", "varied": None}


def test_audit_covers_all_worlds_and_fault_families_that_the_config_does_not_fix() -> None:
    app = Kubernetes()
    found = {(one.world, one.error_types) for one in app.variants(KubernetesConfig.parse({}))}
    families = [None, ("extended",), COMBINED]
    assert found == {(world, one) for world in ("standard", "varied") for one in families}
    (only,) = app.variants(KubernetesConfig.parse({"world": "varied", "error_types": ["ip_block"]}))
    assert (only.world, only.error_types) == ("varied", ("ip_block",))


def test_every_conversation_has_its_own_operator() -> None:
    app = Kubernetes()
    assert app.baselines.heuristic_operator() is not app.baselines.heuristic_operator()


def test_namespace_of_stand_in_images_must_not_be_used_with_real_images() -> None:
    app = Kubernetes()
    wanted = {"cluster": "kind", "namespace": "shop", "microservice_dir": "checkout"}
    standing = KubernetesConfig.model_construct(**wanted, images="standin")
    own = KubernetesConfig.model_construct(**wanted, images="boutique")
    app._clusters[("kind", "shop", None)] = Embedded()
    assert app._taken(standing) is None
    assert app._taken(own.model_copy(update={"namespace": None})) is None
    assert app._taken(own.model_copy(update={"namespace": "other"})) is None
    assert "choose another namespace" in (app._taken(own) or "")


@pytest.mark.parametrize(
    ("kubeconfig", "venue"),
    [
        (None, "the embedded cluster"),
        ("missing", "the embedded cluster: KUBECONFIG does not name a readable file"),
    ],
)
def test_venue_names_the_cluster_and_require_cluster_excludes_the_embedded_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kubeconfig: str | None, venue: str
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    if kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / kubeconfig))
    app = Kubernetes()
    assert app.venue(KubernetesConfig()) == venue
    assert app.venue(KubernetesConfig(cluster="kind-kind")) == "the cluster kind-kind"
    monkeypatch.setattr("netarena_k8s.app.diagnosis.check", lambda config: None)
    app.check(KubernetesConfig())
    with pytest.raises(
        ConfigError, match="require_cluster: is set, but the run would use the embedded"
    ):
        app.check(KubernetesConfig(require_cluster=True))


def test_require_cluster_does_not_change_the_queries() -> None:
    assert KubernetesConfig(require_cluster=True).shape() == KubernetesConfig().shape()


def test_command_line_with_a_kubectl_write_counts_as_configuration():
    assert Kubernetes().configures("kubectl get pods; kubectl apply -f x")
    assert not Kubernetes().configures("kubectl get pods -l run=x")
