"""Process that builds one episode's backbone, runs commands in it, and observes it.

It is a network process (``worker``) with the machines of a ``Setup``. Faults are part of the setup,
so the network never exists without its faults.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any

from netarena.sdk import Confined, EnvironmentFailed, Room, entered, family, mount_memory, shell
from netarena_backbone.real import frr, leftover, serve, way
from netarena_backbone.real.build import EMULATORS, configure
from netarena_backbone.real.convergence import Settling
from netarena_backbone.real.probe import Probes
from netarena_backbone.real.setting import Settings, routes
from netarena_backbone.real.wire import Wires
from netarena_backbone.world.contingency import CONVERGE_S
from netarena_backbone.world.lab_spec import Heard, Neighbour, Observation, Recipe, Setup
from netarena_network.real import worker
from netarena_network.real.guard import process_limit
from netarena_network.real.kernel_lock import Turns
from netarena_network.real.netlink import (
    GETADDR,
    NETFILTER,
    Netlink,
    attributes,
    drop_all,
    drop_none,
    muted,
    neighbours_refused,
    permanent_neighbour,
)
from netarena_network.real.pace import backbone_s, padded
from netarena_network.real.prober import Echo, Prober, Pulse, open_socket
from netarena_network.real.tool import hide_consoles, room
from netarena_network.real.worker import Worker

#: Limits on the total size and the number of all machines' files.
_FILES_BYTES, _FILES = 16 << 20, 4096
_HOME = Path("/mnt")
_SOCKETS_BYTES, _SOCKETS_FILES = 1 << 16, 32
#: Limits on the total size and the number of a router's logs, which agents can configure.
_LOGS_BYTES, _LOGS_FILES = 1 << 20, 18
#: Subfolders of a machine's folder: the daemons' sockets, the daemons' logs, the services' files,
#: and the files that vtysh's ``write`` command saves.
_SOCKETS, _LOGS, _SERVE, _SAVED = "run", "log", "serve", "frr"
#: Pipe in a router's folder that carries its daemons' messages of ``log syslog``.
_CONSOLE = "console"
#: Pipe in a router's folder that delays its bgpd until OSPF has converged.
_GATE = "gate"
#: Groups of routers in which bgpd starts, and the time in s between two groups.
_GROUPS, _BETWEEN_S = 3, 2.0
#: Time limit until all daemons listen, and pause between checks.
_LISTEN_S, _ASK_S = 20.0, 0.01
#: Time limit until restarted daemons advertise the same redistributed routes as before the restart.
#: The limit can be reached, because a saved configuration may lack some of these routes.
_READVERTISE_S = 3.0
#: Maximum size of a saved configuration.
_SAVED_BYTES = 1 << 20
_EXTERNAL = ("show ip ospf database external self-originate json",)
_HEADERS_BYTES = 20 + 8
_SMALL_BYTES = 56
_ADDRESS_BYTES, _IFA_LOCAL = 8, 2
#: IP and MAC addresses of OSPF's multicast groups: all OSPF routers, and designated routers.
_ALL = tuple((f"224.0.0.{number}", b"\x01\x00\x5e\x00\x00" + bytes([number])) for number in (5, 6))
_NAMES = re.compile(r"^hosts:.*$", re.MULTILINE)
_OWN = "0.0.0.0"  # noqa: S104 -- the next hop of a router's own routes
#: Number of times that services and paths are tested. The majority counts, so that one lost packet
#: does not change the result.
_LOOKS = 3
_VTYSH = {
    "/etc/pam.d/frr": "auth sufficient pam_permit.so\naccount sufficient pam_permit.so\n",
    "/etc/pam.d/other": "auth required pam_deny.so\naccount required pam_deny.so\n",
    "/etc/group": "root:x:0:\nfrrvty:x:0:root\n",
}


class Lab(Worker):
    """Builds one backbone, runs commands in it and observes it; one object per process."""

    def __init__(self, turns: Turns) -> None:
        super().__init__(turns)
        self._daemons: dict[str, Confined] = {}
        self._terminals = frr.Terminals()
        self._wanted: dict[str, tuple[str, ...]] = {}
        self._recipes: dict[str, Recipe] = {}
        #: Router -> interface indices of its links. Entries exist only while the links block all
        #: packets.
        self._apart: dict[str, list[int]] = {}
        #: Whether a command might have changed a setting since the last observation.
        self._changed = True
        #: Convergence time that remains for the current contingency, in s.
        self._converge_s = math.inf
        #: Machine -> digest of its settings before the agent's first command on the machine.
        self._first: dict[str, str] = {}
        #: Settings that each edit of the setup changes; determined at the first observation.
        self._traces: list[leftover.Trace] = []
        #: Measures packet loss during changes; None if the setup has no pairs to measure.
        self._probes: Probes | None = None

    @property
    def _names(self) -> Sequence[str]:
        return tuple(self._recipes)

    def _requests(self) -> dict[str, Callable[..., Any]]:
        return {
            **super()._requests(),
            "build": self.build,
            "connect": self.connect,
            "observe": self.observe,
            "cut": self.cut,
            "restore": self.restore,
            "restart": self.restart,
        }

    def build(self, setup: dict[str, Any], emulator: str) -> dict[str, float]:
        """Build the network with all of its faults; return the duration of each step in s.

        Routers exchange no packets until ``connect``. By then, all daemons except bgpd have read
        their configuration.
        """
        began = time.monotonic()
        self._setup = Setup.model_validate(setup)
        self._recipes = {recipe.machine: recipe for recipe in self._setup.recipes}
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, worker.OPEN_FILES), hard))
        if self._alone:
            hide_consoles(but=("vtysh",))
        self._make_folders()
        self._spaces = EMULATORS[emulator](self._setup)
        for space in self._spaces.values():
            self._stack.callback(os.close, space)
        configure(self._setup, self._spaces)
        self._reach_kernels()
        self._wires = Wires(self._setup, self._netlinks)
        self._keep_apart(one.machine for one in self._setup.recipes if one.frr is not None)
        self._start_daemons()
        self._listen()  # the daemons start meanwhile
        self._know_neighbours()
        self._reach_daemons()
        return {
            "built_s": time.monotonic() - began,
            "cpu_s": worker.cpu_used_s(),
            "verified_s": 0.0,
            "waited_s": 0.0,
        }

    def _keep_apart(self, routers: Iterable[str]) -> None:
        """Block all packets of new routers, whose queues still have the default settings."""
        for name in routers:
            with entered(self._spaces[name]):
                self._apart[name] = [index for index, text in socket.if_nameindex() if text != "lo"]
            if any(self._netlinks[name].send([drop_all(index) for index in self._apart[name]])):
                raise EnvironmentFailed(
                    f"packets on the links of {name} cannot be blocked before the start"
                )

    def connect(self, neighbours: list[list[str]] | None = None) -> None:
        """Let the routers exchange packets, and start BGP when OSPF has converged.

        If BGP started with OSPF, the ages and message counters of its sessions would show in which
        order OSPF converged, and this order depends on faults. bgpd starts on a random third of the
        routers at a time, so that small remaining differences do not show anything either.

        ``neighbours`` are as in ``observe``. The call has no effect if the routers are already
        connected.
        """
        if not self._apart:
            return
        while self._apart:
            name, indices = self._apart.popitem()
            self._netlinks[name].send([drop_none(index) for index in indices])
        self._wires.follow()
        known = None if neighbours is None else {(one, by, to) for one, by, to in neighbours}
        self._settle_without_bgp(known)
        self._start_bgp()
        self._save_configurations()

    def _settle_without_bgp(self, neighbours: AbstractSet[Neighbour] | None) -> None:
        daemons = {
            name: tuple(one for one in wanted if one != "bgpd")
            for name, wanted in self._wanted.items()
        }
        settling = Settling(self._terminals, daemons, self._routes, self._delayed_s)
        known = None if neighbours is None else {one for one in neighbours if one[1] != "bgp"}
        settling.wait(changed=True, neighbours=known)

    def _start_bgp(self) -> None:
        random = SystemRandom()  # an agent must not be able to predict the groups
        routers = [name for name, wanted in self._wanted.items() if "bgpd" in wanted]
        random.shuffle(routers)
        groups = [routers[number::_GROUPS] for number in range(_GROUPS)]
        with contextlib.ExitStack() as gates:
            for number, group in enumerate(filter(None, groups)):
                if number:
                    time.sleep(_BETWEEN_S)  # the ages must differ, so no condition is awaited
                for name in group:
                    # also opened for reading, because opening would otherwise wait for a reader
                    gate = os.open(_HOME / name / _GATE, os.O_RDWR | os.O_CLOEXEC)
                    gates.callback(os.close, gate)
                    os.write(gate, b"\n")
            self._await_daemons(self._wanted)

    def _delayed_s(self) -> list[float]:
        """Return how long each daemon has waited for a processor, in s."""
        return [one for held in self._daemons.values() for one in held.delayed_s()]

    @contextlib.contextmanager
    def _muted(self, routers: Iterable[str]) -> Iterator[None]:
        """Drop all packets that routers send, without changing queues that an agent
        may have set."""
        with contextlib.ExitStack() as stack:
            for name in routers:
                with entered(self._spaces[name]):
                    netfilter = stack.enter_context(Netlink(NETFILTER))
                try:
                    stack.enter_context(muted(netfilter))
                except OSError as error:
                    raise EnvironmentFailed(
                        f"packets of {name} cannot be dropped during the restart: {error}"
                    ) from None
            yield

    def _make_folders(self) -> None:
        mount_memory(_HOME, _FILES_BYTES, _FILES)
        for recipe in self._setup.recipes:
            for name in (_SOCKETS, _LOGS, _SERVE, _SAVED):
                (_HOME / recipe.machine / name).mkdir(parents=True)
            if recipe.frr is not None:
                mount_memory(_HOME / recipe.machine / _SOCKETS, _SOCKETS_BYTES, _SOCKETS_FILES)
                mount_memory(_HOME / recipe.machine / _LOGS, _LOGS_BYTES, _LOGS_FILES)
            folder = _HOME / recipe.machine / _SERVE
            for name, lines in (("services", recipe.services), ("zone", recipe.zone)):
                if lines:
                    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
            if recipe.resolver:
                (folder / "resolver").write_text(f"{recipe.resolver}\n", encoding="utf-8")
            if recipe.frr is not None:
                saved = _HOME / recipe.machine / _SAVED
                (saved / "vtysh.conf").write_text("service integrated-vtysh-config\n", "utf-8")

    def _start_daemons(self) -> None:
        for name, recipe in self._recipes.items():
            if recipe.frr is None:
                continue
            for pipe in (_CONSOLE, _GATE):
                os.mkfifo(_HOME / name / pipe, 0o600)
            self._wanted[name] = frr.needed(recipe.frr)
            self._start_router(name, frr.split(recipe.frr), gate=_HOME / name / _GATE)

    def _start_router(
        self, name: str, parts: Mapping[str, str], *, gate: Path | None = None
    ) -> None:
        """Start the daemons of a router, each with its part of the configuration.

        With ``gate``, bgpd starts later (see ``frr.hold``).
        """
        held = frr.hold(
            parts,
            netns=self._spaces[name],
            hostname=name,
            sockets=_HOME / name / _SOCKETS,
            logs=_HOME / name / _LOGS,
            console=_HOME / name / _CONSOLE,
            gate=gate,
            daemons=self._wanted[name],
        )
        self._daemons[name] = held
        self._stack.callback(held.close)

    def _save_configurations(self) -> None:
        """Save each router's configuration like ``write memory``, and give all files the same
        modification time."""
        frr.save(
            (name, _HOME / name / _SOCKETS, _HOME / name / _SAVED)
            for name in self._daemons
            if self._recipes[name].login
        )
        now = time.time()
        for name in self._names:
            for folder in (_SERVE, _SAVED, _LOGS):
                for path in (*(_HOME / name / folder).iterdir(), _HOME / name / folder):
                    os.utime(path, (now, now))

    def _reach_daemons(self) -> None:
        """Wait until all daemons except bgpd listen, and prepare to query them."""
        self._stack.callback(self._terminals.close)
        self._await_daemons(self._wanted, but=("bgpd",))
        _await_none(
            partial(self._untold, {name: {*one.told} for name, one in self._recipes.items()})
        )
        self._settling = Settling(
            self._terminals,
            self._wanted,
            self._routes,
            self._delayed_s,
        )
        files = {name: _HOME / name / _SERVE for name in self._names}
        self._settings = Settings(
            self._terminals, self._wanted, self._spaces, self._netlinks, files
        )

    def _await_daemons(self, routers: Iterable[str], but: Sequence[str] = ()) -> None:
        """Wait until all daemons of these routers except ``but`` listen, and record their
        processes."""
        names = [*routers]
        missing = {(name, one) for name in names for one in self._wanted[name] if one not in but}

        def silent() -> str:
            missing.difference_update({who for who in missing if self._reach(who)})
            return (
                f"this daemon does not listen: {' of '.join(reversed(min(missing)))}"
                if missing
                else ""
            )

        _await_none(silent)
        known = family()
        for name in names:
            self._daemons[name].know(self._wanted[name], known)

    def _untold(self, wanted: Mapping[str, AbstractSet[str]]) -> str:
        """Return a message if an ospfd does not advertise all its redistributed routes, else "".

        ``wanted`` contains the prefixes that each router redistributes. The caller must wait until
        they are advertised. If the network of a route's next hop left OSPF before that, ospfd would
        permanently advertise the route without its forwarding address.
        """
        missing = {(name, "ospfd"): prefixes for name, prefixes in wanted.items() if prefixes}
        answers = self._terminals.ask(dict.fromkeys(missing, _EXTERNAL))
        for who, prefixes in missing.items():
            if left := prefixes - _told(answers.get(who, [])):
                return f"ospfd of {who[0]} does not advertise {min(left)}"
        return ""

    def _know_neighbours(self) -> None:
        """Add permanent ARP entries for direct neighbours and OSPF's multicast groups.

        All namespaces share the kernel's ARP table. If other networks fill the table, the kernel
        drops outgoing hellos, and adjacencies are lost without a cause in this network. The table's
        limit does not apply to permanent entries.
        """
        held = {name: self._addresses(name) for name in self._names}
        for name in self._names:
            messages = []
            with entered(self._spaces[name]):
                indices = {text: index for index, text in socket.if_nameindex()}
            for cable in self._setup.cables:
                for end in (one for one in cable.ends if one.machine == name):
                    index = indices[end.interface]
                    known = [
                        (address, bytes.fromhex(other.mac.replace(":", "")))
                        for other in cable.ends
                        if other != end
                        for address in held[other.machine].get(other.interface, ())
                    ]
                    messages += [permanent_neighbour(index, *one) for one in (*known, *_ALL)]
            self._netlinks[name].send(messages)

    def _addresses(self, name: str) -> dict[str, list[str]]:
        """Return the IPv4 addresses of each interface of a machine."""
        found: dict[str, list[str]] = {}
        netlink = self._netlinks[name]
        with entered(self._spaces[name]):
            names = dict(socket.if_nameindex())
        question = bytes([socket.AF_INET]) + bytes(_ADDRESS_BYTES - 1)
        for content in netlink.dump(GETADDR, question):
            index = int.from_bytes(content[4:8], sys.byteorder)
            local = attributes(content, _ADDRESS_BYTES).get(_IFA_LOCAL, b"")
            if len(local) == 4 and index in names:
                found.setdefault(names[index], []).append(socket.inet_ntoa(local))
        return found

    def _reach(self, who: frr.Who) -> bool:
        return self._terminals.reach(who, _HOME / who[0] / _SOCKETS)

    def _routes(self) -> bytes:
        """Return the kernel routes of all machines."""
        return b"".join(one for name in self._names for one in routes(self._netlinks[name]))

    def _reach_kernels(self) -> None:
        self._netlinks[""] = self._stack.enter_context(Netlink())
        for name in self._names:
            with entered(self._spaces[name]):
                self._netlinks[name] = self._stack.enter_context(Netlink())

    def _listen(self) -> None:
        """Open the sockets and files in each namespace that later observations need."""
        for name in self._names:
            with entered(self._spaces[name]):
                flusher = os.open("/proc/sys/net/ipv4/route/flush", os.O_WRONLY | os.O_CLOEXEC)
                counters = os.open("/proc/thread-self/net/snmp", os.O_RDONLY | os.O_CLOEXEC)
            self._flushers.append(flusher)
            self._counters.append(counters)
            self._stack.callback(os.close, flusher)
            self._stack.callback(os.close, counters)
            self._records.add(self._spaces[name], self._netlinks[name])
        self._echo = Echo()
        self._pulse = Pulse(self._echo)
        addresses = [address for _, address in self._setup.endpoints]
        self._probers = []
        for payload_bytes in (_SMALL_BYTES, self._setup.full_bytes - _HEADERS_BYTES):
            sockets = []
            for name, address in self._setup.endpoints:
                with entered(self._spaces[name]):
                    sockets.append(open_socket(address, whole=True))
            self._probers.append(
                Prober(
                    sockets,
                    addresses,
                    self._echo,
                    self._pulse,
                    self._release,
                    payload_bytes=payload_bytes,
                    fresh=True,
                    meanwhile=self._records.hear,
                )
            )
            self._pingers = sockets
        for prober in self._probers:
            self._stack.callback(prober.close)
        self._taps = way.Taps(self._spaces)
        self._stack.callback(self._taps.close)
        self._servers = serve.Servers(
            self._spaces, {name: _HOME / name / _SERVE for name in self._names}
        )
        self._stack.callback(self._servers.close)
        self._servers.update()
        if self._setup.probed:
            self._probes = Probes(self._setup.probed, self._setup.endpoints, self._spaces)
            self._stack.callback(self._probes.close)

    # -------------------------------------------------------------------------------- commands

    def run(self, machine: str, command: str, timeout_s: float) -> dict[str, Any]:
        """Run an agent's command, or refuse it if agents must not log in to the machine."""
        if not self._recipes[machine].login:
            told = f"[{machine} belongs to another AS: you cannot log in there]\n"
            return {"output": told, "exit": None, "timed_out": False, "stopped": ""}
        self.connect()
        self._converge_s = math.inf
        if self._probes is not None:
            self._probes.begin(machine)
        before = self._settings.of(machine)
        # Only the state before the agent's first command is kept.
        self._first.setdefault(machine, before.digest)
        answer = super().run(machine, command, timeout_s)
        self._wires.follow()  # the next command may read the carrier states
        self._changed |= self._settings.of(machine).digest != before.digest
        logs = _HOME / machine / _LOGS
        if machine in self._daemons and (note := frr.refused_logs(answer["output"], logs)):
            # at the beginning, because the last line of the output reports how the command ended
            answer["output"] = f"[{note}]\n{answer['output']}"
        return answer

    def inject(self, commands: list[list[str]]) -> None:
        """Run commands of this project, given as (machine, command); each of them must succeed.

        The commands have the same consoles and files as agents' commands. Only tests call this
        method, because an episode's faults are part of its setup.
        """
        for machine, command in commands:
            result = shell.run(
                command,
                netns=self._spaces[machine],
                hostname=machine,
                limits=shell.ShellLimits(
                    processes=process_limit(len(self._names), self._spaces[machine])
                ),
                watch=lambda _: self._watch(),
                room=self._room(machine, None),
            )
            if result.exit:
                raise RuntimeError(f"on {machine}: {command}: {result.told}")
            self._changed = True
        self._first.clear()

    def _keep_calm(self) -> None:
        self._wires.follow()
        super()._keep_calm()
        self._note(self._watch())

    def _judged(self) -> int:
        return 0 if self._probes is None else self._probes.sent()

    def _end_probes(self) -> None:
        """Stop sending probe requests and discard their losses.

        The observation of a contingency must not report losses from the time before the
        contingency.
        """
        if self._probes is not None:
            self._probes.end()
            self._probes.clear()

    def _watch(self) -> str:
        self._wires.follow()
        self._servers.serve()
        return next(filter(None, (held.excess() for held in self._daemons.values())), "")

    def _room(self, machine: str, network: Path | None) -> Room:
        found = room(network)
        folder = _HOME / machine
        views, folders = dict(found.views), {"/etc/serve": folder / _SERVE}
        texts = dict(found.texts)
        if resolver := self._resolver(machine):
            texts |= {
                # The timeout is short, because a program may look up each address although the
                # server does not respond.
                "/etc/resolv.conf": f"nameserver {resolver}\noptions timeout:1 attempts:1\n",
                "/etc/nsswitch.conf": _NAMES.sub("hosts: files dns", texts["/etc/nsswitch.conf"]),
            }
        if machine in self._daemons:
            texts |= _VTYSH
            views["/var/run/frr"] = views[frr.SOCKETS] = folder / _SOCKETS
            views[frr.LOGS] = folder / _LOGS
            folders["/etc/frr"] = folder / _SAVED
        return Room(texts=texts, views=views, folders=folders)

    # --------------------------------------------------------------------------- contingencies

    def cut(self, cable: list[str]) -> None:
        """Cut the link between two machines; see ``Wires.cut``."""
        self._end_probes()
        self.connect()
        self._wires.follow()
        self._wires.cut(*cable)
        self._changed, self._converge_s = True, CONVERGE_S

    def restore(self, cable: list[str]) -> None:
        """Restore the link between two machines."""
        self._end_probes()
        self._wires.restore(*cable)
        self._changed = True

    def restart(self, *, from_saved: bool) -> None:
        """End the daemons of all routers with a login, and start all of them again.

        The daemons load the saved configuration (``write memory``) if ``from_saved``, otherwise the
        running configuration. The routers send no packets until all daemons have read their
        configurations.
        """
        self._end_probes()
        self.connect()
        names = [name for name in self._daemons if self._recipes[name].login]
        told = self._terminals.ask(dict.fromkeys(((name, "ospfd") for name in names), _EXTERNAL))
        wanted = {name: _told(answers) for (name, _), answers in told.items()}
        if from_saved:
            files = {name: _HOME / name / _SAVED / "frr.conf" for name in names}
            parts = {
                name: frr.split(serve.read(file, _SAVED_BYTES)) for name, file in files.items()
            }
        else:
            parts = frr.running(self._terminals, {name: self._wanted[name] for name in names})
        frr.end([self._daemons[name] for name in names])
        with self._muted(names):
            for name in names:
                self._terminals.forget(name)
                self._start_router(name, parts[name])
            self._await_daemons(names)
            # The wait may time out, because the saved configuration may lack a redistributed route.
            with contextlib.suppress(EnvironmentFailed):
                _await_none(partial(self._untold, wanted), _READVERTISE_S)
        self._changed, self._converge_s = True, CONVERGE_S

    # --------------------------------------------------------------------------- observations

    def observe(
        self, neighbours: list[list[str]] | None = None, *, confirmed: bool = False
    ) -> dict[str, Any]:
        """Return the settled state; see ``Net.observe``."""
        self.connect()
        self._wires.follow()
        known = None if neighbours is None else {(one, by, to) for one, by, to in neighbours}
        if self._setup.edits and not self._traces:
            traces = leftover.traces(self._setup.edits, self._setup.cables)
            self._traces = [one.shown_in(self._settings.of(one.machine)) for one in traces]
        settled = self._settling.wait(
            changed=self._changed,
            neighbours=known,
            confirmed=confirmed,
            within_s=self._converge_s,
        )
        self._converge_s -= self._settling.took_s
        self._changed = False
        if self._probes is not None:
            self._probes.end()
        size = len(self._setup.endpoints)
        # Only the measurement is padded to a fixed duration, not the convergence of the daemons.
        with padded(backbone_s(size * (size - 1))):
            found = self._look(settled=settled)
        if self._probes is not None:
            found = found.model_copy(update={"lost_s": self._probes.take()})
        return {"state": found.model_dump(mode="json"), "waited_s": 0.0}

    def _look(self, *, settled: bool) -> Observation:
        with self._records.kept():
            small, full = (self._ping(prober) for prober in self._probers)
            services = self._ask()
            ways = self._ways()
        self._forget_paths()
        watched = {*self._first, *(one.machine for one in self._traces)}
        now = {name: self._settings.of(name) for name in watched}
        return Observation(
            small=small,
            full=full,
            services=services,
            ways=ways,
            heard=tuple(self._heard(name) for name in self._setup.ears),
            neighbours=tuple(sorted(self._neighbours())),
            down=self._ended(),
            settled=settled and not any(one.fleeting for one in now.values()),
            touched=tuple(
                name for name, digest in sorted(self._first.items()) if now[name].digest != digest
            ),
            leftover=tuple(
                number for number, one in enumerate(self._traces) if one.is_left(now[one.machine])
            ),
        )

    def _neighbours(self) -> set[Neighbour]:
        """Return the neighbours of the converged network, without unusable OSPF adjacencies.

        If the two ends of a link have different network types, the adjacency may reach the state
        Full, but the ends use no routes through each other.
        """
        look, unlike = self._settling.last, set[Neighbour]()
        for cable in self._setup.cables:
            ends = [(end.machine, end.interface) for end in cable.ends]
            if len({look.types[end] for end in ends if end in look.types}) > 1:
                unlike |= {(machine, "ospf", port) for machine, port in ends}
        return look.neighbours - unlike

    def _resolver(self, name: str) -> str:
        """Return the address of a machine's DNS server, or "" if it has none."""
        return serve.address(serve.read(_HOME / name / _SERVE / "resolver").strip())

    def _ask(self) -> str:
        """Test all services ``_LOOKS`` times and return the majority result of each service.

        All tests are repeated if other networks filled a kernel queue or the kernel's ARP table
        during the tests, whatever the results are.
        """
        asks = self._setup.asks
        resolvers = {name: self._resolver(name) for name in self._names}
        works = [0] * len(asks)
        for _ in range(_LOOKS):
            refused, crowded = neighbours_refused(), self._crowd()
            works = [0] * len(asks)
            for _ in range(_LOOKS):
                told = serve.ask(asks, resolvers, self._spaces, self._servers, self._echo.wait)
                works = [count + (digit == "1") for count, digit in zip(works, told, strict=True)]
                self._records.hear()
            if neighbours_refused() == refused and not crowded():
                break
        self._servers.close_connections()
        self._echo.wait()  # the kernel sends a packet when it closes an established connection
        return "".join(str(int(count > _LOOKS // 2)) for count in works)

    def _ways(self) -> tuple[tuple[str, ...], ...]:
        """Return each pair's most frequent path in ``_LOOKS`` pings; the latest path wins ties."""
        looks = [
            self._taps.ways(self._setup.ways, self._setup.endpoints, self._pingers, self._echo.wait)
            for _ in range(_LOOKS)
        ]
        return tuple(max(reversed(one), key=one.count) for one in zip(*looks, strict=True))

    def _ping(self, prober: Prober) -> tuple[str, ...]:
        self._prober = prober  # used by ``_measure``
        prober.look()
        return self._measure(time.monotonic() + worker.CROWD_S).rows

    def _ended(self) -> tuple[str, ...]:
        return tuple(
            f"{name}/{daemon}" for name, held in self._daemons.items() for daemon in held.ended()
        )

    def _heard(self, name: str) -> tuple[Heard, ...]:
        """Return the routes that a router of another AS received from its peers."""
        who = name, "bgpd"
        answers = self._terminals.ask({who: ("show bgp ipv4 unicast json",)}, frr.LONG_S)
        table = answers[who][0].value if who in answers else None
        routes = table.get("routes") if isinstance(table, dict) else None
        found = []
        for prefix, paths in sorted((routes or {}).items()):
            for path in paths:
                hops = path.get("nexthops") or [{}]
                hop = str(hops[0].get("ip", ""))
                if hop != _OWN:
                    used = bool(path.get("bestpath"))
                    peer = str(path.get("peerId", ""))
                    found.append(Heard(prefix, str(path.get("path", "")), hop, peer, used))
        return tuple(sorted(found))


def _await_none(problem: Callable[[], str], within_s: float = _LISTEN_S) -> None:
    """Wait until ``problem`` returns "", which means that no problem remains.

    Raises EnvironmentFailed with the last returned text if this takes longer than ``within_s``.
    """
    deadline = time.monotonic() + within_s
    while told := problem():
        if time.monotonic() > deadline:
            raise EnvironmentFailed(told)
        time.sleep(_ASK_S)  # daemons send no event when they are ready


def _told(answers: Sequence[frr.Answer]) -> set[str]:
    """Return the prefixes of the external routes in an ospfd's answer to ``_EXTERNAL``."""
    value = answers[0].value if answers else None
    rows = value.get("AS External Link States") if isinstance(value, dict) else None
    return {f"{one['linkStateId']}/{one['networkMask']}" for one in (rows or {}).values()}
