"""Process of one episode's network. It builds a world with its faults and observes the network."""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any, NamedTuple

from netarena.sdk import entered
from netarena_network.real import worker
from netarena_network.real.baseline import run_shell
from netarena_network.real.kernel_lock import Turns
from netarena_network.real.netlink import NETFILTER, Netlink, ruleset_generation
from netarena_network.real.pace import observation_s, padded
from netarena_network.real.prober import Echo, Prober, Pulse, Round, open_socket
from netarena_network.real.reading import fleeting
from netarena_network.real.tool import hide_consoles
from netarena_route.real.build import EMULATORS
from netarena_route.real.draft import draft
from netarena_route.real.links import configure
from netarena_route.real.snapshot import Entry, Held, Snapshot, hold
from netarena_route.real.state_dump import Trace, state
from netarena_route.world.model import Machine, World

#: Limits for the verification of a new network: maximum time after the first round, and minimum
#: number of rounds.
HEALTHY_S, _LEAST_ROUNDS = 15.0, 3
#: First and longest pause between rounds, in s. Each pause is twice as long as the previous one, so
#: that other networks can finish.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
#: Maximum number of rows of unsettled settings; generation number of an unchanged ruleset.
_MOST_UNSETTLED, _NO_RULES = 20, 1


class _Look(NamedTuple):
    """Reading of a machine: the entries for snapshots and, if requested, the entries for traces."""

    held: Held
    entries: frozenset[Entry]


def _look(machine: Machine, space: int, netlink: Netlink, *, traced: Container[str]) -> _Look:
    held = hold(machine, space, netlink)
    found = state(space, netlink, held.entries) if machine.name in traced else frozenset()
    return _Look(held, found)


class RouteWorker(worker.Worker):
    """Builder and observer of one network, which also runs commands in it. Each process has one
    such object."""

    def __init__(self, turns: Turns) -> None:
        super().__init__(turns)
        #: In tickets, the reader of remaining parts of faults or, in false alarms, of changes by
        #: commands.
        self._trace: Trace | None = None
        #: Machine -> settings that existed before the machine's first command and that expire or
        #: take effect later.
        self._fleeting: dict[str, frozenset[str]] = {}

    @property
    def _names(self) -> Sequence[str]:
        return self._world.endpoints

    def _requests(self) -> dict[str, Callable[..., Any]]:
        return {**super()._requests(), "build": self.build, "observe": self.observe}

    def build(
        self,
        world: dict[str, Any],
        emulator: str,
        faults: Sequence[tuple[str, str]] = (),
        wanted: Sequence[str] = (),
        traced: bool = False,  # noqa: FBT001, FBT002 -- fields of a message
    ) -> dict[str, float]:
        """Build the network with its faults and verify it; return the durations in s.

        ``faults`` are this program's own commands, each with its machine. ``wanted`` is the
        expected matrix, by default the intended matrix. With ``traced``, each state reports the
        remaining parts of faults or, if there are no faults, the changes by commands. ``cpu_s`` is
        the CPU time of building. ``waited_s`` is the time that the verification waited for pings
        that never arrived.
        """
        began = time.monotonic()
        self._world = World.model_validate(world)
        self._places = 0 if self._world.permanent else self._world.neighbours
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, worker.OPEN_FILES), hard))
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
        built, cpu_s = time.monotonic(), worker.cpu_used_s()
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

    def run(self, machine: str, command: str, timeout_s: float) -> dict[str, Any]:
        """Run an agent's command in the sandbox. Raises KeyError for an unknown machine."""
        if self._trace is not None:
            self._trace.touch(machine)
        if machine not in self._fleeting:
            self._fleeting[machine] = self._read_fleeting(machine)
        self._snapshot.touch(machine)
        return super().run(machine, command, timeout_s)

    def inject(self, commands: list[list[str]]) -> None:
        """Run this program's own (machine, command) pairs, which must all succeed. Only tests use
        this method."""
        for machine, _ in commands:
            self._snapshot.touch(machine)
        super().inject(commands)

    def observe(self) -> dict[str, Any]:
        """Return the settled state (see ``state``), and ``waited_s`` as in ``build``.

        The sent packets and the duration do not depend on the result.
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
        """Return rows (machine, text) of settings that commands made and that expire or take effect
        later."""
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
        """Open the sockets and files that rounds need in each namespace, and leave them open."""
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

    def _verify(self, wanted: tuple[str, ...]) -> float:
        """Measure until the pairs that have worked at least once are exactly the pairs that work in
        ``wanted``.

        Returns the time in s spent waiting for pings that never arrived. No agent's command has run
        yet. If a packet is lost only in some rounds, the cause is other networks, which occupy the
        kernel or fill its queues. Raises RuntimeError if the network differs from the computed
        state.
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
            # The time limit starts after the first round, because a round at the largest sizes
            # takes longer than HEALTHY_S.
            if deadline is None:
                deadline = time.monotonic() + HEALTHY_S
            if number >= _LEAST_ROUNDS and time.monotonic() > deadline:
                raise RuntimeError(
                    f"the network does not match the computed state after {HEALTHY_S:g} s: "
                    f"{self._first_wrong(wanted, seen)}"
                )
            time.sleep(pause_s)  # gives other networks time to finish
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _rounds(self) -> Round:
        """Measure which pairs work, without leaving traces on any machine."""
        self._prober.look()
        with self._records.kept():
            found = self._measure(time.monotonic() + worker.CROWD_S)
        self._forget_paths()
        return found

    def _first_wrong(self, wanted: tuple[str, ...], rows: tuple[str, ...]) -> str:
        names = self._world.endpoints
        for source, (row, computed) in enumerate(zip(rows, wanted, strict=True)):
            for target, (now, should) in enumerate(zip(row, computed, strict=True)):
                if now != should:
                    verb = "does not reach" if should == "1" else "reaches"
                    return f"{names[source]} {verb} {names[target]}"
        return "no pair differs"


def _combine(
    choose: Callable[[tuple[str, str]], str], rows: tuple[str, ...], others: tuple[str, ...]
) -> tuple[str, ...]:
    """Return, for each pair, whether it works in both measurements (``min``), or in at least one
    (``max``)."""
    return tuple(
        "".join(map(choose, zip(row, other, strict=True)))
        for row, other in zip(rows, others, strict=True)
    )
