"""Training sessions in the worlds of k8s and malt."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from netarena.training.arena import Seat, close_all
from netarena_k8s.query import faults_of, world_of
from netarena_k8s.solution import fenced, patch_command

pytestmark = pytest.mark.xdist_group("training")


@pytest.fixture(scope="module", autouse=True)
def _arenas() -> Iterator[None]:
    yield
    close_all()


def commands(seat: Seat) -> list[str]:
    """Return replies of six kinds, and the solution.

    Patches that break an intended policy, change nothing, are refused, name a policy that does not
    exist, or open a policy; and an observation.
    """
    query = seat.query
    broken = {fault.policy for fault in faults_of(query)}
    name, spec = next(
        (one.name, one.spec)
        for one in world_of(query).policies
        if one.name not in broken and one.spec.get("ingress")
    )
    harm = patch_command(name, spec, {**spec, "ingress": []})
    policy, opened = f"kubectl patch networkpolicy {name}", '{"spec":{"ingress":[{}]}}'
    texts = (
        harm,
        harm.replace("replace", "test").replace("[]", "{}"),
        f"kubectl patch netpol {name} --type=merge -p '{{}}'",
        policy + """ --type=json -p '[{"op":"remove","path":"/x"}]'""",
        """kubectl patch networkpolicy nobody --type=merge -p '{"spec":{}}'""",
        f"kubectl patch networkpolicy/{name} --type merge --patch '{opened}'",
        f"kubectl get networkpolicy {name} -o jsonpath='{{.spec.ingress}}'",
    )
    return [*map(fenced, texts), *seat.application.solve(query)]


def play(seat: Seat, replies: list[str]) -> list[tuple[object, ...]]:
    told: list[tuple[object, ...]] = []
    for reply in replies:
        acted = seat.act(reply)
        told.append((acted, seat.steps[-1].state))
    return told


@pytest.mark.requires("cell")
def test_direct_patch_has_the_same_effects_as_a_patch_with_kubectl(monkeypatch):
    """Outputs, states, verdicts and rewards are equal, whether or not a program ran in between."""
    seats = {way: Seat("k8s", {"patches": way}) for way in ("kubectl", "direct")}
    for seat in seats.values():
        seat.start(3, 1)
    replies = commands(seats["kubectl"])
    told = {way: play(seat, replies) for way, seat in seats.items()}
    assert told["direct"] == told["kubectl"]
    outputs = [step.output for step in seats["direct"].steps]
    assert outputs[0].endswith(" patched\n")
    assert outputs[2].endswith(" patched (no change)\n")
    assert "NotFound" in outputs[4]
    assert told["direct"][0][0].info["harm"]
    for seat in seats.values():
        seat.close()


@pytest.mark.requires("cell")
def test_application_is_restored_with_all_its_resource_versions():
    seat = Seat("k8s", {"patches": "direct"})
    first = seat.start(3, 1)
    look = fenced("kubectl get networkpolicies -o yaml")
    kept = seat.snapshot()
    seen = seat.act(look)
    assert seat.restore(kept) == first
    for reply in commands(seat)[:3]:
        seat.act(reply)
    assert seat.restore(kept) == first
    again = seat.act(look)
    assert re.search(r"resourceVersion: \"\d+\"", again.observation)
    assert again == seen
    assert play(seat, list(seat.application.solve(seat.query)))[-1][0].done
    assert seat.restore(kept) == first
    assert play(seat, list(seat.application.solve(seat.query)))[-1][0].info["solved"]
    seat.close()


@pytest.mark.requires("landlock", "seccomp")
def test_malt_query_can_be_answered_again_from_a_snapshot():
    seat = Seat("malt")
    first = seat.start(3, 0)
    kept = seat.snapshot()
    wrong = seat.act("```python\ndef process_graph(graph_data):\n    raise ValueError\n```")
    assert (wrong.done, wrong.info["kind"]) == (True, "failed")
    assert seat.restore(kept) == first
    right = seat.act(seat.application.solve(seat.query)[0])
    assert (right.done, right.info["solved"], right.info["safe"]) == (True, True, True)
    seat.close()
