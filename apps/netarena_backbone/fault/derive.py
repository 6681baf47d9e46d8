"""Commands that turn one world into another, derived from their two rendered configurations.

A fault is an edit of a world. The fault's injection turns the fault-free world into the edited
world, and its repair does the reverse. Both have one command line for each machine that differs.
The commands of a requested change turn the currently documented world into the target world.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from netarena_backbone.world.lab_spec import RESOLVER, SERVICES, ZONE
from netarena_backbone.world.model import Host, Router, Rule, World
from netarena_backbone.world.render import (
    frr_conf,
    kernel_route,
    record_line,
    rule_text,
    service_line,
)

#: A machine and a shell command line.
Order: TypeAlias = tuple[str, str]

#: FRR settings with a single value: a new line replaces the old line. Each entry lists the words
#: that name the setting; ``*`` matches any word.
_SINGLE = tuple(
    tuple(words.split())
    for words in (
        "ip ospf cost",
        "ip ospf dead-interval",
        "ip ospf hello-interval",
        "ip ospf network",
        "ospf router-id",
        "bgp router-id",
        "neighbor * remote-as",
        "neighbor * password",
        "neighbor * update-source",
        "neighbor * ebgp-multihop",
        "neighbor * maximum-prefix",
        "set as-path prepend",
        "set community",
        "set local-preference",
        "set metric",
    )
)
#: First word of configuration blocks that can be removed as a whole.
_ROUTE_MAP = "route-map"
#: Operational commands that are necessary for a new setting to take effect; ``{}`` stands for the
#: word at ``*``.
_AFTERWARDS = {
    ("ospf", "router-id"): "clear ip ospf process",
    ("neighbor", "*", "maximum-prefix"): "clear bgp ipv4 unicast {}",
}
#: Default values of interface sysctls, which apply if the machine's commands do not set them.
_UNSET = {"rp_filter": "0"}


def orders(before: World, after: World) -> tuple[Order, ...]:
    """Return a command line for each machine that differs, in the order of the machines in
    ``before``."""
    found = []
    for name, old in before.machines.items():
        new = after.machines[name]
        if old != new:
            words = [*_frr(old, new), *_kernel(old, new), *_files(old, new)]
            found.append((name, "; ".join(words)))
    return tuple(found)


def vtysh(*lines: str) -> str:
    """Return a shell command that enters configuration lines in vtysh.

    Lines that begin with ``!`` are entered afterwards, outside configuration mode.
    """
    configure = [line for line in lines if not line.startswith("!")]
    after = [line[1:] for line in lines if line.startswith("!")]
    typed = ["configure terminal", *configure, *(["end"] if after and configure else []), *after]
    if not configure:
        typed = after
    return "vtysh " + " ".join(f"-c '{line}'" for line in typed)


# FRR


class _Block(NamedTuple):
    """A line of configuration and the blocks indented below it."""

    line: str
    below: list[_Block]


def _frr(old: Router | Host, new: Router | Host) -> Iterator[str]:
    if isinstance(old, Host) or isinstance(new, Host):
        return
    # The removal of a neighbour also removes its lines in address families.
    kept = {peer.address for peer in new.bgp.peers}
    gone = [peer.address for peer in old.bgp.peers if peer.address not in kept]
    lines = [f"no neighbor {address}" for address in gone]
    if gone:
        lines.insert(0, f"router bgp {old.bgp.asn}")
        peers = tuple(peer for peer in old.bgp.peers if peer.address in kept)
        old = old.model_copy(update={"bgp": old.bgp.model_copy(update={"peers": peers})})
    lines += _edit(_parse(frr_conf(old)), _parse(frr_conf(new)))
    if lines:
        yield vtysh(
            *(one for one in lines if one[0] != "!"), *(one for one in lines if one[0] == "!")
        )


def _parse(text: str) -> list[_Block]:
    top: list[_Block] = []
    above: list[tuple[int, list[_Block]]] = [(-1, top)]
    for line in text.splitlines():
        words = line.strip()
        if words in {"exit", "exit-address-family"}:
            continue
        depth = len(line) - len(line.lstrip())
        while above[-1][0] >= depth:
            above.pop()
        block = _Block(words, [])
        above[-1][1].append(block)
        above.append((depth, block.below))
    return top


def _edit(old: Sequence[_Block], new: Sequence[_Block]) -> Iterator[str]:
    """Yield the configuration lines that turn the blocks ``old`` into ``new``, with
    removals first."""
    before, after = ({_slot(one.line): one for one in side} for side in (old, new))
    for slot, block in before.items():
        if slot not in after:
            yield from _remove(block)
    for slot, block in after.items():
        known = before.get(slot)
        below = [*_edit(known.below if known else [], block.below)]
        is_new = known is None or known.line != block.line
        if (is_new and not _is_only_a_place(block)) or below:
            yield block.line
            yield from below
        if is_new:
            yield from _afterwards(block.line)


def _remove(block: _Block) -> Iterator[str]:
    if block.below and not block.line.startswith(_ROUTE_MAP):
        yield block.line
        yield from _edit(block.below, [])
    elif not _is_only_a_place(block):
        yield block.line.removeprefix("no ") if block.line.startswith("no ") else f"no {block.line}"
        yield from _afterwards(block.line)


def _is_only_a_place(block: _Block) -> bool:
    """Return whether a block's first line only opens the block and sets nothing."""
    return block.line.startswith(("interface ", "address-family ", "router "))


def _slot(line: str) -> tuple[str, ...]:
    """Return the words of a line that identify its setting.

    Two lines with equal words set the same setting.
    """
    words = tuple(line.split())
    if words[0] == _ROUTE_MAP:  # name, action, number
        return words[0], words[1], words[3]
    name = _name(words)
    return words[: len(name)] if name else words


def _name(words: Sequence[str]) -> tuple[str, ...]:
    for name in _SINGLE:
        if len(words) > len(name) and all(
            one in {"*", word} for one, word in zip(name, words, strict=False)
        ):
            return name
    return ()


def _afterwards(line: str) -> Iterator[str]:
    words = line.split()
    name = _name(words)
    if command := _AFTERWARDS.get(name):
        yield "!" + command.format(
            *(word for one, word in zip(name, words, strict=False) if one == "*")
        )


# the kernel


def _kernel(old: Router | Host, new: Router | Host) -> Iterator[str]:
    yield from _routes(old, new)
    for one, port in zip(old.ports, new.ports, strict=True):
        if one.address != port.address:
            yield f"ip addr add {port.address} dev {port.name}"
            yield f"ip addr del {one.address} dev {port.name}"
        if one.mtu != port.mtu:
            yield f"ip link set {port.name} mtu {port.mtu}"
    settings, former = dict(new.sysctls), dict(old.sysctls)
    for name in dict.fromkeys((*former, *settings)):
        value = settings.get(name) or _UNSET[name.rpartition(".")[2]]
        if former.get(name) != value:
            yield f"sysctl -w {name}={value}"
    yield from _rules(old.rules, new.rules)


def _routes(old: Router | Host, new: Router | Host) -> Iterator[str]:
    if isinstance(old, Router) and isinstance(new, Router):
        for static in old.kernel_routes:
            if static not in new.kernel_routes:
                yield f"ip route del {kernel_route(static)}"
        for static in new.kernel_routes:
            if static not in old.kernel_routes:
                yield f"ip route add {kernel_route(static)}"


def _rules(old: Sequence[Rule], new: Sequence[Rule]) -> Iterator[str]:
    for rule in old:
        if rule not in new:
            yield f"iptables -D {rule_text(rule)}"
    numbers: dict[str, int] = {}
    for rule in new:
        number = numbers[rule.chain] = numbers.get(rule.chain, 0) + 1
        if rule not in old:
            chain, _, words = rule_text(rule).partition(" ")
            place = f"{chain} {number}" if number > 1 else chain
            yield f"iptables -I {place} {words}"


# files of services


def _files(old: Router | Host, new: Router | Host) -> Iterator[str]:
    if isinstance(old, Router) or isinstance(new, Router):
        return
    yield from _file(
        SERVICES, [*map(service_line, old.services)], [*map(service_line, new.services)]
    )
    yield from _file(
        ZONE, [record_line(*one) for one in old.records], [record_line(*one) for one in new.records]
    )
    if old.resolver != new.resolver:
        yield f"echo {new.resolver} > {RESOLVER}"


def _file(path: str, old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """Yield commands that turn the lines ``old`` of a file into ``new``."""
    gone = [line for line in old if line not in new]
    missing = [line for line in new if line not in old]
    for one, other in zip(gone, missing, strict=False):
        yield f"sed -i 's/^{one}$/{other}/' {path}"
    for line in gone[len(missing) :]:
        yield f"sed -i '/^{line}$/d' {path}"
    for line in missing[len(gone) :]:
        yield f"echo '{line}' >> {path}"
