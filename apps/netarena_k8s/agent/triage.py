"""Scripted operator for tickets, as a baseline for queries whose prompt does not name the wrong
connections.

The operator knows only the prompts of its conversation. Its steps are:

- read the cluster once
- compare the allowed connections with the documentation
- repair a wrong connection with a rule that allows nothing else, and read the resulting policy
- repeat until all connections are right, then declare the ticket finished and name the
  changed policies

It checks whole connections, not the sender's and the receiver's policy separately. A fault can hide
another fault of the same connection. The agent finds the hidden fault only after the first repair,
which is too late if the order of repairs matters.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, TypeAlias, cast

from netarena.sdk import MAX_TICKET_OUTPUT_CHARS, Cause
from netarena_k8s.catalogue import read_names
from netarena_k8s.declaration import write_claim
from netarena_k8s.solution import fenced, patch_command
from netarena_k8s.world.model import App, ContainerPort, Net, Policy, ServicePort, Spec, World
from netarena_k8s.world.plan import Grant, Group, Guest, Partner, Plan, Use
from netarena_k8s.world.policy import EGRESS, INGRESS, selects

SpecDict: TypeAlias = dict[str, Any]
#: maximum number of characters of an unpacked dump
_MAX_CHARS = 4_000_000


def _lines(kind: str, *fields: str) -> str:
    """Return a command that prints one line per object. A line starts with the first letter of the
    kind and the name, followed by the fields, all separated by tabs."""
    shown = "".join(rf'{{"\t"}}{{{one}}}' for one in fields)
    items = rf'{{range .items[*]}}{kind[0]}{{.metadata.name}}{shown}{{"\n"}}{{end}}'
    return f"kubectl get {kind} -o jsonpath='{items}'"


#: length in characters of one part of the compressed output of ``DUMP``
_PIECE_CHARS = MAX_TICKET_OUTPUT_CHARS - 100
DUMP = "( {} ) | gzip -9n | base64 -w0".format(
    "; ".join(
        (
            _lines(
                "deployments",
                ".spec.template.metadata.labels",
                ".spec.template.spec.containers[0].ports",
            ),
            _lines("services", ".spec.ports"),
            _lines("networkpolicies", ".spec"),
        )
    )
)
_PACKED = re.compile(r"[A-Za-z0-9+/=]+$", re.MULTILINE)
_KEYS = re.compile(r"\(label (\S+) of its pod: .*? and has a role \(label (\S+):")
_SPACE = re.compile(r"The namespace is labelled ([^=\s]+)=(\S+?)\. Each")
_SERVICE = re.compile(r"- (\S+): (.+)")
_GRANT = re.compile(
    r"- (?P<source>.+?) must be able to connect"
    r"(?: on port (?P<port>\d+)/(?P<protocol>\w+))? to: (?P<target>.+)\."
)
_GUEST = re.compile(
    r"(\S+) \(pods ([^=]+)=(\S+) in the namespace (\S+), labelled ([^=]+)=([^)]+)\)"
)
_PARTNER = re.compile(r"(.+) \((\S+), outside the cluster\)")


@dataclass
class Triage:
    """The operator in one conversation. Call ``reply`` with each prompt in turn."""

    _world: World | None = None
    _packed: str = ""
    _pieces: int = 0
    _policies: dict[str, SpecDict] = field(default_factory=dict)
    _causes: dict[str, str] = field(default_factory=dict)
    _sent: set[str] = field(default_factory=set)

    def reply(self, prompt: str) -> str:
        """Return the next command. Raises ValueError if the prompt has no intended state."""
        if self._world is None:
            output = prompt.rpartition("\nOutput:\n")[2] if self._pieces else ""
            piece = found[0] if (found := _PACKED.match(output)) else ""
            self._packed += piece
            if self._pieces == 0 or len(piece) == _PIECE_CHARS:
                start = self._pieces * _PIECE_CHARS
                self._pieces += 1
                return fenced(f"{DUMP} | cut -c{start + 1}-{start + _PIECE_CHARS}")
            self._world, self._policies = read_shop(prompt, self._packed)
        else:
            self._look_again(prompt)
        net = Net(self._world, [Policy(name=n, spec=s) for n, s in self._policies.items()])
        for name, spec, word in _repairs(self._world, net, self._policies):
            command = f"{patch_command(name, self._policies[name], spec)} && {_show(name)}"
            if command not in self._sent:
                self._sent.add(command)
                self._causes.setdefault(name, word)
                return fenced(command)
        # The operator has no other repair to try, so it reads the cluster until the turns are used
        # up.
        if any(_misfits(self._world, net)):
            return fenced(f"{DUMP} | cut -c1-{_PIECE_CHARS}")
        return fenced(write_claim(Cause(*cause) for cause in self._causes.items()))

    def _look_again(self, prompt: str) -> None:
        """Update the known spec of the policy that the last command patched. The new spec is in the
        output that the prompt shows."""
        name, _, spec = prompt.rpartition("\nOutput:\n")[2].partition("\t")
        name = name.rpartition("\n")[2]
        if name in self._policies:
            self._policies[name] = json.loads(spec.partition("\n")[0])


def _show(name: str) -> str:
    return (
        f"""kubectl get networkpolicy {name} -o jsonpath='{{.metadata.name}}{{"\\t"}}{{.spec}}'"""
    )


def read_shop(prompt: str, packed: str) -> tuple[World, dict[str, SpecDict]]:
    """Return the world that a dump and the documentation in a prompt describe, and the dump's
    policies by name.

    Raises ValueError if the dump or the documentation cannot be read.
    """
    apps, policies = read_cluster(packed)
    space = _SPACE.search(prompt)
    plan, calls = read_documents(prompt, apps)
    world = World(
        apps=tuple(apps),
        calls=tuple(calls),
        policies=(),
        labels={} if space is None else {space[1]: space[2]},
        plan=plan,
    )
    return world, policies


def read_cluster(packed: str) -> tuple[list[App], dict[str, SpecDict]]:
    """Return the applications, and the policies' specs by name, in a dump. Raises ValueError if the
    dump cannot be read."""
    try:
        with gzip.open(BytesIO(base64.b64decode(packed))) as file:
            text = file.read(_MAX_CHARS).decode()
    except (binascii.Error, OSError, EOFError) as error:
        raise ValueError(f"the dump cannot be read: {error}") from None
    rows: dict[str, dict[str, list[Any]]] = {"d": {}, "s": {}, "n": {}}
    for line in filter(None, text.split("\n")):
        name, *fields = line[1:].split("\t")
        rows[line[0]][name] = [json.loads(one) if one else None for one in fields]
    apps = [
        App(
            name=name,
            labels=labels,
            ports=tuple(
                ContainerPort(
                    number=one["containerPort"],
                    protocol=one.get("protocol", "TCP"),
                    name=one.get("name", ""),
                )
                for one in ports or ()
            ),
            service=tuple(
                ServicePort(
                    port=one["port"],
                    target=one["targetPort"],
                    protocol=one.get("protocol", "TCP"),
                    name=one.get("name", ""),
                )
                for one in (rows["s"].get(name) or [()])[0]
            ),
        )
        for name, (labels, ports) in rows["d"].items()
    ]
    return apps, {name: spec for name, (spec,) in rows["n"].items()}


def read_documents(prompt: str, apps: Sequence[App]) -> tuple[Plan, list[tuple[str, str]]]:
    """Return the intended state in a prompt: the plan, with its grants of further connections, and
    the calls as (client, server).

    Raises ValueError if the prompt has no intended state.
    """
    keys = _KEYS.search(prompt)
    told = prompt.partition("Intended state:")[2].partition(
        "Every connection between applications"
    )[0]
    if keys is None or not told:
        raise ValueError("the prompt lists no teams and roles")
    bare = Plan(team_key=keys[1], role_key=keys[2], grants=())
    guests: dict[str, Guest] = {}
    partners: dict[str, Partner] = {}
    labels = {app.name: app.labels for app in apps}

    def ends(text: str) -> list[Group | str]:
        if found := _GUEST.fullmatch(text):
            guests[found[1]] = Guest(
                name=found[1],
                labels={found[2]: found[3]},
                space=found[4],
                space_labels={found[5]: found[6]},
            )
            return [found[1]]
        if found := _PARTNER.fullmatch(text):
            partners[found[1]] = Partner(name=found[1], cidr=found[2])
            return [found[1]]
        return [Group(labels=labels[name]) for name in read_names(text, bare, apps)]

    grants, calls = [], []
    services, _, further = told.partition("Further connections:")
    for line in further.split("\n"):
        if found := _GRANT.fullmatch(line):
            grants += [
                Grant(
                    source=source,
                    target=target,
                    port=found["port"] and int(found["port"]),
                    protocol=found["protocol"] or "TCP",
                )
                for source in ends(found["source"])
                for target in ends(found["target"])
            ]
    for line in services.split("\n"):
        if found := _SERVICE.fullmatch(line):
            names = read_names(found[2], bare, apps)
            calls += [(source, found[1]) for source in names if source != found[1]]
    plan = bare.model_copy(
        update={
            "grants": tuple(grants),
            "guests": tuple(guests.values()),
            "partners": tuple(partners.values()),
        }
    )
    return plan, calls


def _granted(world: World) -> list[bool]:
    """Return whether each pair should work according to the documentation."""
    calls = {*world.calls}
    return [(pair.source, pair.target) in calls for pair in world.pairs]


#: policy name, new spec of the policy, and the word for its fault in a declaration
Repair: TypeAlias = tuple[str, SpecDict, str]


def _misfits(world: World, net: Net) -> Iterator[tuple[Use, bool]]:
    """Yield each connection that is not as intended, and whether it should work."""
    wanted = zip(world.needs, _granted(world), strict=True)
    for use, right in [*wanted, *((use, True) for use in world.uses)]:
        if use is not None and net.allows(use) != right:
            yield use, right


def _repairs(world: World, net: Net, policies: Mapping[str, SpecDict]) -> Iterator[Repair]:
    """Yield repairs of all wrong connections. Repairs of blocked connections come first, and the
    receiver's policies before the sender's."""
    lacking: dict[tuple[str, str], list[Use]] = {}
    opened = []
    for use, right in _misfits(world, net):
        if not right:
            opened.append(use)
            continue
        for direction, passes in ((INGRESS, net.enters), (EGRESS, net.leaves)):
            if not passes(use):
                end = use.target if direction == INGRESS else use.source
                lacking.setdefault((direction, end), []).append(use)
    for (direction, name), uses in sorted(lacking.items(), key=lambda one: one[0][0] == EGRESS):
        if name in world.by_name:
            yield from _let(world, net, policies, direction, name, uses)
    for use in opened:
        yield from _shut(world, policies, use)


def _let(  # noqa: PLR0913, PLR0917 -- the parts of a rule
    world: World,
    net: Net,
    policies: Mapping[str, SpecDict],
    direction: str,
    name: str,
    uses: Sequence[Use],
) -> Iterator[Repair]:
    """Yield repairs that allow exactly the connections ``uses``, preferably in policies that select
    only the application ``name``."""
    key, peers = ("ingress", "from") if direction == INGRESS else ("egress", "to")
    rules = [
        {
            peers: [_peer(world, use.source if direction == INGRESS else use.target)],
            "ports": [{"port": use.port, "protocol": use.protocol}],
        }
        for use in uses
    ]
    if direction == EGRESS and not net.resolves(name):
        servers = {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        }
        rules.append({"to": [servers], "ports": [{"port": 53, "protocol": "UDP"}]})
    word = "missing" if direction == INGRESS else "egress"
    own = {policy: spec for policy, spec in policies.items() if _about(world, spec) == [name]}
    for policy, spec in own.items():
        if direction in spec["policyTypes"]:
            yield policy, {**spec, key: [*(spec.get(key) or []), *rules]}, word
    # Adding the direction to ``policyTypes`` would put its existing rules into effect too, so they
    # are replaced.
    for policy, spec in own.items():
        if direction not in spec["policyTypes"]:
            yield policy, {**spec, "policyTypes": [INGRESS, EGRESS], key: rules}, "types"
    labels = world.by_name[name].labels
    for policy, spec in policies.items():
        wanted = (spec.get("podSelector") or {}).get("matchLabels") or {}
        if wanted and not _about(world, spec) and {*wanted.items()} & {*labels.items()}:
            yield policy, {**spec, "podSelector": {"matchLabels": dict(labels)}}, "selector"


def _shut(world: World, policies: Mapping[str, SpecDict], use: Use) -> Iterator[Repair]:
    """Yield repairs that remove the peers that wrongly allow a connection.

    Peers that match several applications are replaced with peers for the permitted applications.
    """
    labels = world.by_name[use.source].labels
    for policy, spec in policies.items():
        if use.target not in _about(world, spec) or INGRESS not in spec["policyTypes"]:
            continue
        rules, changed = [], False
        for rule in spec.get("ingress") or []:
            probe = Policy(name="probe", spec={**_only(spec), "ingress": [rule]})
            if not Net(world, [probe]).enters(use):
                rules.append(rule)
                continue
            changed = True
            right = {
                pair.source
                for pair, wanted in zip(world.pairs, _granted(world), strict=True)
                if wanted and pair.target == use.target
            }
            kept = []
            for peer in rule.get("from") or [{"podSelector": {}}]:
                if not _selects(peer, labels):
                    kept.append(peer)
                    continue
                named = sorted(
                    app.name
                    for app in world.apps
                    if app.name in right and _selects(peer, app.labels)
                )
                kept += [_peer(world, one) for one in named]
            if kept:
                rules.append({**rule, "from": kept})
        if changed:
            yield policy, {**spec, "ingress": rules}, "extra"


def _only(spec: SpecDict) -> Spec:
    return {"podSelector": spec.get("podSelector") or {}, "policyTypes": ["Ingress"]}


def _selects(peer: SpecDict, labels: Mapping[str, str]) -> bool:
    return "ipBlock" not in peer and selects(peer.get("podSelector") or {}, labels)


def _about(world: World, spec: SpecDict) -> list[str]:
    """Return the applications that a policy selects, or an empty list for a policy that selects all
    pods."""
    selector = spec.get("podSelector") or {}
    return [app.name for app in world.apps if selector and selects(selector, app.labels)]


def _peer(world: World, name: str) -> SpecDict:
    plan = cast("Plan", world.plan)
    if name in world.by_name:
        return {"podSelector": {"matchLabels": dict(world.by_name[name].labels)}}
    for guest in plan.guests:
        if guest.address == name:
            return {
                "namespaceSelector": {"matchLabels": dict(guest.space_labels)},
                "podSelector": {"matchLabels": dict(guest.labels)},
            }
    (cidr,) = (one.cidr for one in plan.partners if one.address == name)
    return {"ipBlock": {"cidr": cidr}}
