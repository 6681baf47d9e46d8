"""Checks whether this machine can run networks, and reports missing requirements.

An application lists its requirements in a ``Diagnosis``, a global variable of one of its modules.
The requirements are tested in a separate process, in namespaces like those of an episode: ``python
-m netarena_network.diagnosis MODULE`` prints failures as JSON. A configuration with unmet
requirements is rejected before any query is generated.
"""

from __future__ import annotations

import codecs
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netarena import sdk
from netarena.sdk import (
    Check,
    Config,
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

#: Options of a container that grant the required privileges. The second set of options grants as
#: few privileges as possible.
PRIVILEGED = "docker run --privileged"
NARROWER = (
    "docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined "
    "--security-opt apparmor=unconfined"
)
_RIGHTS = f"start the container with '{PRIVILEGED}', or with fewer privileges: '{NARROWER}'"
_NAMESPACES, _BUBBLEWRAP, _MININET = "namespaces", "bubblewrap", "mininet"
_WALLS = "user namespaces"
_RAISE = "sysctl -w user.max_user_namespaces=65536 on the host"
#: End of the shell's message about a missing program.
_NO_PROGRAM = ": command not found"
_PROGRAMS, _TOOLS = "programs", "agents' tools"
#: Debian package (from requirements/route.debian) -> programs of the package whose presence is
#: checked.
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
#: Programs that every network needs. Other programs are needed only for some configurations
#: (``Need``) or by agents.
_ESSENTIAL = frozenset({"bwrap", "ip", "iptables", "sysctl", "tc"})
_TRY_S = 60.0


@dataclass(frozen=True)
class Need:
    """A requirement, with commands that must all succeed in a test network."""

    name: str
    commands: tuple[str, ...]
    remedy: str
    #: The configuration key on which the requirement depends, and a function that returns whether a
    #: configuration needs it. By default, all configurations need it.
    key: str = ""
    asks: Callable[[Any], bool] | None = None
    #: An additional test in the same network. Its argument is the network's file descriptor, and it
    #: returns a description of the problem, or "".
    test: Callable[[int], str] | None = None


KERNEL = "use a kernel with this feature, or load the module on the host"
PAIR = "ip link add t0 type veth peer name t1 && ip link set t0 up"
#: Requirements of every network.
COMMON = (
    Need("bridges", ("ip link add t2 type bridge && ip link set t2 up",), KERNEL),
    Need("cables", (PAIR,), KERNEL),
    Need(
        "policy rules",
        (
            "ip rule add prohibit pref 0",
            "ip route add blackhole default table 102 && ip rule add iif lo lookup 102",
        ),
        KERNEL,
    ),
    Need(
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
    Need(
        "queues",
        (
            f"{PAIR} && tc qdisc add dev t0 root pfifo limit 0",
            "tc qdisc replace dev t0 root tbf rate 8kbit burst 90 limit 1000",
        ),
        KERNEL,
    ),
    Need(
        _MININET,
        ("mnexec -c true",),
        'pip install "netarena[route]", or set emulator to netns',
        "emulator",
        lambda config: config.emulator == "mininet",
    ),
)


class Diagnosis:
    """Checks whether this machine meets an application's requirements, and suggests remedies."""

    def __init__(
        self,
        module: str,
        needs: Sequence[Need],
        *,
        most_machines: int,
        unused: Collection[str] = (),
    ) -> None:
        """Create the object ``DIAGNOSIS`` of ``module``.

        ``unused`` lists programs that the application does not use.
        """
        self._module = module
        self._needs = needs
        self._unused = unused
        #: Number of user namespaces that the largest network needs: one per machine, and one for
        #: the episode.
        self._user_namespaces = most_machines + 1
        self._found: Mapping[str, str] | None = None

    def diagnose(self) -> list[Check]:
        """Return a check for each requirement, with a remedy if the requirement is not met."""
        failed = self.failures()
        checks = [
            _check(
                _WALLS,
                failed,
                "there are enough user namespaces for the machines of a network",
                _RAISE,
            ),
            _check(_NAMESPACES, failed, "each episode runs in its own namespaces", _RIGHTS),
        ]
        if _PROGRAMS in failed:
            checks.append(_check(_PROGRAMS, failed, "", INSTALL))
        elif all(one.ok for one in checks):
            checks.append(_check(_BUBBLEWRAP, failed, "agents' commands run in a sandbox", _RIGHTS))
            # Without a working sandbox, these requirements are not tested.
            for need in self._needs if checks[-1].ok else ():
                severity = Severity.RUN if need.asks is None else Severity.NOTE
                remedy = _remedy(need, failed.get(need.name, ""))
                checks.append(_check(need.name, failed, "supported", remedy, severity))
        if _TOOLS in failed and _PROGRAMS not in failed:
            checks.append(_check(_TOOLS, failed, "", INSTALL, Severity.NOTE))
        return checks

    def check(self, config: Config) -> None:
        """Raise ConfigError with a remedy if this machine does not meet a requirement of
        ``config``."""
        failed = self.failures()
        remedies = {_PROGRAMS: INSTALL, _WALLS: _RAISE, _NAMESPACES: _RIGHTS, _BUBBLEWRAP: _RIGHTS}
        for name, remedy in remedies.items():
            if name in failed:
                raise ConfigError(
                    "", f"this machine cannot run virtual networks: {failed[name]}; {remedy}"
                )
        for need in self._needs:
            if need.name in failed and (need.asks is None or need.asks(config)):
                raise ConfigError(
                    need.key,
                    f"this machine does not support {need.name}: {failed[need.name]}; "
                    f"{_remedy(need, failed[need.name])}",
                )

    def failures(self) -> Mapping[str, str]:
        """Return the unmet requirements, each with a reason.

        The requirements are tested only once, in a child process without threads.
        """
        if self._found is None:
            self._found = self._ask()
        return self._found

    def forget(self) -> None:
        """Discard the results, so that the next call of ``failures`` tests everything again."""
        self._found = None

    def _ask(self) -> Mapping[str, str]:
        paths = os.pathsep.join(
            str(Path(package).parents[1]) for package in (__file__, sdk.__file__)
        )
        try:
            done = subprocess.run(
                program(__name__, self._module),
                capture_output=True,
                timeout=_TRY_S,
                check=False,
                env={**os.environ, "PYTHONPATH": paths},
            )
            found: dict[str, str] = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            return {_NAMESPACES: f"the test failed: {one_line(str(error), 200)}"}
        return found

    def absent(self) -> dict[str, str]:
        """Return messages about programs that are not on the search path of commands."""
        places = shell.SHELL_ENVIRONMENT["PATH"]
        programs = [program for package in PACKAGES.values() for program in package]
        absent = [program for program in programs if shutil.which(program, path=places) is None]
        optional = {
            word for need in self._needs for command in need.commands for word in command.split()
        } | {*self._unused}
        parts = {
            _PROGRAMS: [program for program in absent if program in _ESSENTIAL],
            _TOOLS: [program for program in absent if program not in _ESSENTIAL | optional],
        }
        return {
            name: f"not installed: {', '.join(found)}" for name, found in parts.items() if found
        }

    def few(self) -> dict[str, str]:
        """Return a message about user namespaces if the kernel allows too few of them."""
        most = most_user_namespaces()
        if most >= self._user_namespaces:
            return {}
        why = (
            f"user.max_user_namespaces is {most}; the largest network needs {self._user_namespaces}"
        )
        return {_WALLS: why}

    def try_all(self) -> dict[str, str]:
        """Return the unmet requirements.

        A forked process tests them, in namespaces like those of an episode.
        """
        mininet = importlib.util.find_spec("mininet") is not None
        # The codec is loaded before the fork, because only root may be able to read Python's files.
        codecs.lookup("ascii")
        read, write = os.pipe()
        asked = os.getpid()
        try:
            inside = isolate() < 0
            found = dict(self.try_inside()) if inside else {}
        except NamespaceUnavailable as error:  # raised in this process or in the forked process
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
            return {_NAMESPACES: "a process in new namespaces ends immediately"}
        told: dict[str, str] = json.loads(said)
        return told

    def try_inside(self) -> Iterator[tuple[str, str]]:
        try:
            home = new_network()
        except OSError as error:
            yield _WALLS, f"namespaces of a machine cannot be created: {error.strerror}"
            return
        try:
            result = shell.run("true", netns=home)
        except NetArenaError as error:
            yield _BUBBLEWRAP, str(error)
            return
        if result.exit != 0:
            yield _BUBBLEWRAP, result.told
            return
        for need in self._needs:
            network = new_network()
            for command in need.commands:
                result = shell.run(command, netns=network)
                if result.exit != 0:
                    said = result.output.strip().rstrip(".")
                    yield need.name, one_line(f"{command}: {said}", 300)
                    break
            else:
                if need.test is not None and (problem := need.test(network)):
                    yield need.name, problem
            os.close(network)


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


def _remedy(need: Need, why: str) -> str:
    """Return the remedy for a requirement, or the command that installs a missing program."""
    return INSTALL if why.endswith(_NO_PROGRAM) else need.remedy


if __name__ == "__main__":
    tried: Diagnosis = importlib.import_module(sys.argv[1]).DIAGNOSIS
    print(json.dumps({**tried.absent(), **tried.few(), **tried.try_all()}))  # noqa: T201 -- for the parent process
