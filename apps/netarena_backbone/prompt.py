"""Prompt of a backbone query: documentation, differences from the documentation, earlier turns.

The documentation contains the inventory, the intended state of each zone, and the agreements with
other ASes, which agents cannot look up. It omits settings that agents can read on the machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from string import Template
from typing import Any

from netarena.sdk import (
    CommandLimits,
    PromptParts,
    Query,
    State,
    Step,
    read_examples,
    read_text,
    tell_harm,
    tell_turns,
)
from netarena_backbone.query import Case
from netarena_backbone.state import (
    FAILS,
    MAX_NAMED,
    STANDS,
    WORKS,
    Fact,
    Facts,
    facts_of,
    first,
    misfits,
    only_small,
    read,
)
from netarena_backbone.world.model import Host, Peer, Router, World, bare
from netarena_network.bounds import tell_bounds
from netarena_network.prompt import KEYS, reply_format

PACKAGE = "netarena_backbone"
#: Sort of a fact -> noun for the fact, words for a missing fact, and words for an unintended fact.
_NEIGHBOURS = {
    "adjacency": ("OSPF adjacency", "is missing", "exists, and must not"),
    "session": ("BGP session", "is not established", "is established, and must not be"),
}


def prompt_parts(
    query: Query, case: Case, state: State, steps: Sequence[Step], limits: CommandLimits
) -> PromptParts:
    """Return the parts of the next prompt of a repair query.

    ``state`` is the last settled state, and ``steps`` are the turns so far.
    """
    world = case.world
    rules = Template(read_text(PACKAGE, "rules")).substitute(
        asn=world.asn,
        num_routers=len(world.routers),
        num_others=len(world.outsiders),
        **tell_bounds(len(world.machines)),
        documentation="\n".join(document(case)),
        saving="Configurations need not be saved.",
        **asdict(limits),
    )
    return PromptParts(
        rules=rules,
        reply_format=reply_format(),
        task=query.text,
        situation=tell_misfits(world, case.wanted, state),
        history=tell_turns(steps, KEYS, limits, _tell_change),
        examples=read_examples(PACKAGE),
    )


def tell_misfits(world: World, wanted: Facts, state: State) -> str:
    """Return some differences from the documentation, chosen from each sort of fact in turn."""
    now = facts_of(world, read(state))
    wrong = misfits(wanted, now)
    if not wrong:
        return "Everything that is tested is as documented."
    lines = [f"Not as documented ({len(wrong)}):"]
    lines += [
        f"- {_tell_misfit(world, fact, wanted.get(fact), now.get(fact))}" for fact in first(wrong)
    ]
    if len(wrong) > MAX_NAMED:
        lines.append(f"- and {len(wrong) - MAX_NAMED} more")
    return "\n".join(lines)


def _tell_misfit(world: World, fact: Fact, should: str | None, does: str | None) -> str:
    if fact.sort == "way":
        return f"the path {fact.source} -> {fact.target} is {does or 'direct'}, not {should}"
    if fact.sort == "route":
        if should is None:
            return f"{fact.source} receives {fact.target}: {does}; it must not"
        if does is None:
            return f"{fact.source} does not receive {fact.target}; documented: {should}"
        return f"{fact.source} receives {fact.target}: {does}; documented: {should}"
    if STANDS in {should, does}:
        noun, lost, new = _NEIGHBOURS[fact.sort]
        state = new if should is None else lost
        return f"the {noun} of {fact.source} and {fact.target} {state}"
    size = f" with {world.packet_bytes} bytes" if fact.sort == "full" else ""
    verb = {FAILS: "fails", WORKS: "works, and must not"}[does or FAILS]
    return f"{fact.source} -> {fact.target}{size} {verb}"


def _tell_change(step: Step) -> str:
    """Return a sentence about the effect of a judged step, or "" if the step was not judged."""
    if step.judgement is None or not isinstance(step.judgement.detail, dict):
        return ""
    detail: dict[str, Any] = step.judgement.detail
    changes = [
        f"{word}: {_tell(detail[key], detail[f'num_{key}'])}"
        for key, word in (
            ("harmed", "broke"),
            ("moved", "changed without harm, and now not as documented"),
            ("healed", "repaired"),
        )
        if detail.get(f"num_{key}")
    ]
    told = f"After the command: {'; '.join(changes) or 'unchanged'}."
    harm = [
        one.detail for one in step.judgement.findings if one.rule in {"daemon_ended", "not_settled"}
    ]
    return "\n".join(filter(None, (told, tell_harm(harm))))


def _tell(named: Sequence[str], total: int) -> str:
    return ", ".join(named) + (f" and {total - len(named)} more" if total > len(named) else "")


# documentation


def document(case: Case) -> Iterator[str]:
    """Yield the lines of the documentation."""
    world, wanted = case.world, case.wanted
    yield (
        f"AS {world.asn} has {world.block} for its hosts, and {world.infrastructure} for routers "
        "and links."
    )
    yield "Routers, each with its loopback address (used for BGP and for pings) and interfaces:"
    for router in world.routers:
        cables = ", ".join(_cable(world, router, port.name) for port in router.ports)
        yield f"- {router.name} {router.loopback}: {cables}"
    yield (
        "Hosts by zone. The hosts behind a router of another AS form a zone with the name of that "
        "router:"
    )
    for zone in world.zones:
        hosts = ", ".join(_host(host) for host in world.hosts if host.zone == zone.name)
        yield f"- {zone.name} ({zone.block}): {hosts}"
    yield "Other autonomous systems:"
    for outsider in world.outsiders:
        yield (
            f"- {outsider.router}, AS {outsider.asn}, {outsider.kind}: originates "
            f"{', '.join(outsider.prefixes)}"
            + (
                "; announces all its routes and a default route"
                if outsider.kind == "upstream"
                else ""
            )
        )
        yield from _agreements(world, wanted, outsider.router)
    if world.closed:
        yield "Sessions that must not be established:"
    for name, address in world.closed:
        yield f"- the session of {name} with {address} {_closed(world, name, address)}"
    yield (
        f"Firewall: {world.firewall} tracks the connections that it forwards, and drops packets in "
        "the state INVALID, such as a ping reply whose request it has not seen."
    )
    yield (
        f"Hosts send packets of up to {world.packet_bytes} bytes; {_carried(wanted)}. "
        f"Pings are tested with IP packets of 84 and {world.packet_bytes} bytes that must not be "
        "fragmented (DF is set). The listed pings work; all other pings fail by design. In lists "
        "of pairs, 'a, b -> c, d' means from each of a and b to each of c and d; '/' separates "
        "such groups. Machines of the same zone can ping each other only if the line of that zone "
        "lists the zone itself:"
    )
    yield from _pings(world, wanted)
    yield (
        "Services. Each must answer the hosts of the zones listed in its line, and no other hosts, "
        "not even those of its own zone if the line does not list that zone. Our hosts are tested "
        "with the name of a service, and hosts of other autonomous systems with its address. The "
        "name server may answer any host:"
    )
    yield from _services(world, wanted)
    yield (
        f"OSPF adjacencies: one on each link between two of our routers{_idle(world, wanted)}. BGP "
        "sessions, all of them established:"
    )
    yield from _sessions(wanted)
    yield (
        "Expected paths of pings (the routers that they cross, in order). The path after 'without' "
        "would be used if that link failed; links do not fail during the task:"
    )
    for fact, value in wanted.items():
        if fact.sort == "way":
            backup = case.backups.get((fact.source, fact.target))
            then = backup and f"; without {' - '.join(backup.cable)}: {' '.join(backup.way)}"
            yield f"- {fact.source} -> {fact.target}: {value}{then or ''}"
    known = {prefix for router in world.routers for prefix in router.bgp.networks}
    for prefix in (world.block, *sorted(known - {world.block})):
        origins = [router.name for router in world.routers if prefix in router.bgp.networks]
        yield (
            f"{prefix} is originated by {_list(origins)}, by design. Other border routers "
            "announce it because they learn it through iBGP."
        )
    yield (
        "By design, traffic to and from one AS may use different sessions: a MED, ours or a "
        "neighbour's, may favour one session and our local preference another."
    )
    yield (
        "Announcements: we announce routes of peers and upstreams only to customers. Each router "
        "of another AS receives the following routes (prefix, sender, AS path); 'not used' marks "
        "routes that it receives but does not select:"
    )
    for router in world.outside:
        heard = "; ".join(
            f"{fact.target} {value}"
            for fact, value in wanted.items()
            if fact.sort == "route" and fact.source == router.name
        )
        yield f"- {router.name}: {heard}"
    if case.contingencies:
        yield (
            "Contingencies: a failing link loses its carrier at both ends, so that its adjacency "
            "or session is down. During each contingency, the documentation above still applies, "
            "with these exceptions:"
        )
        for one in case.contingencies:
            yield f"- {one.name}: {'; '.join(exceptions(wanted, case.wanted_in(one)))}."


def _idle(world: World, wanted: Facts) -> str:
    """Return a phrase that lists the links between our routers that are out of service, or ""."""
    standing = {(fact.source, fact.target) for fact in wanted if fact.sort == "adjacency"}
    ends = [(link.one[0], link.other[0]) for link in world.inner_links()]
    idle = [" - ".join(one) for one in ends if one not in standing]
    verb = "is" if len(idle) == 1 else "are"
    return f", except {', '.join(idle)}, which {verb} out of service" if idle else ""


def exceptions(wanted: Facts, lasting: Facts) -> Iterator[str]:
    """Yield sentences about the facts that differ between two documentations.

    ``wanted`` describes the network without failures, and ``lasting`` the network in a contingency.
    """
    wrong = misfits(wanted, lasting)
    ways = [
        f"{fact.source} -> {fact.target}: {lasting[fact] or 'direct'}"
        for fact in wrong
        if fact.sort == "way"
    ]
    if ways:
        yield f"paths {', '.join(ways)}"
    lost = {
        sort: [fact for fact in wrong if fact.sort == sort and fact not in lasting]
        for sort in ("session", "route")
    }
    if lost["session"]:
        yield f"sessions down {list_pairs(lost['session'], ' - ')}"
    for sort, noun in (("ping", "pings"), ("service", "services")):
        facts = [fact for fact in wrong if fact.sort == sort]
        if facts:
            yield f"{noun} lost {list_pairs(facts, ' -> ')}"
    ended: dict[str, list[str]] = {}
    for fact in lost["route"]:
        ended.setdefault(fact.source, []).append(fact.target)
    for router, targets in ended.items():
        yield f"{router} no longer receives {', '.join(targets)}"
    heard: dict[str, list[str]] = {}
    for fact in wrong:
        if fact.sort == "route" and fact in lasting:
            heard.setdefault(fact.source, []).append(f"{fact.target} {lasting[fact]}")
    for router, routes in heard.items():
        yield f"{router} receives {', '.join(routes)}"
    if not wrong or {fact.sort for fact in wrong} == {"adjacency"}:
        yield "no exception"


def list_pairs(facts: Iterable[Fact], between: str) -> str:
    """Return the pairs of source and target of facts as text; sources with the same targets form a
    group."""
    targets: dict[str, list[str]] = {}
    for fact in facts:
        targets.setdefault(fact.source, []).append(fact.target)
    sources: dict[tuple[str, ...], list[str]] = {}
    for source, found in targets.items():
        sources.setdefault(tuple(found), []).append(source)
    return " / ".join(f"{_list(some)}{between}{_list(found)}" for found, some in sources.items())


def _closed(world: World, router: str, address: str) -> str:
    """Return the reason why a session is down by design, as text."""
    peer = next(one for one in world.router(router).bgp.peers if one.address == address)
    if peer.shutdown:
        return "is shut down by design, and must stay shut down"
    return "is down by design, because the other end is not configured yet"


def _cable(world: World, router: Router, port: str) -> str:
    far, _ = world.far[router.name, port]
    return f"{port} {router.port(port).address} to {far}"


def _host(host: Host) -> str:
    held = f" and {', '.join(host.held)}" if host.held else ""
    names = f", name server {host.resolver}" if host.resolver else ""
    return f"{host.name} {host.port.address}{held} (gateway {host.gateway}{names})"


def _agreements(world: World, wanted: Facts, other: str) -> Iterator[str]:
    """Yield the settings that another AS's router requires for its sessions with our routers.

    A session counts as out of service if it is not documented as established and is not closed by
    design. In a change request, such a session is put into service or removed.
    """
    router = world.router(other)
    for peer in router.bgp.peers:
        if peer.asn != world.asn:
            continue
        own = peer.update_source or next(
            bare(port.address) for port in router.ports if _is_there(world, other, port.name, peer)
        )
        terms = [
            *([f"password {peer.password}"] if peer.password else ["no password"]),
            *([f"ttl-security hops {peer.ttl_security}"] if peer.ttl_security else []),
            *([f"ebgp-multihop {peer.multihop}"] if peer.multihop else []),
        ]
        name = peer.description
        is_idle = Fact("session", name, other) not in wanted and (name, own) not in world.closed
        idle = "; out of service" if is_idle else ""
        yield f"  - session {own} with {peer.address} ({name}): {', '.join(terms)}{idle}"


def _is_there(world: World, other: str, port: str, peer: Peer) -> bool:
    far, far_port = world.far[other, port]
    return (
        far == peer.description
        and bare(next(one.address for one in world.machines[far].ports if one.name == far_port))
        == peer.address
    )


def _zones(world: World) -> Mapping[str, str]:
    return {
        **{router.name: "the routers" for router in world.routers},
        **{host.name: host.zone for host in world.hosts},
    }


def _sessions(wanted: Facts) -> Iterator[str]:
    others: dict[str, list[str]] = {}
    for fact in wanted:
        if fact.sort == "session":
            others.setdefault(fact.source, []).append(fact.target)
    for router, met in others.items():
        yield f"- {router} with {_list(met)}"


def _pings(world: World, wanted: Facts) -> Iterator[str]:
    zone_of = _zones(world)
    reached: dict[str, list[str]] = {}
    for fact, value in wanted.items():
        if fact.sort == "ping":
            to = reached.setdefault(zone_of[fact.source], [])
            if value == WORKS and zone_of[fact.target] not in to:
                to.append(zone_of[fact.target])
    for zone, to in reached.items():
        yield f"- {zone} {'reach' if zone == 'the routers' else 'reaches'} {_list(to)}"
    if narrow := only_small(wanted):
        pairs = list_pairs(narrow, " -> ")
        yield f"- exceptions, pings of {world.packet_bytes} bytes that fail by design: {pairs}"


def _carried(wanted: Facts) -> str:
    """Return the sentence of the documentation about the MTUs of links."""
    return "MTUs of links differ" if only_small(wanted) else "links may carry longer ones"


def _services(world: World, wanted: Facts) -> Iterator[str]:
    zone_of = _zones(world)
    for offer in world.offers:
        targets = {
            f"{offer.protocol} {target} {offer.port}" for target in (offer.name, offer.address)
        }
        zones = [
            zone_of[fact.source]
            for fact, value in wanted.items()
            if fact.sort == "service" and fact.target in targets and value == WORKS
        ]
        yield (
            f"- {offer.name} is {offer.address} on {offer.host}, {offer.protocol} port "
            f"{offer.port}: for {_list(dict.fromkeys(zones))}"
        )
    for host in world.hosts:
        for service in host.services:
            if service.name == "dns":
                yield (
                    f"- name server: {service.address} on {host.name}, udp port 53, with the names "
                    "of our services: for all our own zones; queries from other zones are not "
                    "tested"
                )


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "no zone"
