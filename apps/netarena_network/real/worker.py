"""Process of one episode's network: builds it, breaks it, runs commands in it, measures it.

It is process 1 of its own namespaces (started by ``zygote``) and uses JSON lines over one socket.
It reads ``{"do": name, ...}`` and answers ``{"ok": value}`` or ``{"failed": text}``, one request at
a time. Each answer has ``cpu_s``: the CPU time of the process and its children so far. The process
ends with the socket, and everything that it created ends with it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import select
import socket
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import CalledProcessError, SubprocessError
from typing import Any, BinaryIO, NamedTuple

from netarena.sdk import EnvironmentFailed, Room, entered, network_files, process_files, shell
from netarena_network.real import mn
from netarena_network.real.guard import Guard, process_limit
from netarena_network.real.kernel_lock import Turns
from netarena_network.real.links import configure, run_shell
from netarena_network.real.netlink import (
    NETFILTER,
    Netlink,
    Queue,
    blocked,
    forget_neighbours,
    forward,
    links,
    neighbours_refused,
    queue_drops,
    queues,
    release_neighbours,
    ruleset_generation,
    set_neighbours_aside,
    settle_link,
    stop_queues,
    unsent,
    unsettled,
)
from netarena_network.real.pace import observation_s, padded
from netarena_network.real.prober import CONVERSATIONS, Echo, Prober, Pulse, Round, open_socket
from netarena_network.real.reading import fleeting
from netarena_network.real.record import Records
from netarena_network.real.tool import hide_consoles, room
from netarena_route.real import netns
from netarena_route.real.draft import draft
from netarena_route.real.snapshot import Entry, Held, Snapshot, hold
from netarena_route.real.state_dump import Trace, state
from netarena_route.world.model import Machine, World

EMULATORS: Mapping[str, Callable[[World], Mapping[str, int]]] = {
    "mininet": mn.build,
    "netns": netns.build,
}

#: Maximum time to wait for links before a round; a link may be configured to never come up.
READY_S = 1.5
#: A new network must be as computed after this time, in addition to the time of one round, and
#: after at least this many rounds.
HEALTHY_S, _LEAST_ROUNDS = 15.0, 3
#: A round is repeated for up to ROOM_S, at least _ROOM_TRIES times, if the kernel's ARP table was
#: full. Rounds are repeated for up to CROWD_S in all if a queue was full.
ROOM_S, CROWD_S, _ROOM_TRIES = 20.0, 15.0, 3
#: Pauses between repetitions, which double up to the second value so that other networks can
#: finish.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
#: Interval of checks, between requests, of what commands left running in the kernel.
_CALM_S = 0.5
#: Maximum number of rows of unsettled settings; generation of an unchanged ruleset.
_MOST_UNSETTLED, _NO_RULES = 20, 1
#: Limit of open files: the sockets of all machines, and a few files for each.
OPEN_FILES = 16384


class _Look(NamedTuple):
    """Reading of a machine: the part for snapshots and, if requested, the part for traces."""

    held: Held
    entries: frozenset[Entry]


def _look(machine: Machine, space: int, netlink: Netlink, *, traced: Container[str]) -> _Look:
    held = hold(machine, space, netlink)
    found = state(space, netlink, held.entries) if machine.name in traced else frozenset()
    return _Look(held, found)


class Worker:
    """One network from its creation to its end."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        #: Number of entries of the kernel's ARP table that a round needs.
        self._places = 0
        self._stack = contextlib.ExitStack()
        self._spaces: Mapping[str, int] = {}
        self._netlinks: dict[str, Netlink] = {}
        self._flushers: list[int] = []
        self._counters: list[int] = []
        self._records = Records()
        self._stack.callback(self._records.close)
        #: Whether this is process 1 of its own namespaces, so that only its commands see its
        #: mounts.
        self._alone = os.getpid() == 1
        #: Guards of the machines on which agents' commands ran.
        self._guards: dict[str, Guard] = {}
        #: Messages about what was ended on machines since the last command, for the next one's
        #: output.
        self._notes: list[str] = []
        #: In tickets: finds remains of faults or, in false alarms, changes by commands.
        self._trace: Trace | None = None
        #: By machine with commands: settings that ended or began by themselves before the commands.
        self._fleeting: dict[str, frozenset[str]] = {}

    @property
    def _names(self) -> Sequence[str]:
        """Names of the machines."""
        return self._world.endpoints

    def serve(self, connection: socket.socket, lines: BinaryIO, first: bytes = b"") -> None:
        """Answer the requests of a connection until it closes; ``first`` is one already read."""
        with self._stack:
            line = first or self._next_line(connection, lines)
            while line:
                connection.sendall(self._answer(json.loads(line)))
                line = self._next_line(connection, lines)

    def _next_line(self, connection: socket.socket, lines: BinaryIO) -> bytes:
        """Wait for the next request and return it, or b"" at the end.

        Meanwhile the guards stop what agents' commands left in the kernel, since some of it becomes
        active only with the pings that measure the network.
        """
        while not select.select([connection], [], [], _CALM_S)[0]:
            self._keep_calm()
        return lines.readline()

    def _keep_calm(self) -> None:
        with contextlib.suppress(OSError):
            self._note(self._revive())
        for machine, guard in self._guards.items():
            # Errors are ignored: the check is repeated soon, and the next request reports failures.
            with contextlib.suppress(OSError, SubprocessError, EnvironmentFailed):
                self._note(guard.calm(), machine)

    def _note(self, note: str, machine: str = "") -> None:
        """Store a message once for the next command's output."""
        if note and (text := f"{machine}: {note}" if machine else note) not in self._notes:
            self._notes.append(text)

    def _answer(self, request: dict[str, Any]) -> bytes:
        do: dict[str, Callable[..., Any]] = {
            "build": self.build,
            "inject": self.inject,
            "run": self.run,
            "observe": self.observe,
        }
        try:
            answer = {"ok": do[request.pop("do")](**request)}
        except CalledProcessError as error:
            answer = {"failed": f"{error.cmd[-1]}: {error.stdout.strip()}"}
        except EnvironmentFailed as error:
            answer = {"failed": error.detail, "ours": error.proven_ours}
        except Exception as error:  # noqa: BLE001 -- the service must receive every error
            answer = {"failed": f"{type(error).__name__}: {error}"}
        answer["cpu_s"] = cpu_used_s()
        return json.dumps(answer, separators=(",", ":")).encode() + b"\n"

    def build(
        self,
        world: dict[str, Any],
        emulator: str,
        faults: Sequence[tuple[str, str]] = (),
        wanted: Sequence[str] = (),
        traced: bool = False,  # noqa: FBT001, FBT002 -- a field of a message
    ) -> dict[str, float]:
        """Build the network with its faults and verify it; return the durations in s.

        ``faults`` are commands of our own, each with its machine. ``wanted`` is the resulting
        matrix, by default the intended one. With ``traced``, each state reports the remains of
        faults or, without faults, the changes by commands. ``cpu_s`` is the CPU time of building,
        and ``waited_s`` the part of verifying that was spent waiting for pings that never arrived.
        """
        began = time.monotonic()
        self._world = World.model_validate(world)
        self._places = 0 if self._world.permanent else self._world.neighbours
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, OPEN_FILES), hard))
        if self._alone:
            hide_consoles()
        commands: dict[str, list[str]] = {}
        for machine, command in faults:
            commands.setdefault(machine, []).append(command)
        forms, drafts = draft(
            self._world, commands, partial(_look, traced=set(commands) if traced else ())
        )
        self._spaces = EMULATORS[emulator](self._world)
        for space in self._spaces.values():
            self._stack.callback(os.close, space)
        configure(self._world, self._spaces, forms)
        self._listen()
        built, cpu_s = time.monotonic(), cpu_used_s()
        self._snapshot = Snapshot(
            self._world,
            self._spaces,
            self._netlinks,
            {name: one.intended.held for name, one in drafts.items()},
        )
        if traced:
            self._trace = Trace(
                self._look_at,
                {
                    name: (drafts[name].intended.entries, drafts[name].faulty.entries)
                    for name in commands
                },
            )
        with self._records.kept():
            waited_s = self._verify(tuple(wanted) or self._world.intended)
        return {
            "built_s": built - began,
            "cpu_s": cpu_s,
            "verified_s": time.monotonic() - built,
            "waited_s": waited_s,
        }

    def _look_at(self, machine: str) -> frozenset[Entry]:
        """Return the current entries of a machine for a trace."""
        return _look(
            self._world.machine(machine),
            self._spaces[machine],
            self._netlinks[machine],
            traced=(machine,),
        ).entries

    def inject(self, commands: list[list[str]]) -> None:
        """Run (machine, command) pairs of our own, each of which must succeed; used by tests."""
        for machine, command in commands:
            with entered(self._spaces[machine]):
                run_shell(command)

    def run(self, machine: str, command: str, timeout_s: float) -> dict[str, Any]:
        """Run an agent's command in the sandbox; raises KeyError for an unknown machine."""
        space = self._spaces[machine]
        machines = len(self._names)
        guard = self._guards[machine] = Guard(space, machines)
        if self._trace is not None:
            self._trace.touch(machine)
        if machine not in self._fleeting:
            self._fleeting[machine] = self._read_fleeting(machine)
        with contextlib.ExitStack() as stack:
            network = None
            if self._alone:
                with entered(space):
                    network = stack.enter_context(network_files())
                stack.enter_context(process_files())
            result = shell.run(
                command,
                netns=space,
                hostname=machine,
                limits=replace(
                    shell.ShellLimits(), wall_s=timeout_s, processes=process_limit(machines, space)
                ),
                watch=lambda pid: guard.watch(pid) or self._revive() or self._watch(),
                room=self._room(machine, network),
            )
        self._note(self._revive())
        self._note(guard.calm())
        notes, self._notes = self._notes, []
        self._reap()
        told = result.told
        for note in notes:
            told += f"{'' if told.endswith(chr(10)) or not told else chr(10)}[{note}]\n"
        return {
            "output": told,
            "exit": result.exit,
            "timed_out": result.timed_out,
            "stopped": result.stopped,
        }

    def _watch(self) -> str:
        """Return a further reason to end the running command, or ""; subclasses override this."""
        return ""

    def _room(self, machine: str, network: Path | None) -> Room:
        """Return the files that a command finds on a machine."""
        del machine
        return room(network)

    def observe(self) -> dict[str, Any]:
        """Return the settled state (see ``state``), and ``waited_s`` as in ``build``.

        Packets and duration are the same whatever is found.
        """
        began = time.monotonic()
        size = len(self._names)
        with padded(observation_s(size * (size - 1))):
            found = self._rounds()
            measured_s = time.monotonic() - began
            stolen, collateral, switches = self._snapshot.compare()
            state: dict[str, Any] = {
                "matrix": found.rows,
                "stolen": stolen,
                "switches": switches,
                "collateral": collateral,
                **({} if self._trace is None else {"leftover": self._trace.left()}),
                **({"unsettled": passing} if (passing := self._unsettled()) else {}),
            }
        padding_s = max(0.0, time.monotonic() - began - measured_s)
        return {"state": state, "waited_s": found.waited_s + padding_s}

    def _unsettled(self) -> list[list[str]]:
        """Return rows (machine, text) of commands' settings that end or begin by themselves."""
        return [
            [machine, text]
            for machine, before in self._fleeting.items()
            for text in sorted(self._read_fleeting(machine) - before)
        ][:_MOST_UNSETTLED]

    def _read_fleeting(self, machine: str) -> frozenset[str]:
        with entered(self._spaces[machine]):
            with Netlink(NETFILTER) as netfilter:
                new = ruleset_generation(netfilter) <= _NO_RULES
            listed = "" if new else run_shell("nft --stateless list ruleset || true").stdout
        return fleeting(self._netlinks[machine], listed)

    def _listen(self) -> None:
        """Open the sockets and files that rounds need in each namespace, and keep them open."""
        self._netlinks[""] = self._stack.enter_context(Netlink())
        sockets = []
        for name in self._names:
            with entered(self._spaces[name]):
                sockets.append(open_socket())
                self._netlinks[name] = self._stack.enter_context(Netlink())
                flusher = os.open("/proc/sys/net/ipv4/route/flush", os.O_WRONLY | os.O_CLOEXEC)
                counters = os.open("/proc/thread-self/net/snmp", os.O_RDONLY | os.O_CLOEXEC)
            self._flushers.append(flusher)
            self._counters.append(counters)
            self._stack.callback(os.close, flusher)
            self._stack.callback(os.close, counters)
            self._records.add(self._spaces[name], self._netlinks[name])
        echo = Echo()
        self._pulse = Pulse(echo)
        self._prober = Prober(
            sockets,
            self._world.addresses,
            echo,
            self._pulse,
            self._release,
            meanwhile=self._records.hear,
        )
        self._stack.callback(self._prober.close)

    def _release(self, queued: bool) -> bool:  # noqa: FBT001 -- called by the prober
        """Drop packets that wait for unresolved ARP entries and, if ``queued``, in queues.

        Returns whether there were any.
        """
        machines = [self._netlinks[name] for name in self._names]
        released = [release_neighbours(machine) for machine in machines]
        if queued:
            released += [stop_queues(machine) for machine in machines]
        return any(released)

    def _revive(self) -> str:
        """If waiting replies block all of the kernel's pings, drop those of this network.

        Other networks do the same, so that all are free at once, whichever caused it. Returns a
        message if this network was the cause, else "".
        """
        if not self._guards or not self._pulse.stands():
            return ""
        for queued in (False, True):
            if self._release(queued) and not self._pulse.stands():
                return "its packets kept the kernel from answering pings"
        return ""

    def _make_ready(self) -> None:
        """Make the kernel act on changes now, and forget what it has learnt.

        Links and bridges need up to a second to detect their other end, and the kernel repeats an
        unanswered ARP request only after a second. Without this, a round would measure these
        delays.
        """
        deadline = time.monotonic() + READY_S
        while not self._settle_links() and time.monotonic() < deadline:
            time.sleep(0.01)  # some kernels act only in their own time
        switches = self._netlinks[""]
        switches.send([forward(link.ifindex) for link in links(switches) if blocked(link)])
        for name in self._names:
            forget_neighbours(self._netlinks[name])
        self._forget_paths()

    def _forget_paths(self) -> None:
        """Flush the redirects and path MTUs that the kernels have learnt."""
        for descriptor in self._flushers:
            os.write(descriptor, b"1")

    def _settle_links(self) -> bool:
        """Return whether all links have settled; ask the others to do so."""
        settled = True
        for netlink in self._netlinks.values():
            if waiting := [link.ifindex for link in links(netlink) if unsettled(link)]:
                settled = False
                netlink.send([settle_link(index) for index in waiting])
        return settled

    def _queues(self) -> Callable[[], list[Queue]]:
        """Return a function that lists the queues of those machines that have any now."""
        machines = [one for name in self._names if queues(one := self._netlinks[name])]
        return lambda: [queue for machine in machines for queue in queues(machine)]

    def _verify(self, wanted: tuple[str, ...]) -> float:
        """Measure until each pair that works in ``wanted`` has worked, and no other one.

        Returns the time spent waiting for pings that never arrived. No agent's command has run yet,
        so a packet lost in one round but not in the next was lost because of other networks, which
        keep the kernel busy or fill its queues. Raises RuntimeError if the network is not as
        computed.
        """
        seen = ("0" * len(self._world.endpoints),) * len(self._world.endpoints)
        waited_s, pause_s = 0.0, _FIRST_PAUSE_S
        deadline = None
        number = 0
        while True:
            number += 1
            found = self._measure(crowd_until=-math.inf, conversations=1)
            waited_s += found.waited_s
            seen = _combine(max, seen, found.rows)
            if seen == wanted:
                return waited_s
            # the time starts now, since one round at the largest sizes takes longer than HEALTHY_S
            if deadline is None:
                deadline = time.monotonic() + HEALTHY_S
            if number >= _LEAST_ROUNDS and time.monotonic() > deadline:
                raise RuntimeError(
                    f"the network does not match the computed state after {HEALTHY_S:g} s: "
                    f"{self._first_wrong(wanted, seen)}"
                )
            time.sleep(pause_s)  # other networks may keep the kernel busy
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _rounds(self) -> Round:
        """Measure which pairs work, leaving no traces on any machine."""
        self._prober.look()
        with self._records.kept():
            found = self._measure(time.monotonic() + CROWD_S)
        self._forget_paths()
        return found

    def _measure(self, crowd_until: float, conversations: int = CONVERSATIONS) -> Round:
        """Measure once, and repeat the measurement while shared kernel resources were full.

        These resources are the ARP table, each processor's packet queue, and the buffer of ping
        replies. Other networks may fill them at any time, and a loss then says nothing about this
        network. The measurement is repeated whatever it found.

        After ``crowd_until`` (monotonic, s) a measurement counts even if queues were full, since
        its own packets may have filled them. Raises EnvironmentFailed if the ARP table stays full
        and packets are lost. The failure is a proven environment failure if other networks filled
        the table while this network was silent.
        """
        deadline = time.monotonic() + ROOM_S
        pause_s, tries, others = _FIRST_PAUSE_S, 0, False
        while True:
            with self._turns.take(self._places):
                table, crowded = neighbours_refused(), self._crowd()
                found = self._prober.measure(self._queues(), self._make_ready, conversations)
                for netlink in self._netlinks.values():
                    set_neighbours_aside(netlink)
            tries += 1
            full = neighbours_refused() != table
            if not full and not crowded():
                return found
            if not full and time.monotonic() > crowd_until:
                return found
            if full and tries >= _ROOM_TRIES and time.monotonic() > deadline:
                if not any("0" in row for row in found.rows):
                    return found
                raise EnvironmentFailed(
                    f"the kernel's ARP table was full for {ROOM_S:g} s",
                    proven_ours=others,
                )
            self._keep_calm()
            self._make_ready()  # frees this network's ARP entries for others
            silent = neighbours_refused()
            time.sleep(pause_s)  # no packet of this network is on its way
            others |= neighbours_refused() > silent
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _crowd(self) -> Callable[[], bool]:
        """Return a function that reports whether a shared buffer has overflowed since now.

        The buffers are the processors' packet queues, which all networks share, and the kernel's
        buffer for this network's ping replies.
        """
        drops, before = queue_drops(), [unsent(one) for one in self._counters]

        def grown() -> bool:
            now = map(unsent, self._counters)
            return queue_drops() != drops or any(
                new.messages != old.messages and new.packets != old.packets
                for old, new in zip(before, now, strict=True)
            )

        return grown

    def _first_wrong(self, wanted: tuple[str, ...], rows: tuple[str, ...]) -> str:
        names = self._world.endpoints
        for source, (row, computed) in enumerate(zip(rows, wanted, strict=True)):
            for target, (now, should) in enumerate(zip(row, computed, strict=True)):
                if now != should:
                    verb = "does not reach" if should == "1" else "reaches"
                    return f"{names[source]} {verb} {names[target]}"
        return "no pair differs"

    def _reap(self) -> None:
        """Reap processes that a command left to process 1, since zombies count as processes."""
        if self._alone:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def cpu_used_s() -> float:
    """Return the CPU time of this process and its ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + used.ru_utime + used.ru_stime


def _combine(
    choose: Callable[[tuple[str, str]], str], rows: tuple[str, ...], others: tuple[str, ...]
) -> tuple[str, ...]:
    """Return, for each pair, whether it works in both (``min``) or in either (``max``).

    With ``min``, a pair that works only sometimes does not work.
    """
    return tuple(
        "".join(map(choose, zip(row, other, strict=True)))
        for row, other in zip(rows, others, strict=True)
    )
