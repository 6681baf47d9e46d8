"""Traces and forms of a live network: numbers that may reveal how each machine was set up.

A *setting* of a host is a lock (an intended restriction) or a fault. A *form* is the number of
entries of one shape on a machine. An entry is, for example, a route or a rule of a filter. Its
shape contains no names of machines, no addresses and no numbers from rules.

``collect`` opens the network of a query, runs ``reader`` in the agent's sandbox on every machine to
which the agent has access, and closes the network. These readings are not used as traces:

- symptoms, which influence traffic: flags, state and MTU of links, addresses, destinations and next
  hops of routes, rules and verdicts of filters, values of sysctls, queue disciplines, states of
  sessions and neighbours, and the number of each of these;
- ages of ARP entries on routers: daemons use these entries when they retry a session that is down;
- counters of packets that depend on which pings succeed: interfaces, SNMP, connections. For echo
  requests and replies, only the number per working pair is a feature;
- kernel state that all machines share, and state that the sandbox creates for each command.

All other readings are *traces*. The kinds and number of a machine's entries are a symptom or a
form, so traces are compared only among machines that have the same kinds of entries (``_kind``).
Whether a host has a setting is a form too, so the traces of hosts with and without a setting are
not compared.

Forms are computed for hosts with a setting. Forms of a backbone are computed for all machines from
their configurations (``netarena_backbone.world.form``) and compared among all machines of a role.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from netarena.sdk import (
    RULE,
    Candidate,
    EnvironmentFailed,
    Evidence,
    Execution,
    Move,
    Query,
    State,
    relative,
)

#: Number of timed observations after the first observation.
OBSERVATIONS = 2
#: Name suffix of the role of hosts with a setting.
_SET = "with a setting"
#: Maximum number of characters of a shape in the name of a feature.
SHAPE_CHARS = 80

#: Netlink dump -> attribute that is a trace -> names of the attribute's 32-bit words. Times are in
#: hundredths of a second since the machine started.
_ATTRIBUTES: Mapping[str, Mapping[int, Sequence[str]]] = {
    "link": {35: ("carrier_changes",), 47: ("carrier_ups",), 48: ("carrier_downs",),
             5: ("peer_index",), 13: ("queue_length",), 27: ("group",), 30: ("promiscuity",),
             37: ("peer_namespace",)},
    "addr": {6: ("preferred", "valid", "created", "updated")},
    "route": {12: ("clients", "last_use", "expires", "error", "used")},
    "neigh": {3: ("confirmed", "used", "updated", "references"), 4: ("probes",)},
    "qdisc": {},
}  # fmt: skip
#: Netlink dump -> fields of the message header that are traces, with their positions.
_HEADERS: Mapping[str, Mapping[str, slice]] = {
    "link": {"index": slice(4, 8)},
    "addr": {"index": slice(4, 8)},
    # The protocols of routes show how many routes have each origin. This is a symptom.
    "route": {},
    "neigh": {"index": slice(4, 8)},
    "qdisc": {"handle": slice(8, 12)},
}
#: Keys in FRR's JSON output whose value is a time, an age, a version or a number of events.
_FRR = re.compile(
    r"uptime|age$|timer|msec|version|dropped|established|reset|lastspf|spf|lsaseq|seqnumber"
    r"|linkups|linkdowns|transitions|changes|count|internal|flag|nexthopgroup|update|msgrcvd|msgsent",
    re.IGNORECASE,
)
#: Keys whose value is a number of neighbours, routes or database entries, which is a symptom.
_SIZE = re.compile(r"(nbr|peer|rib|lsa|path|prefix|route)\w*count(er)?$", re.IGNORECASE)
#: Keys whose values are numbers that FRR assigns in ascending order. The count of these numbers
#: is a symptom; gaps between them are not.
_ASSIGNED = re.compile(r"nexthopgroupid$", re.IGNORECASE)
#: Features about the ages of ARP entries. They are not used on routers.
_ARP_AGES = ("neigh.used ", "neigh.confirmed ")
#: In /proc/net/tcp: the port of BGP, and all states except LISTEN.
_BGP = ":00B3"
_STATES = tuple(f"{number:02X}" for number in range(1, 13) if number != 10)
#: Source and target addresses of unanswered connections in ``conntrack -L``, except those of OSPF
#: (listed as unknown protocol) and BGP (port 179).
_UNREPLIED = re.compile(
    r"^(?!unknown )(?!.* [sd]port=179 ).*?src=(\S+) dst=(\S+).*\[UNREPLIED\]", re.MULTILINE
)
_NAME = re.compile(r"\bp\d+_\w+(?:-eth\d+)?")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)*(?:/\d+)?")
_DURATION = re.compile(r"(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?|(\d+):(\d+):(\d+)")

#: The output of ``reader`` on one machine.
Reading = Mapping[str, Any]


class Readable(Protocol):
    """An environment whose network has machines that can run commands."""

    async def open(self) -> State: ...

    async def execute(self, move: Move) -> Execution: ...

    async def observe(self) -> State: ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Scene:
    """The parts of a query's world that are needed to compute its evidence."""

    #: Machine that can be read -> role
    roles: Mapping[str, str]
    #: Machines with a fault.
    faulty: frozenset[str]
    #: Hosts with a setting: a lock (an intended restriction) or a fault.
    shaped: frozenset[str] = frozenset()
    #: Names of the rows and columns of the state's matrix, if the state has a matrix.
    endpoints: Sequence[str] = ()
    #: Machine -> forms that are computed from its configuration.
    forms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


async def collect(query: Query, world: Readable, scene: Scene) -> Evidence:
    """Return the evidence of ``query``; raise EnvironmentFailed if its network cannot be read."""
    command = f"python3 -c {shlex.quote(read_program())}"
    try:
        state = await world.open()
        readings = {}
        for name in scene.roles:
            done = await world.execute({"machine": name, "command": command})
            readings[name] = decode(name, done.output)
        spent = []
        for _ in range(OBSERVATIONS):
            began = time.monotonic()
            await world.observe()
            spent.append(time.monotonic() - began)
    finally:
        await world.close()
    return examine(query, scene, readings, state, spent)


def examine(
    query: Query,
    scene: Scene,
    readings: Mapping[str, Reading],
    state: State,
    spent_s: Sequence[float] = (),
) -> Evidence:
    """Return the evidence in the readings of all machines. This function is pure."""
    traces: dict[str, dict[str, float]] = {}
    echoes, rounds = _echoes(scene, readings, state)
    found = {name: dict(_traces(readings[name])) | echoes.get(name, {}) for name in scene.roles}
    kinds = {
        name: _kind(f"{role} {_SET}" if name in scene.shaped else role, found[name])
        for name, role in scene.roles.items()
    }
    for kind in sorted(set(kinds.values())):
        traces |= relative({name: found[name] for name in found if kinds[name] == kind})
    unreplied = _unreplied(readings)
    for name, own in traces.items():
        own[f"{RULE}unreplied"] = unreplied.get(name, 0.0)
    forms = {name: dict(_forms(readings[name])) for name in scene.roles if name in scene.shaped}
    size = len(scene.endpoints or scene.roles)
    whole = {"observe_s": median(spent_s) / size**2} if spent_s else {}
    if rounds:
        whole[f"{RULE}rounds"] = max(rounds)
        whole["echo.spread"] = max(rounds) - median(rounds)
    return Evidence(
        id=query.id,
        label=query.label,
        wrong=bool(query.actions),
        candidates=(
            *(
                Candidate(name=name, target=name in scene.faulty, role=kind, trace=traces[name])
                for name, kind in kinds.items()
            ),
            *(
                Candidate(
                    name=name,
                    target=name in scene.faulty,
                    role=scene.roles[name],
                    form=dict(form),
                )
                for name, form in scene.forms.items()
                if name in scene.roles
            ),
            *(
                Candidate(name=name, target=name in scene.faulty, role=_SET, form=form)
                for name, form in forms.items()
            ),
        ),
        trace=whole,
    )


def read_program() -> str:
    """Return the source text of ``reader``, for ``python3 -c``."""
    return Path(__file__).with_name("reader.py").read_text(encoding="utf-8")


def decode(name: str, output: str) -> Reading:
    """Decode the output of ``reader`` on a machine; raise EnvironmentFailed if it is invalid."""
    try:
        read: Reading = json.loads(zlib.decompress(base64.b64decode(output.split(maxsplit=1)[0])))
    except (IndexError, ValueError, zlib.error):
        raise EnvironmentFailed(f"{name} cannot be read: {output[-200:]!r}") from None
    return read


# traces


def _traces(read: Reading) -> Iterator[tuple[str, float]]:
    for dump in _ATTRIBUTES:
        for name, value in _dumped(dump, read[dump]):
            if "frr" not in read or not name.startswith(_ARP_AGES):
                yield name, value
    yield from _filters(read["nft"])
    yield from _order("sysctl.inode", list(read["sysctl_inode"].values()))
    files = read["files"]
    if files:
        first = min(seen[0] for seen in files.values())
        for number, what in ((0, "modified"), (1, "changed")):
            for path, seen in files.items():
                yield f"file.{what} {path}", seen[number] - first
        for path, seen in files.items():
            yield f"file.links {path}", seen[6]
            yield f"file.mode {path}", seen[4]
        yield from _order("file.inode", [seen[2] for _, seen in sorted(files.items())])
    for name in ("raw", "packet", "unix", "icmp"):
        yield f"sockets.{name}", float(read["proc"][name].count("\n"))
    yield from _connections(read["proc"]["tcp"])
    if "frr" in read:
        yield from _routing(read)


def _connections(text: str) -> Iterator[tuple[str, float]]:
    """Yield the number of TCP connections in each state, without BGP connections."""
    rows = [line.split() for line in text.splitlines()[1:]]
    states = Counter(row[3] for row in rows if not any(end.endswith(_BGP) for end in row[1:3]))
    for state in _STATES:
        yield f"sockets.tcp {state}", float(states[state])


def _kind(role: str, features: Mapping[str, float]) -> str:
    """Return the role of a machine, followed by a digest of the names of its features.

    The digest omits the names of features of files, because a file that exists only on some
    machines is a trace.
    """
    having = sorted(name for name in features if not name.startswith("file."))
    return f"{role} {zlib.crc32(' '.join(having).encode()):08x}"


def _dumped(dump: str, messages: Sequence[Any]) -> Iterator[tuple[str, float]]:
    """Yield the features of each field's values in all messages of a dump (see ``_order``)."""
    fields: dict[str, list[float]] = {}
    for header, attributes in messages:
        for name, place in _HEADERS.get(dump, {}).items():
            fields.setdefault(name, []).append(int.from_bytes(bytes(header[place]), "little"))
        for number, names in _ATTRIBUTES[dump].items():
            value = attributes.get(str(number))
            words = value if isinstance(value, list) else [] if value is None else [value]
            for name, word in zip(names, words, strict=False):
                fields.setdefault(name, []).append(float(word))
    for name, values in fields.items():
        yield from _order(f"{dump}.{name}", values)


def _order(name: str, values: Sequence[float]) -> Iterator[tuple[str, float]]:
    """Yield features of a series: extremes, spread, order, and the distance of each extreme to the
    next value."""
    if not values:
        return
    rising = sorted(values)
    yield f"{name} least", rising[0]
    yield f"{name} most", rising[-1]
    if len(values) > 1:
        yield f"{name} spread", rising[-1] - rising[0]
        yield f"{name} lead", rising[-1] - rising[-2]
        yield f"{name} lag", rising[1] - rising[0]
        falls = sum(a > b for a, b in pairwise(values))
        yield f"{name} falls", falls / (len(values) - 1)
        yield f"{name} place of most", values.index(rising[-1]) / (len(values) - 1)


def _filters(text: str) -> Iterator[tuple[str, float]]:
    """Yield features of nftables: gaps and order of handles, position of the newest rule, and
    counters of rules."""
    handles: dict[tuple[str, str], list[int]] = {}
    chains: dict[tuple[str, str, str], list[int]] = {}
    packets: list[float] = []
    for entry in _entries(text):
        for kind, one in entry.items():
            if "handle" not in one or kind == "table":
                continue
            table = (one["family"], one["table"])
            handles.setdefault(table, []).append(one["handle"])
            if kind == "rule":
                chains.setdefault((*table, one["chain"]), []).append(one["handle"])
                packets += [
                    part["counter"]["packets"]
                    for part in one["expr"]
                    if isinstance(part, dict) and isinstance(part.get("counter"), dict)
                ]
    if not handles:
        return
    gaps = sum(max(own) - len(own) for own in handles.values())
    falls = sum(a > b for own in chains.values() for a, b in pairwise(own))
    rules = [(handle, place / len(own)) for own in chains.values() for place, handle in
             enumerate(own)]  # fmt: skip
    yield f"{RULE}nft_gaps", float(gaps)
    yield f"{RULE}nft_falls", float(falls)
    if rules:
        yield "nft.place of youngest", max(rules)[1]
        yield (
            "nft.youngest before the end",
            float(sum(handle != max(own) for own in chains.values() for handle in own[-1:])),
        )
    if packets:
        yield from _order("nft.packets", packets)
        yield "nft.packets none", sum(one == 0 for one in packets) / len(packets)


def _routing(read: Reading) -> Iterator[tuple[str, float]]:
    """Yield features of FRR: unsaved configuration lines, ages, versions and numbers of events."""
    shown = dict(read["frr"])
    running = _lines(shown.pop("running"))
    on_disk = _lines(read["frr.conf"])
    if running and on_disk:
        differing = sum(((running - on_disk) + (on_disk - running)).values())
        yield f"{RULE}startup_differs", float(differing)
    for command, value in shown.items():
        fields: dict[str, list[float]] = {}
        for key, number in _leaves(value):
            if _FRR.search(key) and not _SIZE.match(key):
                fields.setdefault(key, []).append(number)
        for key, values in fields.items():
            # Only sessions with a value are used, because a session that is not established is a
            # symptom.
            having = [one for one in values if one]
            name = f"{command.removesuffix(' json')}.{key}"
            if _ASSIGNED.search(key):
                if having:
                    yield f"{name} gaps", max(having) - min(having) + 1 - len({*having})
                continue
            yield from _order(name, having)


def _lines(text: str) -> Counter[str]:
    """Return the number of occurrences of each line of a configuration, without comments and
    headers."""
    passed = ("!", "Building", "Current", "frr version", "end", "log ", "exit")
    stripped = (line.strip() for line in text.splitlines())
    return Counter(line for line in stripped if line and not line.startswith(passed))


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in JSON, each with its nearest key. Durations that are given as text are
    included."""
    if isinstance(value, dict):
        for name, one in value.items():
            # Keys that are addresses or prefixes differ between networks. Therefore the enclosing
            # key is used.
            yield from _leaves(one, key if name[:1].isdigit() else name)
    elif isinstance(value, list):
        for one in value:
            yield from _leaves(one, key)
    elif isinstance(value, bool):
        pass
    elif isinstance(value, int | float):
        yield key, float(value)
    elif isinstance(value, str) and value[:1].isdigit():
        match = _DURATION.fullmatch(value)
        if match and any(match.groups()):
            w, d, h, m, s, hours, minutes, seconds = (int(part or 0) for part in match.groups())
            yield key, float((((w * 7 + d) * 24 + h + hours) * 60 + m + minutes) * 60 + s + seconds)
        elif re.fullmatch(r"[0-9a-f]{8}", value):
            yield key, float(int(value, 16))


def _echoes(
    scene: Scene, readings: Mapping[str, Reading], state: State
) -> tuple[dict[str, dict[str, float]], list[float]]:
    """Return the echo counts of machines whose pairs all work, and each machine's number of sent
    requests per peer.

    The echo counts of other machines are symptoms: a request might lack a route, or might arrive
    although the reply is lost.
    """
    rows = state.get("matrix") if isinstance(state, dict) else None
    if not isinstance(rows, list) or not scene.endpoints:
        return {}, []
    found: dict[str, dict[str, float]] = {}
    sent: list[float] = []
    peers = len(rows) - 1
    for place, name in enumerate(scene.endpoints):
        if name not in readings:
            continue
        counts = _snmp(readings[name]["proc"]["snmp"])
        sent.append(counts.get("OutEchos", 0.0) / peers)
        if all(mark == "1" for mark in (*str(rows[place]), *(str(row)[place] for row in rows))):
            found[name] = {
                "echo.sent_per_peer": sent[-1],
                "echo.replies_per_pair": counts.get("InEchoReps", 0.0) / peers,
                "echo.requests_per_pair": counts.get("InEchos", 0.0) / peers,
            }
    return found, sent


def _snmp(text: str) -> dict[str, float]:
    """Return the kernel's ICMP counters."""
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("Icmp:")]
    if len(lines) != 2:
        return {}
    return {name: float(value) for name, value in zip(*lines, strict=True)}


def _unreplied(readings: Mapping[str, Reading]) -> Counter[str]:
    """Return for each machine the number of its (source, target) pairs with unanswered connections.

    The connection-tracking tables of all machines are read. Connections of routing daemons do not
    count: they show which sessions exist, which is a symptom.
    """
    owner = {
        _dotted(attributes["2"]): name
        for name, read in readings.items()
        for header, attributes in read["addr"]
        if header[0] == 2 and isinstance(attributes.get("2"), int)
    }
    pairs = {
        (owner.get(source, ""), owner.get(target, ""))
        for read in readings.values()
        for source, target in _UNREPLIED.findall(read["conntrack"])
    }
    return Counter(name for pair in pairs for name in pair if name)


def _dotted(address: int) -> str:
    return ".".join(map(str, address.to_bytes(4, "little")))


# forms


def _forms(read: Reading) -> Iterator[tuple[str, float]]:
    """Yield each shape of a machine's entries, with its number of occurrences."""
    yield from ((name, float(count)) for name, count in Counter(_shapes(read)).items())


def _shapes(read: Reading) -> Iterator[str]:
    yield from _filter_shapes(read["nft"])
    for header, attributes in read["route"]:
        if header[4] != 255:  # 255 is the local table, whose entries the kernel creates
            kind = f"type {header[7]} scope {header[6]} protocol {header[5]}"
            yield f"route {header[0]}/{header[1]} {kind} {_keys(attributes)}"
    for header, attributes in read["rule"]:
        protocol = attributes.get("21")
        yield f"rule {header[0]} {header[1]}/{header[2]} {_keys(attributes)} protocol {protocol}"
    for header, attributes in read["neigh"]:
        state = int.from_bytes(bytes(header[8:10]), "little")
        if state & 0xC0:  # PERMANENT or NOARP
            yield f"neighbour {state} {_keys(attributes)}"
    for header, attributes in read["link"]:
        flags = int.from_bytes(bytes(header[8:12]), "little") & 0x3FF
        yield f"link {flags:x} mtu {attributes.get('4')} group {attributes.get('27')}"
    for header, attributes in read["addr"]:
        yield f"address {header[0]}/{header[1]} scope {header[3]} flags {attributes.get('8')}"
    for name, value in read["sysctl"].items():
        yield _shape(f"sysctl {name}={value}")


def _filter_shapes(text: str) -> Iterator[str]:
    for entry in _entries(text):
        for kind, one in entry.items():
            if kind == "rule":
                yield _shape(f"rule {one['chain']} {json.dumps(one['expr'])}")
            elif kind in {"chain", "set"}:
                yield _shape(f"{kind} {one.get('family')} {one.get('table')} {one.get('name')}")


def _keys(attributes: Mapping[str, Any]) -> str:
    return ",".join(sorted(attributes, key=int))


def _entries(text: str) -> list[Any]:
    """Return the entries of nft's JSON output; empty if the text is invalid."""
    try:
        found: list[Any] = json.loads(text)["nftables"]
    except (ValueError, KeyError):
        return []
    return found


def _shape(text: str) -> str:
    """Return ``text`` without names of machines, addresses and numbers in rules."""
    text = _NAME.sub("M", text)
    if not text.startswith("sysctl"):
        text = _NUMBER.sub("#", text)
    return re.sub(r'[\s"{}\[\]:]+', " ", text)[:SHAPE_CHARS]
