"""Checks whether this machine can run route episodes, and what it lacks.

The requirements are tested in a separate process, in namespaces like an episode's: ``python -m
netarena_route.diagnosis`` prints failures as JSON. A configuration with unmet requirements is
refused before a query is generated.
"""

from __future__ import annotations

import codecs
import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from netarena import sdk
from netarena.sdk import (
    JOINT,
    Check,
    ConfigError,
    NamespaceUnavailable,
    NetArenaError,
    Severity,
    isolate,
    most_user_namespaces,
    new_network,
    one_line,
    program,
    shell,
)
from netarena_backbone.real import frr
from netarena_route.config import MAX_HOSTS, RouteConfig
from netarena_route.fault.table import PAPER_KINDS

#: Options that give a container the privileges; the second has the fewest that suffice.
PRIVILEGED = "docker run --privileged"
NARROWER = (
    "docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined "
    "--security-opt apparmor=unconfined"
)
_RIGHTS = f"start the container by {PRIVILEGED}, or with fewer rights by {NARROWER}"
_NAMESPACES, _BUBBLEWRAP, _MININET = "namespaces", "bubblewrap", "mininet"
_WALLS = "user namespaces"
#: User namespaces of the largest network: one per machine, and the episode's own.
_USER_NAMESPACES = MAX_HOSTS + 2
_RAISE = "sysctl -w user.max_user_namespaces=65536 on the host"
_DAEMONS, _INSTALL_FRR = "FRR", "apt-get install --yes frr"
#: End of the shell's message about a missing program.
_NO_PROGRAM = ": command not found"
_PROGRAMS, _TOOLS = "programs", "agents' tools"
#: Debian's packages (requirements/route.debian), each with those of its programs that are checked.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "bind9-dnsutils": ("dig",),
    "bridge-utils": ("brctl",),
    "bubblewrap": ("bwrap",),
    "conntrack": ("conntrack",),
    "curl": ("curl",),
    "ethtool": ("ethtool",),
    "frr": ("vtysh",),
    "iproute2": ("ip", "tc"),
    "iptables": ("iptables",),
    "iputils-arping": ("arping",),
    "iputils-ping": ("ping",),
    "jq": ("jq",),
    "mininet": ("mnexec",),
    "mtr-tiny": ("mtr",),
    "net-tools": ("ifconfig",),
    "netcat-openbsd": ("nc",),
    "nftables": ("nft",),
    "procps": ("ps", "sysctl"),
    "tcpdump": ("tcpdump",),
    "traceroute": ("traceroute",),
}
#: A command line that installs all packages.
INSTALL = f"apt-get update && apt-get install --yes {' '.join(PACKAGES)}"
#: Programs that every network needs; others are for some configurations (``_NEEDS``) or for agents.
_ESSENTIAL = frozenset({"bwrap", "ip", "iptables", "sysctl", "tc"})
_TRY_S = 60.0


@dataclass(frozen=True)
class _Need:
    """A requirement: commands that must all succeed in a network of their own.

    ``key`` and ``value`` identify the configurations that need it; an empty key means all of them.
    """

    name: str
    commands: tuple[str, ...]
    remedy: str
    key: str = ""
    value: object = None


_KERNEL = "use a kernel that has this, or load its module on the host"
_PAIR = "ip link add t0 type veth peer name t1 && ip link set t0 up"
_NFT = "nft add table {0} t && nft add chain {0} t c '{{ type filter {1} priority 0; }}'"
_NEEDS = (
    _Need("bridges", ("ip link add t2 type bridge && ip link set t2 up",), _KERNEL),
    _Need("cables", (_PAIR,), _KERNEL),
    _Need(
        "policy rules",
        (
            "ip rule add prohibit pref 0",
            "ip route add blackhole default table 102 && ip rule add iif lo lookup 102",
        ),
        _KERNEL,
    ),
    _Need(
        "iptables",
        (
            "iptables -P FORWARD DROP",
            "iptables -A INPUT -p icmp -j DROP",
            "iptables -A FORWARD -p udp --dport 33434:33523 -j DROP",
            "iptables -A OUTPUT -p tcp --sport 23 -j REJECT",
            "iptables -A FORWARD -s 192.0.2.0/24 -j ACCEPT",
        ),
        "use a kernel with nf_tables or ip_tables",
    ),
    _Need(
        "queues",
        (
            f"{_PAIR} && tc qdisc add dev t0 root pfifo limit 0",
            "tc qdisc replace dev t0 root tbf rate 8kbit burst 90 limit 1000",
        ),
        _KERNEL,
    ),
    _Need(
        "iptables extensions",
        (
            "iptables -A FORWARD -m conntrack --ctstate NEW,ESTABLISHED,UNTRACKED -j DROP",
            "iptables -A FORWARD -m length --length 84:65535 -j DROP",
            "iptables -A FORWARD -p icmp --icmp-type echo-reply -j DROP",
            "iptables -t raw -A PREROUTING -j NOTRACK",
            "iptables -t nat -A PREROUTING -j DNAT --to-destination 192.0.2.1",
            "iptables -t nat -A PREROUTING -j REDIRECT",
            "iptables -t mangle -A POSTROUTING -j DROP",
            "iptables -t mangle -A PREROUTING -j TTL --ttl-set 1",
        ),
        _KERNEL,
        "error_types",
        "extended",
    ),
    _Need(
        "nft",
        (
            _PAIR,
            _NFT.format("inet", "hook forward"),
            "nft add rule inet t c iifname t0 meta l4proto icmp drop",
            *(
                f"nft add chain inet t {hook} '{{ type filter hook {hook} priority 0; }}'"
                for hook in ("input", "output")
            ),
            _NFT.format("netdev", "hook ingress device t0"),
            "nft add rule netdev t c ip protocol icmp drop",
        ),
        "use a kernel with nf_tables",
        "error_types",
        "extended",
    ),
    _Need("netem", (_PAIR, "tc qdisc add dev t0 root netem delay 10ms"), _KERNEL, "netem", True),
    _Need(
        _MININET,
        ("mnexec -c true",),
        'pip install "netarena[route]", or set emulator to netns',
        "emulator",
        "mininet",
    ),
    # ``frr.try_out`` also checks that the daemons start, confined as in an episode.
    _Need(
        _DAEMONS,
        ("vtysh --help",),
        f"{_INSTALL_FRR}; where it runs as a service of the machine, systemctl disable --now frr",
        "world",
        "backbone",
    ),
)


def diagnose() -> list[Check]:
    """Return a check of each requirement, with a remedy for those that are not met."""
    failed = _failures()
    checks = [
        _check(_WALLS, failed, "there are enough for the machines of a network", _RAISE),
        _check(_NAMESPACES, failed, "episodes live in namespaces of their own", _RIGHTS),
    ]
    if _PROGRAMS in failed:
        checks.append(_check(_PROGRAMS, failed, "", INSTALL))
    elif all(one.ok for one in checks):
        checks.append(_check(_BUBBLEWRAP, failed, "commands of agents are sandboxed", _RIGHTS))
        # Without the sandbox, none of these was tried.
        for need in _NEEDS if checks[-1].ok else ():
            severity = Severity.RUN if not need.key else Severity.NOTE
            remedy = _remedy(need, failed.get(need.name, ""))
            checks.append(_check(need.name, failed, "works", remedy, severity))
    if _TOOLS in failed and _PROGRAMS not in failed:
        checks.append(_check(_TOOLS, failed, "", INSTALL, Severity.NOTE))
    return checks


def check(config: RouteConfig) -> None:
    """Raise ConfigError with a remedy if this machine lacks something that ``config`` needs."""
    failed = _failures()
    remedies = {_PROGRAMS: INSTALL, _WALLS: _RAISE, _NAMESPACES: _RIGHTS, _BUBBLEWRAP: _RIGHTS}
    for name, remedy in remedies.items():
        if name in failed:
            raise ConfigError("", f"this machine cannot run routing: {failed[name]}; {remedy}")
    for need in _NEEDS:
        if need.name in failed and _asks_for(config, need):
            raise ConfigError(
                need.key,
                f"{need.name} does not work here: {failed[need.name]}; "
                f"{_remedy(need, failed[need.name])}",
            )


def _check(
    name: str,
    failed: Mapping[str, str],
    works: str,
    remedy: str,
    severity: Severity = Severity.RUN,
) -> Check:
    ok = name not in failed
    detail = works if ok else failed[name]
    return Check(name=name, ok=ok, severity=severity, detail=detail, remedy="" if ok else remedy)


def _remedy(need: _Need, why: str) -> str:
    """Return the remedy for a requirement: its own, or the installation of a missing program."""
    return INSTALL if why.endswith(_NO_PROGRAM) else need.remedy


def _asks_for(config: RouteConfig, need: _Need) -> bool:
    if not need.key:
        return True
    if need.key == "error_types" and config.world == "varied":
        return True  # locks are of all kinds
    asked = getattr(config, need.key)
    if not isinstance(asked, tuple):
        return bool(asked == need.value)
    # Kinds other than the paper's all belong to the extended family.
    return not {*PAPER_KINDS}.issuperset(part for entry in asked for part in entry.split(JOINT))


@cache
def _failures() -> Mapping[str, str]:
    """Return the unmet requirements, each with a reason.

    They are tested once per process, in a child process without threads.
    """
    paths = os.pathsep.join(str(Path(package).parents[1]) for package in (__file__, sdk.__file__))
    try:
        done = subprocess.run(
            program(__name__),
            capture_output=True,
            timeout=_TRY_S,
            check=False,
            env={**os.environ, "PYTHONPATH": paths},
        )
        found: dict[str, str] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return {_NAMESPACES: f"it cannot be tried: {one_line(str(error), 200)}"}
    return found


def _absent() -> dict[str, str]:
    """Return messages about programs that are not installed where commands look for them."""
    places = shell.SHELL_ENVIRONMENT["PATH"]
    programs = [program for package in PACKAGES.values() for program in package]
    absent = [program for program in programs if shutil.which(program, path=places) is None]
    optional = {word for need in _NEEDS for command in need.commands for word in command.split()}
    parts = {
        _PROGRAMS: [program for program in absent if program in _ESSENTIAL],
        _TOOLS: [program for program in absent if program not in _ESSENTIAL | optional],
    }
    return {name: f"not installed: {', '.join(found)}" for name, found in parts.items() if found}


def _few() -> dict[str, str]:
    """Return a message about user namespaces if the kernel allows too few."""
    most = most_user_namespaces()
    if most >= _USER_NAMESPACES:
        return {}
    why = f"user.max_user_namespaces is {most}; the largest network needs {_USER_NAMESPACES}"
    return {_WALLS: why}


def _try_all() -> dict[str, str]:
    """Return the unmet requirements, tested in the namespaces of an episode; this forks."""
    mininet = importlib.util.find_spec("mininet") is not None
    # Loaded early, since only root may be able to read Python's files.
    codecs.lookup("ascii")
    read, write = os.pipe()
    asked = os.getpid()
    try:
        inside = isolate() < 0
        found = dict(_try_inside()) if inside else {}
    except NamespaceUnavailable as error:  # either process may raise this
        inside, found = os.getpid() != asked, {_NAMESPACES: str(error)}
        if not inside:
            return found
    if inside:
        if not mininet:
            found[_MININET] = "the Python package mininet is not installed"
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        said = file.read()
    os.wait()
    if not said:
        return {_NAMESPACES: "a process in namespaces of its own ends at once"}
    told: dict[str, str] = json.loads(said)
    return told


def _try_inside() -> Iterator[tuple[str, str]]:
    try:
        home = new_network()
    except OSError as error:
        yield _WALLS, f"none for a machine: {error.strerror}"
        return
    try:
        result = shell.run("true", netns=home)
    except NetArenaError as error:
        yield _BUBBLEWRAP, str(error)
        return
    if result.exit != 0:
        yield _BUBBLEWRAP, result.told
        return
    for need in _NEEDS:
        network = new_network()
        for command in need.commands:
            result = shell.run(command, netns=network)
            if result.exit != 0:
                said = result.output.strip().rstrip(".")
                yield need.name, one_line(f"{command}: {said}", 300)
                break
        else:
            if need.name == _DAEMONS and (problem := frr.try_out(network)):
                yield need.name, problem
        os.close(network)


if __name__ == "__main__":
    print(json.dumps({**_absent(), **_few(), **_try_all()}))  # noqa: T201 -- for the parent process
