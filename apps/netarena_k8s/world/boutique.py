"""Online Boutique as data: twelve applications, their ports, calls, and thirteen policies.

Source: Google's microservices demo (Online Boutique) as the reference implementation deploys it.
``emailservice`` listens on 8080 behind the service's port 5000. ``loadgenerator`` has no service.
``frontend-external`` is a second service of the frontend, which no pair tests. ``deny-all`` selects
every pod, and the policy of each application allows the calls to this application.
"""

from __future__ import annotations

from functools import lru_cache

from netarena_k8s.world.model import App, ContainerPort, Policy, Service, ServicePort, Spec, World

#: name -> (port of the service, port of the pod, name of the service's port), or None for an
#: application without a service
_PORTS: dict[str, tuple[int, int, str] | None] = {
    "frontend": (80, 8080, "http"),
    "adservice": (9555, 9555, "grpc"),
    "cartservice": (7070, 7070, "grpc"),
    "checkoutservice": (5050, 5050, "grpc"),
    "currencyservice": (7000, 7000, "grpc"),
    "emailservice": (5000, 8080, "grpc"),
    "loadgenerator": None,
    "paymentservice": (50051, 50051, "grpc"),
    "productcatalogservice": (3550, 3550, "grpc"),
    "recommendationservice": (8080, 8080, "grpc"),
    "redis-cart": (6379, 6379, "grpc"),
    "shippingservice": (50051, 50051, "grpc"),
}
_CALLS = {
    "frontend": (
        "adservice",
        "cartservice",
        "checkoutservice",
        "currencyservice",
        "productcatalogservice",
        "recommendationservice",
        "shippingservice",
    ),
    "cartservice": ("redis-cart",),
    "checkoutservice": (
        "cartservice",
        "currencyservice",
        "emailservice",
        "paymentservice",
        "productcatalogservice",
        "shippingservice",
    ),
    "recommendationservice": ("productcatalogservice",),
    "loadgenerator": ("frontend",),
}
#: the application that every client may call
_PUBLIC = "frontend"
#: application -> name of its container, if the name is not ``server``
_CONTAINERS = {"loadgenerator": "main", "redis-cart": "redis"}


def _app(name: str) -> App:
    found = _PORTS[name]
    container = _CONTAINERS.get(name, "server")
    if found is None:
        return App(name=name, labels={"app": name}, container=container)
    port, target, word = found
    return App(
        name=name,
        labels={"app": name},
        ports=(ContainerPort(number=target),),
        service=(ServicePort(port=port, target=target, name=word),),
        container=container,
    )


def _policy(name: str) -> Policy:
    spec: Spec = {
        "podSelector": {"matchLabels": {"app": name}},
        "policyTypes": ["Ingress", "Egress"],
        "egress": [{}],
    }
    ports = _PORTS[name]
    if ports is None:
        return Policy(name=name, spec={**spec, "policyTypes": ["Egress"]})
    if name == _PUBLIC:
        return Policy(name=name, spec={**spec, "ingress": [{}]})
    callers = [source for source, targets in _CALLS.items() if name in targets]
    rule = {
        "from": [{"podSelector": {"matchLabels": {"app": caller}}} for caller in callers],
        "ports": [{"port": ports[1], "protocol": "TCP"}],
    }
    return Policy(name=name, spec={**spec, "ingress": [rule]})


@lru_cache(maxsize=1)
def boutique() -> World:
    """Return Online Boutique with its intended policies, as the same frozen object each time."""
    deny = Policy(name="deny-all", spec={"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})
    apps = {name: _app(name) for name in _PORTS}
    external = Service(
        name=f"{_PUBLIC}-external",
        app=_PUBLIC,
        ports=apps[_PUBLIC].service,
        type="LoadBalancer",
    )
    return World(
        apps=tuple(apps.values()),
        services=(external,),
        calls=tuple((source, target) for source, targets in _CALLS.items() for target in targets),
        policies=(deny, *map(_policy, _PORTS)),
    )
