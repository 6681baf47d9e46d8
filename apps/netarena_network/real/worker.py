"""Process of one episode's network, which runs commands in the network and measures it.

Applications derive their own classes, which also build and observe the network. The process is
process 1 of its own namespaces (started by ``zygote``) and exchanges JSON lines over one socket. It
reads ``{"do": name, ...}`` and answers ``{"ok": value}`` or ``{"failed": text}``, one request at a
time. Each answer has ``cpu_s``, the CPU time of the process and its children so far. When the
socket closes, the process ends, and everything that it has created is removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import CalledProcessError, SubprocessError
from typing import Any, BinaryIO

from netarena.sdk import EnvironmentFailed, Room, entered, network_files, process_files, shell
from netarena_network.real.baseline import run_shell
from netarena_network.real.guard import Guard, process_limit
from netarena_network.real.kernel_lock import Turns
from netarena_network.real.netlink import (
    Netlink,
    Queue,
    blocked,
    forget_neighbours,
    forward,
    limited_neighbours,
    links,
    most_neighbours,
    neighbours_refused,
    queue_drops,
    queues,
    release_neighbours,
    set_neighbours_aside,
    settle_link,
    stop_queues,
    unsent,
    unsettled,
)
from netarena_network.real.prober import CONVERSATIONS, Prober, Pulse, Round
from netarena_network.real.record import Records
from netarena_network.real.tool import room

#: Maximum time in s to wait for links before a round. It is limited because some configurations
#: keep a link down permanently.
READY_S = 1.5
#: Time limits in s and minimum number of tries for repeated rounds. If the kernel's ARP table was
#: full, a round is repeated for up to ROOM_S, but tried at least _ROOM_TRIES times. If a queue
#: was full, rounds are repeated for up to CROWD_S in total.
ROOM_S, CROWD_S, _ROOM_TRIES = 20.0, 15.0, 3
#: First and longest pause between repetitions. Pauses double each time, so that other networks can
#: finish.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
#: Interval in s of the checks for activity that commands left in the kernel. The checks run between
#: requests.
_CALM_S = 0.5
#: Limit on open files: enough for the sockets of all machines, and a few files for each machine.
OPEN_FILES = 16384


class Worker:
    """Builds one network, runs commands in it and measures it; base class of the applications'
    workers.

    A subclass opens the network and sets ``_pulse`` and ``_prober``.
    """

    #: Subclasses set these two attributes when the network is built.
    _pulse: Pulse
    _prober: Prober

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
        #: Whether this process is process 1 of its own namespaces. If so, its mounts affect only
        #: its commands.
        self._alone = os.getpid() == 1
        #: Guards of the machines on which agents' commands ran.
        self._guards: dict[str, Guard] = {}
        #: Messages about activity that has been stopped on machines since the last command. They
        #: are included in the output of the next command.
        self._notes: list[str] = []
        #: Two numbers of ARP entries of this network in a measurement: the largest number so far,
        #: and the number of unresolved entries that were deleted since then.
        self._most_entries = self._released_entries = 0

    @property
    def _names(self) -> Sequence[str]:
        """Names of the machines."""
        raise NotImplementedError

    def serve(self, connection: socket.socket, lines: BinaryIO, first: bytes = b"") -> None:
        """Answer a connection's requests until it closes; ``first`` is a request that was already
        read."""
        with self._stack:
            line = first or self._next_line(connection, lines)
            while line:
                connection.sendall(self._answer(json.loads(line)))
                line = self._next_line(connection, lines)

    def _next_line(self, connection: socket.socket, lines: BinaryIO) -> bytes:
        """Wait for the next request and return it, or b"" when the connection has closed.

        During the wait, the guards stop activity that agents' commands left in the kernel. The
        pings of a measurement may trigger such activity.
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
        """Store a message for the next command's output, unless it is already stored."""
        if note and (text := f"{machine}: {note}" if machine else note) not in self._notes:
            self._notes.append(text)

    def _requests(self) -> dict[str, Callable[..., Any]]:
        """Return the functions that answer requests; subclasses add ``build`` and ``observe``."""
        return {"inject": self.inject, "run": self.run}

    def _answer(self, request: dict[str, Any]) -> bytes:
        try:
            answer = {"ok": self._requests()[request.pop("do")](**request)}
        except CalledProcessError as error:
            answer = {"failed": f"{error.cmd[-1]}: {error.stdout.strip()}"}
        except EnvironmentFailed as error:
            answer = {"failed": error.detail, "ours": error.proven_ours}
        except Exception as error:  # noqa: BLE001 -- the service must receive every error
            answer = {"failed": f"{type(error).__name__}: {error}"}
        answer["cpu_s"] = cpu_used_s()
        return json.dumps(answer, separators=(",", ":")).encode() + b"\n"

    def inject(self, commands: list[list[str]]) -> None:
        """Run this program's own commands, given as (machine, command); each must succeed. Tests
        use this method."""
        for machine, command in commands:
            with entered(self._spaces[machine]):
                run_shell(command)

    def run(self, machine: str, command: str, timeout_s: float) -> dict[str, Any]:
        """Run an agent's command in the sandbox; raise KeyError for an unknown machine."""
        space = self._spaces[machine]
        machines = len(self._names)
        guard = self._guards[machine] = Guard(space, machines, self._judged)
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
        """Return an additional reason to kill the running command, or ""; subclasses may override
        this."""
        return ""

    def _judged(self) -> int:
        """Return the number of the judge's packets that the command's machine has sent since the
        command began.

        Subclasses may override this method.
        """
        return 0

    def _room(self, machine: str, network: Path | None) -> Room:
        """Return the files that are added to a machine for commands."""
        del machine
        return room(network)

    def _release(self, queued: bool) -> bool:  # noqa: FBT001 -- called by the prober
        """Drop packets that wait for unresolved ARP entries and, if ``queued``, packets in queues.

        Returns whether any packet was dropped.
        """
        machines = [self._netlinks[name] for name in self._names]
        released = sum(release_neighbours(machine) for machine in machines)
        self._released_entries += released
        stopped = [stop_queues(machine) for machine in machines] if queued else []
        return bool(released) or any(stopped)

    def _revive(self) -> str:
        """If waiting replies block all of the kernel's pings, drop the replies of this network.

        Other networks do the same, so that pings soon work again, whichever network is the cause.
        Returns a message if this network was the cause, else "".
        """
        if not self._guards or not self._pulse.stands():
            return ""
        for queued in (False, True):
            if self._release(queued) and not self._pulse.stands():
                return "its packets kept the kernel from answering pings"
        return ""

    def _await_links(self) -> None:
        """Make the kernel process link changes immediately.

        Links and bridges need up to a second to detect their other end. Without this call, a round
        would measure this delay. Pings do not change links.
        """
        deadline = time.monotonic() + READY_S
        while True:
            found = {name: [*links(netlink)] for name, netlink in self._netlinks.items()}
            waiting = {name: [*filter(unsettled, some)] for name, some in found.items()}
            for name, some in waiting.items():
                self._netlinks[name].send([settle_link(link.ifindex) for link in some])
            if not any(waiting.values()):
                break
            if time.monotonic() >= deadline:
                # the requests above may have changed the links
                found[""] = [*links(self._netlinks[""])]
                break
            time.sleep(0.01)  # some kernels process the changes only after a delay
        self._netlinks[""].send([forward(link.ifindex) for link in found[""] if blocked(link)])

    def _make_ready(self) -> None:
        """Delete the ARP entries, redirects and path MTUs that the machines have learnt.

        This is called before each conversation (one or two pings for each pair). If an earlier ARP
        request is still unanswered, the kernel repeats it only after a second. Without this call,
        the measurement would attribute that delay to the conversation's pings.
        """
        self._count_entries(sum(forget_neighbours(self._netlinks[name]) for name in self._names))
        self._forget_paths()

    def _count_entries(self, present: int) -> None:
        """Record how many ARP entries exist at the end of a conversation."""
        self._most_entries = max(self._most_entries, present + self._released_entries)
        self._released_entries = 0

    def _forget_paths(self) -> None:
        """Flush the redirects and path MTUs that the machines have learnt."""
        for descriptor in self._flushers:
            os.write(descriptor, b"1")

    def _queues(self) -> Callable[[], list[Queue]]:
        """Return a function that lists the queues of the machines that have queues now."""
        machines = [one for name in self._names if queues(one := self._netlinks[name])]
        return lambda: [queue for machine in machines for queue in queues(machine)]

    def _measure(self, crowd_until: float, conversations: int = CONVERSATIONS) -> Round:
        """Measure, and repeat the measurement as long as shared kernel resources were full.

        These resources are the ARP table, each processor's packet queue, and the buffer of ping
        replies. Other networks may fill these resources at any time, and lost packets then do not
        indicate a fault in this network. The measurement is repeated regardless of its result.

        After ``crowd_until`` (monotonic, s), a measurement counts even if queues were full, because
        its own packets may have filled the queues. Raises EnvironmentFailed if the ARP table stays
        full and packets are lost. The error counts as a proven environment failure in two cases:
        more than half of the entries belong to other networks, or other networks filled the table
        while this network sent no packets.
        """
        deadline = time.monotonic() + ROOM_S
        pause_s, tries, others = _FIRST_PAUSE_S, 0, False
        while True:
            with self._turns.take(self._places):
                self._await_links()
                self._most_entries = self._released_entries = 0
                table, crowded = neighbours_refused(), self._crowd()
                found = self._prober.measure(self._queues(), self._make_ready, conversations)
                full = neighbours_refused() != table
                others |= full and self._has_few_neighbours()
                for netlink in self._netlinks.values():
                    set_neighbours_aside(netlink)
            tries += 1
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
            self._make_ready()  # frees ARP entries of this network for other networks
            silent = neighbours_refused()
            time.sleep(pause_s)  # this network sends no packets during the pause
            others |= neighbours_refused() > silent
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _has_few_neighbours(self) -> bool:
        """Return whether this network had less than half of the kernel's ARP entries when the table
        was full."""
        self._count_entries(sum(map(limited_neighbours, self._netlinks.values())))
        return 2 * self._most_entries < most_neighbours()

    def _crowd(self) -> Callable[[], bool]:
        """Return a function that returns whether a buffer has overflowed since ``_crowd`` was
        called.

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

    def _reap(self) -> None:
        """Reap processes that commands left to process 1.

        Zombie processes count towards the process limit.
        """
        if self._alone:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def cpu_used_s() -> float:
    """Return the CPU time in s of this process and of its children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + used.ru_utime + used.ru_stime
