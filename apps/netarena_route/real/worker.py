"""Process of one episode's network: builds it, breaks it, runs commands in it, measures it.

It is process 1 of its own namespaces (started by ``zygote``) and speaks JSON lines over one socket:
it reads ``{"do": name, ...}`` and answers ``{"ok": value}`` or ``{"failed": text}``, one at a time,
with ``cpu_s``: the CPU time of the process and its children so far. It ends with the socket, and
everything that it made ends with it.
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

from netarena.errors import EnvironmentFailed
from netarena.sandbox import shell
from netarena.sandbox.namespace import network_files, process_files
from netarena.sandbox.shell import Room, entered
from netarena_route.real import mn, netns
from netarena_route.real.draft import draft
from netarena_route.real.guard import Guard, process_limit
from netarena_route.real.kernel_lock import Turns
from netarena_route.real.links import configure, run_shell
from netarena_route.real.netlink import (
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
from netarena_route.real.pace import observation_s, padded
from netarena_route.real.prober import CONVERSATIONS, Echo, Prober, Pulse, Round, open_socket
from netarena_route.real.reading import fleeting
from netarena_route.real.record import Records
from netarena_route.real.snapshot import Entry, Held, Snapshot, hold
from netarena_route.real.state_dump import Trace, state
from netarena_route.real.tool import hide_consoles, room
from netarena_route.world.model import Machine, World

EMULATORS: Mapping[str, Callable[[World], Mapping[str, int]]] = {
    "mininet": mn.build,
    "netns": netns.build,
}

#: links are waited for so long before a round: one may be told to never come up
READY_S = 1.5
#: a network that is new must be healthy after so long, beyond the time of one round, and after so
#: many rounds at least
HEALTHY_S, _LEAST_ROUNDS = 15.0, 3
#: a round is made again for so long, and so often at least, where the kernel had no room for its
#: neighbours; rounds are for so long in all where a queue had none
ROOM_S, CROWD_S, _ROOM_TRIES = 20.0, 15.0, 3
#: pauses in between, which double up to the second: others come to their end meanwhile
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
#: between looks at what commands left in the kernel, while nothing is asked for
_CALM_S = 0.5
#: rows of what is unsettled; the generation of a ruleset that nobody has changed
_MOST_UNSETTLED, _NO_RULES = 20, 1
#: of all machines' sockets, and a few for each
OPEN_FILES = 16384


class _Look(NamedTuple):
    """A reading of a machine: what a snapshot has of it, and what a trace has, if it is to."""

    held: Held
    entries: frozenset[Entry]


def _look(machine: Machine, space: int, netlink: Netlink, *, traced: Container[str]) -> _Look:
    held = hold(machine, space, netlink)
    found = state(space, netlink, held.entries) if machine.name in traced else frozenset()
    return _Look(held, found)


class Worker:
    """One network, from its world to its end."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        #: of the kernel's table, which a round takes
        self._places = 0
        self._stack = contextlib.ExitStack()
        self._spaces: Mapping[str, int] = {}
        self._netlinks: dict[str, Netlink] = {}
        self._flushers: list[int] = []
        self._counters: list[int] = []
        self._records = Records()
        self._stack.callback(self._records.close)
        #: process 1 of namespaces of its own: what it mounts is seen by its commands alone
        self._alone = os.getpid() == 1
        #: of the machines in which commands of agents ran
        self._guards: dict[str, Guard] = {}
        #: what was ended in them since the last command, which the next one is told
        self._notes: list[str] = []
        #: of a ticket: what faults left, or where there is none, what commands changed
        self._trace: Trace | None = None
        #: of machines in which commands of agents ran: what ended or began by itself before them
        self._fleeting: dict[str, frozenset[str]] = {}

    @property
    def _names(self) -> Sequence[str]:
        """Of the machines."""
        return self._world.endpoints

    def serve(self, connection: socket.socket, lines: BinaryIO, first: bytes = b"") -> None:
        """Answer the ``first`` of a connection's lines, if one was read, and the others until it
        is closed."""
        with self._stack:
            line = first or self._next_line(connection, lines)
            while line:
                connection.sendall(self._answer(json.loads(line)))
                line = self._next_line(connection, lines)

    def _next_line(self, connection: socket.socket, lines: BinaryIO) -> bytes:
        """Wait for a request, of which there is one at a time; empty at the end.

        Meanwhile what agents' commands left in the kernel is kept calm: it may come to life only
        by the pings that measure the network.
        """
        while not select.select([connection], [], [], _CALM_S)[0]:
            self._keep_calm()
        return lines.readline()

    def _keep_calm(self) -> None:
        with contextlib.suppress(OSError):
            self._note(self._revive())
        for machine, guard in self._guards.items():
            # it is looked at again soon, and the next request tells what is broken
            with contextlib.suppress(OSError, SubprocessError, EnvironmentFailed):
                self._note(guard.calm(), machine)

    def _note(self, note: str, machine: str = "") -> None:
        """Keep it for the next command, once."""
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
        except Exception as error:  # noqa: BLE001 -- whatever it is, the service must hear of it
            answer = {"failed": f"{type(error).__name__}: {error}"}
        answer["cpu_s"] = cpu_used_s()
        return json.dumps(answer, separators=(",", ":")).encode() + b"\n"

    def build(
        self,
        world: dict[str, Any],
        emulator: str,
        faults: Sequence[tuple[str, str]] = (),
        wanted: Sequence[str] = (),
        traced: bool = False,  # noqa: FBT001, FBT002 -- of a message
    ) -> dict[str, float]:
        """Make the network with its faults and verify it; how long each took, in s.

        ``faults`` are commands of our own, each with its machine; ``wanted`` is the matrix that
        they come to, by default the intended one. With ``traced`` each state reports what is left
        of the faults, and without any what commands change. ``cpu_s`` is what making the network
        used, ``waited_s`` the part of verifying that was waiting for pings that never came.
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
        """What is on a machine now, as a trace has it."""
        return _look(
            self._world.machine(machine),
            self._spaces[machine],
            self._netlinks[machine],
            traced=(machine,),
        ).entries

    def inject(self, commands: list[list[str]]) -> None:
        """Run (machine, command) pairs of our own, each of which must succeed: for tests."""
        for machine, command in commands:
            with entered(self._spaces[machine]):
                run_shell(command)

    def run(self, machine: str, command: str, timeout_s: float) -> dict[str, Any]:
        """Run what an agent sent, in the sandbox; an unknown machine is a KeyError."""
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
                    shell.Limits(), wall_s=timeout_s, processes=process_limit(machines, space)
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
        """Why a command must end, by what else it may harm; empty if it need not."""
        return ""

    def _room(self, machine: str, network: Path | None) -> Room:
        """What a command finds on a machine."""
        del machine
        return room(network)

    def observe(self) -> dict[str, Any]:
        """The settled state (see ``state``), and ``waited_s`` as ``build`` has it.

        Packets and time are the same whatever is found.
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
        """Rows (machine, text): what commands have set that ends or begins by itself later."""
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
        """Open what rounds need in each namespace, and keep it."""
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
        """Drop what waits for neighbours that do not answer, in queues too if ``queued``;
        whether anything did."""
        machines = [self._netlinks[name] for name in self._names]
        released = [release_neighbours(machine) for machine in machines]
        if queued:
            released += [stop_queues(machine) for machine in machines]
        return any(released)

    def _revive(self) -> str:
        """Where the kernel answers nobody's pings since replies wait, let go of those that wait
        here; words about it if that was the cause.

        Others do the same in theirs: whoever began it, all are free at once.
        """
        if not self._guards or not self._pulse.stands():
            return ""
        for queued in (False, True):
            if self._release(queued) and not self._pulse.stands():
                return "its packets kept the kernel from answering pings"
        return ""

    def _make_ready(self) -> None:
        """Have the kernel act on what has changed, and forget what it has learnt.

        Links and bridges take up to a second to see that their other end is up, and a neighbour
        that did not answer is asked for again after a second only: a round would measure these.
        """
        deadline = time.monotonic() + READY_S
        while not self._settle_links() and time.monotonic() < deadline:
            time.sleep(0.01)  # of a kernel that does so in its own time only
        switches = self._netlinks[""]
        switches.send([forward(link.ifindex) for link in links(switches) if blocked(link)])
        for name in self._names:
            forget_neighbours(self._netlinks[name])
        self._forget_paths()

    def _forget_paths(self) -> None:
        """Flush what the kernels have learnt of paths to others: redirects and smaller MTUs."""
        for descriptor in self._flushers:
            os.write(descriptor, b"1")

    def _settle_links(self) -> bool:
        """Whether all links have settled; those that had not are asked to."""
        settled = True
        for netlink in self._netlinks.values():
            if waiting := [link.ifindex for link in links(netlink) if unsettled(link)]:
                settled = False
                netlink.send([settle_link(index) for index in waiting])
        return settled

    def _queues(self) -> Callable[[], list[Queue]]:
        """What tells of the queues of those machines that have any now."""
        machines = [one for name in self._names if queues(one := self._netlinks[name])]
        return lambda: [queue for machine in machines for queue in queues(machine)]

    def _verify(self, wanted: tuple[str, ...]) -> float:
        """Measure until each pair that works in ``wanted`` has worked, and no other ever; how long
        pings that never came were waited for.

        No command of an agent has run yet: what is lost in one round and not in the next is lost
        to others, who keep the kernel busy or fill its queues. Raises RuntimeError.
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
            if deadline is None:  # one round at the largest sizes takes longer than all waiting
                deadline = time.monotonic() + HEALTHY_S
            if number >= _LEAST_ROUNDS and time.monotonic() > deadline:
                raise RuntimeError(
                    f"not as computed after {HEALTHY_S:g} s: {self._first_wrong(wanted, seen)}"
                )
            time.sleep(pause_s)  # of a kernel that others keep busy
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _rounds(self) -> Round:
        """Measure what works, and leave nothing of it on any machine."""
        self._prober.look()
        with self._records.kept():
            found = self._measure(time.monotonic() + CROWD_S)
        self._forget_paths()
        return found

    def _measure(self, crowd_until: float, conversations: int = CONVERSATIONS) -> Round:
        """Measure once while nothing is lost for want of room in what the kernel has once for all
        its namespaces: the table of neighbours, each processor's queue, the buffer of its replies.
        Others may fill these at any time, and what is lost then says nothing about this network;
        so the measurement is made again, whatever it found.

        One that loses for want of room in queues after ``crowd_until`` (monotonic, s) counts: these
        may be its own packets. Raises EnvironmentFailed when the table stays full and packets are
        lost. It is proven ours if others were seen to fill it while this network was silent.
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
                    f"the kernel's neighbour table was full for {ROOM_S:g} s",
                    proven_ours=others,
                )
            self._keep_calm()
            self._make_ready()  # what this network holds of the table is free for others
            silent = neighbours_refused()
            time.sleep(pause_s)  # none of its packets is on its way
            others |= neighbours_refused() > silent
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _crowd(self) -> Callable[[], bool]:
        """Whether, since now, a processor's queue had no room for a packet, anybody's, or the
        kernel's buffer none for a reply of this network."""
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
        """Bury what a command left to process 1: zombies count as processes."""
        if self._alone:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def cpu_used_s() -> float:
    """What this process and those that it has seen the end of have used since their start."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + used.ru_utime + used.ru_stime


def _combine(
    choose: Callable[[tuple[str, str]], str], rows: tuple[str, ...], others: tuple[str, ...]
) -> tuple[str, ...]:
    """Pair by pair, what works in both (``min``: what works now and then does not work) or in
    either (``max``)."""
    return tuple(
        "".join(map(choose, zip(row, other, strict=True)))
        for row, other in zip(rows, others, strict=True)
    )
