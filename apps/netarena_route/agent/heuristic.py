"""Scripted agent with a checklist; its results serve as a measure of difficulty.

The agent knows only the prompts of its conversation and follows a runbook. It inspects a machine,
resets all entries that differ from the plan or from the defaults, and continues with the next
machine. It inspects links, addresses, rules, routes, filters and two sysctls. The router comes
first, then the hosts with the most failed pings. In a ticket, the agent visits the machines that
the ticket names. After the last machine, it declares that the ticket is done. The agent never finds
faults in other settings (queues, ARP, nftables, other tables of iptables, routing tables except
main, other sysctls).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Interface, IPv4Network
from itertools import permutations

from netarena.sdk import Cause
from netarena_network.declaration import make_move

_MARK = "=="
_LOOK = f"; echo {_MARK}; ".join(
    (
        "ip -o link",
        "ip -o -4 address",
        "ip rule",
        "ip route",
        "iptables -S",
        "sysctl net.ipv4.ip_forward net.ipv4.icmp_echo_ignore_all",
    )
)
_MTU = "1500"
_LOOPBACK = "127.0.0.1/8"

_SUBNET = re.compile(r"^- (\S+) \(switch \S+\): router (\S+) (\S+) on (\S+); (.+)$", re.MULTILINE)
_HOST = re.compile(r"(\S+) (\S+) on ([^\s,]+)")
_APART = re.compile(r"(\d\S+/\d+) and (\d\S+/\d+)")
_RESERVE = re.compile(r"^- These hosts are fully or partly isolated [^:]*: ([^.]+)\.", re.MULTILINE)
_ROW = re.compile(r"^(\S+) -> (.*)$", re.MULTILINE)
_LOST = re.compile(r"^Must work, but fails \(\d+\): (.+)$", re.MULTILINE)
_LINK = re.compile(r"^\d+: ([^:@\s]+)\S* <(\S*)> mtu (\d+)", re.MULTILINE)
_ADDRESS = re.compile(r"^\d+: (\S+)\s+inet (\S+)", re.MULTILINE)
_RULE = re.compile(r"^(\d+):\s+(.+?)\s*$", re.MULTILINE)
_LAST_OUTPUT = re.compile(
    r".*\nOutput:\n(?P<output>.*?)(?:\nPings after the command:|\n\n## )", re.DOTALL
)
_TICKET = "A ticket has come in:"
#: First words of a reset -> word with which the agent declares the cause
_WORDS = {
    "ip link": "link",
    "ip address": "address",
    "ip rule": "rule",
    "ip route": "route",
    "iptables": "filter",
    "sysctl": "setting",
}


@dataclass(frozen=True)
class Plan:
    """The intended state that the prompt describes."""

    router: str
    #: Network -> the router's interface in the network, and the interface's address
    ports: dict[IPv4Network, tuple[str, IPv4Interface]]
    #: Machine -> interface -> address
    machines: dict[str, dict[str, IPv4Interface]]
    apart: frozenset[frozenset[IPv4Network]]
    #: Whether the router forwards only packets that filters accept, and whether it has a routing
    #: table for each interface.
    denies: bool
    tabulates: bool
    #: Machines that are isolated by design. The settings that isolate them may be of any kind.
    reserve: frozenset[str] = frozenset()
    #: Whether the router ignores pings by design.
    silent: bool = False

    @classmethod
    def read(cls, prompt: str) -> Plan:
        """Return the plan that a prompt describes. Raises ValueError if the prompt has no plan."""
        ports: dict[IPv4Network, tuple[str, IPv4Interface]] = {}
        machines: dict[str, dict[str, IPv4Interface]] = {}
        router = ""
        for net, router, address, port, hosts in _SUBNET.findall(prompt):
            ports[IPv4Network(net)] = (port, IPv4Interface(address))
            machines.setdefault(router, {})[port] = IPv4Interface(address)
            for name, own, interface in _HOST.findall(hosts):
                machines[name] = {interface: IPv4Interface(own)}
        if not ports:
            raise ValueError("the prompt contains no address plan")
        told = next(
            (line for line in prompt.splitlines() if "must not reach each other, in" in line), ""
        )
        return cls(
            router=router,
            ports=ports,
            machines=machines,
            apart=frozenset(
                frozenset((IPv4Network(a), IPv4Network(b)))
                for a, b in _APART.findall(told.replace(";", " ; ").rstrip("."))
            ),
            denies="forwards only traffic that a filter accepts" in prompt,
            tabulates="a separate routing table for the traffic" in prompt,
            reserve=frozenset(
                name for found in _RESERVE.findall(prompt) for name in found.split(", ")
            ),
            silent=f"| {router} | none |" in prompt,
        )

    def serves(self, target: str | IPv4Network) -> bool:
        """Return whether a network has hosts in service. ``target`` is the network or the router's
        port on it.

        Entries about networks without hosts in service exist only to isolate reserve hosts.
        """
        for net, (port, _) in self.ports.items():
            if target == port:
                target = net
        try:
            network = IPv4Network(target)
        except ValueError:
            return True
        kept = {
            name in self.reserve
            for name, own in self.machines.items()
            if name != self.router and any(address.ip in network for address in own.values())
        }
        return kept != {True}

    def is_apart(self, one: str, other: str) -> bool:
        return frozenset((IPv4Network(one), IPv4Network(other))) in self.apart

    def network_of(self, port: str) -> str:
        return next(str(net) for net, (name, _) in self.ports.items() if name == port)

    def suspects(self, prompt: str) -> list[str]:
        """Return the router, then the hosts in descending order of their failed pings."""
        situation = prompt.rpartition("Pingall result:")[2]
        missing: Counter[str] = Counter()
        for source, row in _ROW.findall(situation):
            missing[source] += row.split().count("X")
        for pairs in _LOST.findall(situation):
            missing.update(re.findall(r"(\S+) -> ", pairs))
        hosts = [name for name in self.machines if name not in {self.router, *self.reserve}]
        return [self.router, *sorted(hosts, key=lambda name: -missing[name])]

    def named(self, prompt: str) -> list[str]:
        """Return the router, then the hosts that a ticket mentions by name or address."""
        told = prompt.rpartition(_TICKET)[2]
        words = set(re.findall(r"[\w.]*\w", told))
        hosts = [
            name
            for name, own in self.machines.items()
            if name != self.router
            and words & {name, *(str(address.ip) for address in own.values())}
        ]
        return [self.router, *hosts]


@dataclass(frozen=True)
class View:
    """The inspected state of a machine."""

    machine: str
    plan: Plan
    links: str
    addresses: str
    rules: str
    routes: str
    filters: str
    sysctls: str

    @property
    def routes_traffic(self) -> bool:
        return self.machine == self.plan.router

    @cached_property
    def own(self) -> dict[str, IPv4Interface]:
        return self.plan.machines[self.machine]


def reset_links(view: View) -> Iterator[str]:
    """Yield resets that bring up all ports, enable ARP and set the usual MTU."""
    for name, flags, mtu in _LINK.findall(view.links):
        if name not in view.own or not view.plan.serves(name):
            continue
        if "UP" not in flags.split(","):
            yield f"ip link set {name} up"
        if "NOARP" in flags:
            yield f"ip link set {name} arp on"
        if mtu != _MTU:
            yield f"ip link set {name} mtu {_MTU}"


def reset_addresses(view: View) -> Iterator[str]:
    """Yield resets that give each port its planned address and remove additional addresses from
    the loopback."""
    seen = _ADDRESS.findall(view.addresses)
    for name, address in view.own.items():
        if view.plan.serves(name) and [entry for port, entry in seen if port == name] != [
            str(address)
        ]:
            yield f"ip address flush dev {name}"
            yield f"ip address add {address} brd + dev {name}"
    for name, address in seen:
        if name == "lo" and address != _LOOPBACK and view.plan.serves(address):
            yield f"ip address del {address} dev lo"


def reset_rules(view: View) -> Iterator[str]:
    """Yield resets that leave only the three default rules and the intended separations."""
    usual = {"0": "lookup local", "32766": "lookup main", "32767": "lookup default"}
    seen = dict.fromkeys(usual, False)
    for preference, text in _RULE.findall(view.rules):
        if text.endswith(usual.get(preference, "?")):
            seen[preference] = True
        elif not _is_meant(view, text) and _concerns(view, text.split(), ("from", "to", "iif")):
            yield f"ip rule del pref {preference} {text}"
    for preference, action in usual.items():
        if not seen[preference]:
            yield f"ip rule add pref {preference} {action}"


def _concerns(view: View, words: list[str], keys: tuple[str, ...]) -> bool:
    """Return whether all values after ``keys`` in an entry refer to networks with hosts in
    service."""
    selected = (words[words.index(key) + 1] for key in keys if key in words)
    return all(view.plan.serves(each) for each in selected)


def _is_meant(view: View, rule: str) -> bool:
    """Return whether the prompt describes a policy rule of this form for the router."""
    words = rule.split()
    if "iif" not in words:
        return False
    port = words[words.index("iif") + 1]
    if port not in view.own:
        return False
    if "lookup" in words:
        return view.plan.tabulates
    return "to" in words and view.plan.is_apart(
        words[words.index("to") + 1], view.plan.network_of(port)
    )


def reset_routes(view: View) -> Iterator[str]:
    """Yield resets that give the router one route per subnet, and give hosts routes to all
    subnets."""
    right: set[IPv4Network] = set()
    for line in filter(None, view.routes.splitlines()):
        target = _target(line)
        if target is None or not any(target.overlaps(net) for net in view.plan.ports):
            continue
        if not view.plan.serves(target):
            right.add(target)
            continue
        if _fits(view, target, line):
            right.update(net for net in view.plan.ports if net.subnet_of(target))
        else:
            yield f"ip route del {line.strip()}"
    for net, (port, address) in view.plan.ports.items():
        # A host's route to a reserve subnet is also its route to the router's address in that
        # subnet.
        if net in right or (view.routes_traffic and not view.plan.serves(net)):
            continue
        if view.routes_traffic:
            yield f"ip route replace {net} dev {port} proto kernel scope link src {address.ip}"
        elif net == _home(view).network:
            (name,) = view.own
            yield f"ip route replace {net} dev {name} proto kernel scope link src {_home(view).ip}"
        else:
            yield f"ip route replace {net} via {_gateway(view)}"


def _fits(view: View, target: IPv4Network, line: str) -> bool:
    words = line.split()
    if words[0] in {"unreachable", "blackhole", "prohibit"} or "metric" in words:
        return False
    device = words[words.index("dev") + 1] if "dev" in words else ""
    if view.routes_traffic:
        return view.plan.ports.get(target, ("",))[0] == device and "via" not in words
    if "via" in words:
        return words[words.index("via") + 1] == _gateway(view)
    return target == _home(view).network and device in view.own


def _target(line: str) -> IPv4Network | None:
    words = line.split()
    named = words[1] if words[0] in {"unreachable", "blackhole", "prohibit"} else words[0]
    try:
        return IPv4Network("0.0.0.0/0" if named == "default" else named)
    except ValueError:
        return None


def _home(view: View) -> IPv4Interface:
    """Return the address of a host."""
    (address,) = view.own.values()
    return address


def _gateway(view: View) -> str:
    return str(view.plan.ports[_home(view).network][1].ip)


def reset_filters(view: View) -> Iterator[str]:
    """Yield resets after which only rules for tcp or udp and intended separations drop packets.

    If the router forwards only accepted packets, missing accept rules are added.
    """
    denies = view.routes_traffic and view.plan.denies
    accepts = view.filters.count(" -j ACCEPT")
    for line in view.filters.splitlines():
        words = line.split()
        if words[:1] == ["-P"] and words[2] != "ACCEPT" and not (denies and words[1] == "FORWARD"):
            yield f"iptables -P {words[1]} ACCEPT"
        if (
            words[:1] == ["-A"]
            and {"DROP", "REJECT"} & set(words)
            and not _is_kept(view, words)
            and _concerns(view, words, ("-s", "-d", "-i", "-o"))
        ):
            yield f"iptables -D {' '.join(words[1:])}"
    if not denies:
        return
    by_port = " -i " in view.filters
    for one, other in permutations(filter(view.plan.serves, view.plan.ports), 2):
        match = (
            f"-i {view.plan.ports[one][0]} -o {view.plan.ports[other][0]} -j ACCEPT"
            if by_port
            else f"-s {one} -d {other} -j ACCEPT"
        )
        if accepts and match not in view.filters and not view.plan.is_apart(str(one), str(other)):
            yield f"iptables -A FORWARD {match}"


def _is_kept(view: View, words: list[str]) -> bool:
    if {"tcp", "udp"} & set(words):
        return True
    if not {"-s", "-d"} <= set(words):
        return False
    ends = [words[words.index(flag) + 1] for flag in ("-s", "-d")]
    return view.plan.is_apart(*ends)


def reset_sysctls(view: View) -> Iterator[str]:
    """Yield resets that make the router forward packets and every machine answer pings."""
    wanted = {"net.ipv4.icmp_echo_ignore_all": "0"}
    if view.routes_traffic:
        wanted["net.ipv4.ip_forward"] = "1"
        if view.plan.silent:
            del wanted["net.ipv4.icmp_echo_ignore_all"]
    for line in view.sysctls.splitlines():
        name, _, value = line.partition(" = ")
        if name in wanted and value.strip() != wanted[name]:
            yield f"sysctl -w {name}={wanted[name]}"


#: Resets of the runbook, in the order of their use.
CHECKS: tuple[Callable[[View], Iterator[str]], ...] = (
    reset_links,
    reset_addresses,
    reset_rules,
    reset_routes,
    reset_filters,
    reset_sysctls,
)


@dataclass
class Operator:
    """The agent in one conversation; ``reply`` is called once for each prompt."""

    _waiting: list[str] | None = None
    _looked_at: str = ""
    #: Causes of the resets so far, for a declaration.
    _causes: list[Cause] = field(default_factory=list)

    def reply(self, prompt: str) -> str:
        """Return the runbook's next reply. Raises ValueError if the prompt contains no plan."""
        plan, by_ticket = Plan.read(prompt), _TICKET in prompt
        if self._looked_at:
            machine, self._looked_at = self._looked_at, ""
            resets = _resets(plan, machine, prompt)
            if resets:
                words = {
                    word
                    for start, word in _WORDS.items()
                    if any(reset.startswith(start) for reset in resets)
                }
                self._causes += [Cause(machine, word) for word in sorted(words)]
                return _say(machine, "; ".join(resets))
        if self._waiting is None or not (self._waiting or by_ticket):
            self._waiting = plan.named(prompt) if by_ticket else plan.suspects(prompt)
        if not self._waiting:
            return json.dumps(make_move(self._causes))
        self._looked_at = self._waiting.pop(0)
        return _say(self._looked_at, _LOOK)


def _resets(plan: Plan, machine: str, prompt: str) -> list[str]:
    """Return the resets for ``machine``. The last output in ``prompt`` is the machine's
    inspection."""
    found = _LAST_OUTPUT.match(prompt)
    parts = (found["output"] if found else "").split(f"{_MARK}\n")
    if len(parts) != len(CHECKS):
        return []
    view = View(machine, plan, *(part.strip("\n") for part in parts))
    return [command for check in CHECKS for command in check(view)]


def _say(machine: str, command: str) -> str:
    return json.dumps({"machine": machine, "command": command})
