from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from netarena_k8s.fault.subtle import KINDS_OF_LARGE, methods_of
from netarena_k8s.fault.table import KINDS, WORDS, WORDS_OF_LARGE, Scene, draw_one
from netarena_k8s.source.alter import alter
from netarena_k8s.source.large import estate
from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.model import World

#: label keys of namespaces, and of pods outside the application
BESIDE = {"k8s-app", "app", "kubernetes.io/metadata.name", "purpose", "shop.example/tenant"}


@pytest.fixture(scope="module")
def shop() -> World:
    return estate(random.Random(4), 24, 24)


@pytest.fixture(scope="module")
def altered() -> World:
    """Return a world with connections that only one end allows."""
    rng = random.Random(4)
    return alter(estate(rng, 24, 24), rng)[0]


def labels(value: Any) -> Iterator[tuple[str, str]]:
    """Yield all labels that selectors contain."""
    if isinstance(value, dict):
        for key, one in value.items():
            if key == "matchLabels":
                yield from one.items()
            elif key == "matchExpressions":
                yield from ((each["key"], name) for each in one for name in each["values"])
            else:
                yield from labels(one)
    elif isinstance(value, list):
        for one in value:
            yield from labels(one)


def numbers(value: Any) -> Iterator[int | str]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from (numbers(one) if key != "port" else (one,))
    elif isinstance(value, list):
        for one in value:
            yield from numbers(one)


def test_every_method_of_large_worlds_has_a_description() -> None:
    for kind, methods in KINDS_OF_LARGE.items():
        assert {*methods} <= {**WORDS[kind], **WORDS_OF_LARGE.get(kind, {})}.keys()
    assert KINDS_OF_LARGE.keys() == KINDS.keys()
    assert methods_of(boutique()) is KINDS


@pytest.mark.parametrize(
    ("kind", "method"), [(kind, one) for kind in KINDS_OF_LARGE for one in KINDS_OF_LARGE[kind]]
)
def test_injected_spec_uses_only_labels_and_ports_of_the_application(
    altered: World, kind: str, method: str
) -> None:
    shop = altered
    known = {(key, value) for app in shop.apps for key, value in app.labels.items()}
    ports = {port.number for app in shop.apps for port in app.ports}
    ports |= {port.port for app in shop.apps for port in app.service} | {53, 443, 587}
    names = {port.name for app in shop.apps for port in app.ports}
    rng, made = random.Random(5), 0
    for policy in 3 * shop.policies:
        if made > 12:
            break
        spec = KINDS_OF_LARGE[kind][method](Scene(shop, policy, rng))
        if spec is None or spec == policy.spec:
            continue
        made += 1
        before = {*labels(policy.spec)}
        assert {(k, v) for k, v in {*labels(spec)} - before if k not in BESIDE} <= known
        fresh = {*numbers(spec)} - {*numbers(policy.spec)}
        if kind != "port_range":
            assert fresh <= ports | names
    assert made


def test_some_faults_are_visible_only_in_traffic_outside_the_pairs(shop: World) -> None:
    rng = random.Random(1)
    found = [
        fault
        for policy in shop.policies
        for kind in ("remove_ingress", "peer_label", "add_egress")
        for fault in [draw_one(shop, kind, policy, rng, KINDS_OF_LARGE)]
        if fault is not None
    ]
    alone = [fault for fault in found if fault.stopped and not fault.broken and not fault.opened]
    assert alone
    uses = {str(use) for use in shop.uses}
    assert {name for fault in found for name in fault.stopped} <= uses
    assert all("stopped" in fault.model_dump() for fault in alone)
    assert not any("stopped" in fault.model_dump() for fault in found if not fault.stopped)
