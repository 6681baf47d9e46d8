"""A scripted agent that follows a checklist, router by router.

The agent inspects a router, resets every unusual setting, and continues with the next router.
Unusual settings are a shut-down session, a passive port towards a router, slow timers, a small MTU,
a blackhole route for a host's network, and a limit of one prefix. After the last router of a
ticket, the agent declares that the ticket is done.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Network

from netarena.sdk import Cause
from netarena_network.declaration import make_move

_TICKET = "A ticket has come in"
#: Matches only the lines that the checklist needs, because the output of commands is limited in
#: tickets.
_LINES = "^interface|^ ip ospf (passive|hello|dead)|shutdown$|maximum-prefix 1$|blackhole$"
_LOOK = f"vtysh -c 'show running-config' | grep -E '{_LINES}'; ip -o link | sed 's/ qdisc.*/ /'"
_BLOCK = re.compile(r"^AS (\d+) has (\S+) for its hosts", re.MULTILINE)
_ROUTER = re.compile(r"^- (\w+_r\d+) [\d.]+: (.*)$", re.MULTILINE)
_CABLE = re.compile(r"(\S+) \S+ to (\w+_r\d+)")
_CLOSED = re.compile(r"the session of (\S+) with (\S+) is (?:shut down|down) by design")
_PORT = re.compile(r"^interface (\S+)\n((?: .*\n)*)", re.MULTILINE)
_SLOW = re.compile(r"^ ip ospf (hello|dead)-interval (\d+)$", re.MULTILINE)
_SHUT = re.compile(r"^ neighbor (\S+) shutdown$", re.MULTILINE)
_LIMIT = re.compile(r"^  neighbor (\S+) maximum-prefix 1$", re.MULTILINE)
_NOWHERE = re.compile(r"^ip route (\S+) blackhole$", re.MULTILINE)
_NARROW = re.compile(r"^\d+: (\w+-eth\d+)@?\S*: .* mtu (\d+) ", re.MULTILINE)
_SIZE = re.compile(r"^Hosts send packets of up to (\d+) bytes", re.MULTILINE)
#: Usual timers of adjacencies in generated networks.
_TIMERS = {"hello": ("1",), "dead": ("3", "4", "5")}


@dataclass
class Operator:
    """The agent in one conversation; the caller passes each prompt to ``reply`` in turn."""

    _waiting: list[str] | None = None
    _looked_at: str = ""
    _causes: list[Cause] = field(default_factory=list)

    def reply(self, prompt: str) -> str:
        """Return the agent's next reply to a prompt."""
        if self._looked_at:
            machine, self._looked_at = self._looked_at, ""
            found = list(_resets(machine, prompt))
            if found:
                self._causes += [Cause(machine, word) for word in {word for word, _ in found}]
                return _say(machine, "; ".join(command for _, command in found))
        if self._waiting is None or not (self._waiting or _TICKET in prompt):
            self._waiting = [name for name, _ in _ROUTER.findall(prompt)]
        if not self._waiting:
            return json.dumps(make_move(sorted(self._causes)))
        self._looked_at = self._waiting.pop(0)
        return _say(self._looked_at, _LOOK)


def _say(machine: str, command: str) -> str:
    return json.dumps({"machine": machine, "command": command})


def _type(*lines: str) -> str:
    return "vtysh -c 'configure terminal' " + " ".join(f"-c '{line}'" for line in lines)


def _resets(machine: str, prompt: str) -> Iterator[tuple[str, str]]:
    """Yield a pair for each necessary reset of a machine: the word for the cause, and a command."""
    output = prompt.rpartition("\nOutput:\n")[2]
    block = _BLOCK.search(prompt)
    if block is None:
        return
    asn, own = block[1], IPv4Network(block[2])
    size = _SIZE.search(prompt)
    cables = dict(_ROUTER.findall(prompt)).get(machine, "")
    inner = {port for port, _ in _CABLE.findall(cables)}
    closed = {address for router, address in _CLOSED.findall(prompt) if router == machine}
    for port, lines in _PORT.findall(output):
        if port in inner and " ip ospf passive\n" in lines:
            yield "adjacency", _type(f"interface {port}", "no ip ospf passive")
        for timer, value in _SLOW.findall(lines):
            if port in inner and value not in _TIMERS[timer]:
                right = f"ip ospf {timer}-interval {_TIMERS[timer][0]}"
                yield "adjacency", _type(f"interface {port}", right)
    for address in _SHUT.findall(output):
        if address not in closed:
            yield "session", _type(f"router bgp {asn}", f"no neighbor {address} shutdown")
    for address in (one for one in _LIMIT.findall(output) if one not in closed):
        family = "address-family ipv4 unicast"
        line = f"no neighbor {address} maximum-prefix"
        clear = f"vtysh -c 'clear bgp ipv4 unicast {address}'"
        yield "session", f"{_type(f'router bgp {asn}', family, line)}; {clear}"
    for prefix in _NOWHERE.findall(output):
        net = IPv4Network(prefix)
        if net != own and net.subnet_of(own):
            yield "static", _type(f"no ip route {prefix} blackhole")
    for port, mtu in _NARROW.findall(output):
        if size is not None and int(mtu) < int(size[1]):
            yield "size", f"ip link set {port} mtu {size[1]}"
