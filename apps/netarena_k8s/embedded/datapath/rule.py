"""Network policies as an nftables ruleset that filters the packets of pods.

This module is a second, independent implementation of the semantics of
``netarena_k8s.world.policy``. The evaluator there computes sets of ports. This module translates
each rule of a policy to nftables lines. If both modules have the same results, both are probably
correct. After a service's address is translated, a packet of a new connection passes the chains of
the sending pod and of the receiving pod:

* A pod has no chain for a direction in which no policy selects it, so all traffic passes.
* In a chain, each peer and port of a rule is a line that accepts the packet (``return``). Other
  packets get a reset or ICMP error, so that a refused connection does not have to time out.
* Replies, and packets of an established TCP connection, are accepted first. Every datagram is
  filtered, because a datagram of an earlier round may have had the same ports.

The table is replaced in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from netarena_k8s.world.block import network_of

Manifest: TypeAlias = Mapping[str, Any]
Labels: TypeAlias = Mapping[str, str]

TABLE = "policies"
#: policy direction -> first letter of chain names, packet field with the peer's address, key of a
#: spec's rules, key of a rule's peers
_DIRECTIONS = {
    "Egress": ("e", "daddr", "egress", "to"),
    "Ingress": ("i", "saddr", "ingress", "from"),
}
_MEETS: Mapping[str, Callable[[str | None, Sequence[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
}


@dataclass(frozen=True)
class Pod:
    """An endpoint with an address. An endpoint without ``namespace`` is outside the cluster, and no
    selector matches it."""

    ip: str
    namespace: str = ""
    labels: Labels = field(default_factory=dict)
    #: (port name, protocol) -> port number
    named: Mapping[tuple[str, str], int] = field(default_factory=dict)


def interface(place: int) -> str:
    """Return the name of the node's interface to a pod, given the pod's index."""
    return f"p{place}"


def ruleset(
    pods: Sequence[Pod], policies: Iterable[Manifest], namespaces: Mapping[str, Labels]
) -> str:
    """Return the policy table for ``nft -f``.

    Policies are API objects. ``namespaces`` maps each namespace to its labels.
    """
    policies = list(policies)
    chains: list[str] = []
    jumps: dict[str, list[str]] = {}
    for direction, (initial, *_) in _DIRECTIONS.items():
        for place, pod in enumerate(pods):
            chosen = [one for one in policies if _isolates(one, direction, pod)]
            if chosen:
                lines = [
                    f"{line} return"
                    for policy in chosen
                    for line in _lines(policy, direction, pod, pods, namespaces)
                ]
                lines += ["meta l4proto tcp reject with tcp reset", "reject"]
                chains.append(_chain(f"{initial}{place}", lines))
                jumps.setdefault(direction, []).append(
                    f"{interface(place)} : jump {initial}{place}"
                )
    forward = ["type filter hook forward priority filter; policy accept;"]
    forward.append("meta l4proto tcp ct state established accept")
    forward.append("ct direction reply accept")
    forward.append("ct state related accept")
    for direction, side in (("Egress", "iifname"), ("Ingress", "oifname")):
        if direction in jumps:
            forward.append(f"{side} vmap {{ {', '.join(jumps[direction])} }}")
    body = "".join([*chains, _chain("forward", forward)])
    # The table is created first, because deleting a missing table would fail.
    return f"table ip {TABLE} {{ }}\ndelete table ip {TABLE}\ntable ip {TABLE} {{\n{body}}}\n"


def translation(services: Iterable[tuple[str, str, int, str, int]]) -> str:
    """Return the nftables table that translates (protocol, service address, port) to (pod address,
    port)."""
    lines = ["type nat hook prerouting priority dstnat; policy accept;"]
    lines += [
        f"ip daddr {address} {protocol.lower()} dport {port} dnat to {target}:{target_port}"
        for protocol, address, port, target, target_port in services
    ]
    return f"table ip services {{\n{_chain('prerouting', lines)}}}\n"


def _chain(name: str, lines: Iterable[str]) -> str:
    return f"chain {name} {{\n" + "".join(f"{line}\n" for line in lines) + "}\n"


def _isolates(policy: Manifest, direction: str, pod: Pod) -> bool:
    spec = policy["spec"]
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    return (
        direction in types
        and policy["metadata"]["namespace"] == pod.namespace
        and _chosen(spec.get("podSelector") or {}, pod.labels)
    )


def _lines(
    policy: Manifest,
    direction: str,
    pod: Pod,
    pods: Sequence[Pod],
    namespaces: Mapping[str, Labels],
) -> Iterator[str]:
    """Yield the nftables matches of a policy's rules for packets from or to ``pod``."""
    _, side, rules_key, peers_key = _DIRECTIONS[direction]
    for rule in policy["spec"].get(rules_key) or []:
        peers = [
            match
            for peer in rule.get(peers_key) or [None]
            for match in _peer(peer, side, policy["metadata"]["namespace"], pods, namespaces)
        ]
        targets = [pod] if direction == "Ingress" else pods
        for match in [
            one for entry in rule.get("ports") or [None] for one in _port(entry, targets)
        ]:
            for peer in peers:
                yield f"{peer} {match}".strip() or "ip version 4"


def _peer(
    peer: Manifest | None,
    side: str,
    namespace: str,
    pods: Sequence[Pod],
    namespaces: Mapping[str, Labels],
) -> Iterator[str]:
    if peer is None:
        yield ""
    elif block := peer.get("ipBlock"):
        network = network_of(block["cidr"])
        if network.version == 4:
            cuts = [network_of(one) for one in block.get("except") or []]
            yield " ".join(
                [f"ip {side} {network}"]
                + [f"ip {side} != {cut}" for cut in cuts if cut.version == 4]
            )
    else:
        spaces = {namespace}
        if (selector := peer.get("namespaceSelector")) is not None:
            spaces = {name for name, labels in namespaces.items() if _chosen(selector, labels)}
        wanted = peer.get("podSelector") or {}
        found = [one.ip for one in pods if one.namespace in spaces and _chosen(wanted, one.labels)]
        if found:
            yield f"ip {side} {{ {', '.join(found)} }}"


def _port(entry: Manifest | None, targets: Sequence[Pod]) -> Iterator[str]:
    if entry is None:
        yield ""
        return
    protocol = entry.get("protocol") or "TCP"
    port = entry.get("port")
    layer = f"meta l4proto {protocol.lower()}"
    if port is None:
        yield layer
    elif isinstance(port, int):
        last = entry.get("endPort")
        yield f"{layer} th dport {port}-{last}" if last else f"{layer} th dport {port}"
    else:
        for one in targets:
            if number := one.named.get((port, protocol)):
                yield f"ip daddr {one.ip} {layer} th dport {number}"


def _chosen(selector: Manifest, labels: Labels) -> bool:
    return (selector.get("matchLabels") or {}).items() <= labels.items() and all(
        _MEETS[one["operator"]](labels.get(one["key"]), one.get("values") or [])
        for one in selector.get("matchExpressions") or []
    )
