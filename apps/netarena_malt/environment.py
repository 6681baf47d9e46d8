"""Environment of one query, which runs the agent's program in a sandbox that queries share.

The program runs once, on a copy of the query's network inside the sandbox. The observed state is
the result as reported by the sandboxed process. The sandbox gets only the program and the edits of
the base network, which the agent may know. The sandbox gets no data on which grading depends.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, cast

from netarena.sdk import (
    Environment,
    EnvironmentFailed,
    Execution,
    Move,
    PythonLimits,
    PythonSandbox,
    PythonStatus,
    Query,
    SandboxResult,
    State,
)
from netarena_malt import pace
from netarena_malt.base_network import Base, Key, base_of, growth_of, released_base
from netarena_malt.network import short
from netarena_malt.query import initial_changes, plan_data
from netarena_malt.state import UNANSWERED, failed, read_claim, verify

#: Limits of a program on a network of the released model's size, as stated in the prompt.
LIMITS = PythonLimits()
#: Processor time of a planning program on the reference machine, in s.
PLANNING_CPU_S = 20.0
#: Time limit for the start of a sandbox with a network of the released model's size, in s.
_START_S = 60.0
#: Maximum number of sandboxes in addition to the released model's sandbox for ordinary tasks.
_MOST_OTHERS = 2

#: Modules whose source texts form the program inside the sandbox, in this order. The last module
#: imports the first two.
_GUEST = ("topology", "edit", "sandbox_program")
_FUTURE = "from __future__ import annotations\n"
_IMPORT = re.compile(r"^from netarena_malt\.(?:topology|edit) import [\w, ]+\n", re.MULTILINE)


def guest_source() -> str:
    """Return the source of the program inside the sandbox: the texts of the modules in ``_GUEST``,
    concatenated.

    Imports between these modules are removed, because the project cannot be imported in the
    sandbox.
    """
    texts = ((files("netarena_malt") / f"{name}.py").read_text(encoding="utf-8") for name in _GUEST)
    return _FUTURE + "\n".join(_IMPORT.sub("", text.replace(_FUTURE, "")) for text in texts)


def limits_of(key: Key) -> PythonLimits:
    """Return the limits of a program on a network made from this base.

    CPU time, memory and wall time are multiplied by ``growth_of`` (the network's size as a multiple
    of the released model's). The factor is a whole number, so that the limits in the prompt are
    round numbers.
    """
    times = growth_of(key)
    return replace(
        LIMITS,
        cpu_s=LIMITS.cpu_s * times,
        memory_bytes=LIMITS.memory_bytes * times,
        wall_s=LIMITS.wall_s * times,
    )


def planning_limits_of(key: Key) -> PythonLimits:
    """Return the limits of a planning program on this machine.

    The processor time is scaled with the machine's speed. It does not grow with the network,
    because the data of a planning task do not grow either.
    """
    cpu_s = PLANNING_CPU_S * pace.scale()
    return replace(limits_of(key), cpu_s=cpu_s, wall_s=LIMITS.wall_s + 2 * cpu_s)


def make_sandbox(base: Base, *, planning: bool = False, unsandboxed: bool = False) -> PythonSandbox:
    """Return a new sandbox, not yet started, for programs on networks of ``base``."""
    return PythonSandbox(
        guest_source(),
        base.payload(),
        limits=planning_limits_of(base.key) if planning else limits_of(base.key),
        start_s=_START_S * growth_of(base.key),
        unsandboxed=unsandboxed,
    )


@dataclass
class _Use:
    sandbox: PythonSandbox
    #: Number of open environments that use the sandbox.
    users: int = 0


class Sandboxes:
    """The sandboxes of open environments: one for each base, and a separate one for planning tasks.

    The released model's sandbox for ordinary tasks exists until ``close``. There are at most
    ``_MOST_OTHERS`` other sandboxes at a time, because each has its network in memory. ``take``
    waits until a sandbox is free.
    """

    def __init__(self, *, unsandboxed: bool = False) -> None:
        self._unsandboxed = unsandboxed
        #: Sandboxes by the text of the reference to a base. Bases are not used as keys, because
        #: equal bases may be different objects.
        self._uses: dict[str, _Use] = {}
        self._changed = asyncio.Condition()
        self.released = make_sandbox(released_base(), unsandboxed=unsandboxed)

    async def start(self) -> None:
        """Start the released model's sandbox. Raises as ``PythonSandbox.start`` does."""
        await self.released.start()

    async def close(self) -> None:
        for sandbox in (self.released, *(use.sandbox for use in self._uses.values())):
            await sandbox.close()
        self._uses.clear()

    async def take(self, base: Base, *, planning: bool = False) -> PythonSandbox:
        """Return the sandbox of ``base``, which is not always started yet. The caller must release
        it with ``give_back``."""
        if base.key is None and not planning:
            return self.released
        name = _name(base.key, planning=planning)
        async with self._changed:
            while name not in self._uses and len(self._uses) >= _MOST_OTHERS:
                idle = [other for other, use in self._uses.items() if not use.users]
                if idle:
                    await self._uses.pop(idle[0]).sandbox.close()
                else:
                    await self._changed.wait()
            if name not in self._uses:
                sandbox = make_sandbox(base, planning=planning, unsandboxed=self._unsandboxed)
                self._uses[name] = _Use(sandbox)
            use = self._uses[name]
            use.users += 1
        return use.sandbox

    async def give_back(self, key: Key, *, planning: bool = False) -> None:
        """Release the sandbox of this base after ``take``. A sandbox without users may be
        closed."""
        async with self._changed:
            if (use := self._uses.get(_name(key, planning=planning))) is not None:
                use.users -= 1
                self._changed.notify_all()


def _name(key: Key, *, planning: bool) -> str:
    return f"{key!r} {planning}"


class MaltEnvironment(Environment):
    """Environment of one query about a network. The agent sends one program, or several for a
    planning task."""

    def __init__(self, query: Query, sandboxes: Sandboxes, attempts: int = 1) -> None:
        self._query = query
        #: Number of programs that the agent may send; all but the last one are trials.
        self._attempts = attempts
        self._sandboxes = sandboxes
        #: Data of a planning task.
        self._data = plan_data(query)
        self._taken: tuple[Key, PythonSandbox] | None = None
        self._state: State = dict(UNANSWERED)

    async def open(self) -> State:
        """Compute the right answer and verify the networks in a thread, then start the sandbox.

        Raises EnvironmentFailed if the query is unsuitable.
        """
        try:
            fault = await asyncio.to_thread(verify, self._query)
        except Exception as error:  # noqa: BLE001 -- a query from a file may contain anything
            fault = f"the right answer cannot be computed: {type(error).__name__}: {error}"
        if fault:
            raise EnvironmentFailed(f"query {self._query.id}: {fault}", proven_ours=True)
        if self._taken is None:
            base = await asyncio.to_thread(base_of, self._query.initial)
            planning = self._data is not None
            if planning:
                await asyncio.to_thread(pace.scale)
            self._taken = base.key, await self._sandboxes.take(base, planning=planning)
            # The sandbox is started here and not in ``execute``, because the duration of
            # ``execute`` counts as the agent's time.
            await self._taken[1].start()
        return self._state

    async def execute(self, move: Move) -> Execution:
        """Run the program. Raises EnvironmentFailed if the sandbox, not the program, failed."""
        if not isinstance(move, dict) or not isinstance(move.get("code"), str):
            raise TypeError('a move in malt must be {"code": text}')
        request: dict[str, Any] = {
            "code": move["code"],
            "edits": initial_changes(self._query),
        }
        self.waiting = True
        if self._taken is None:
            raise EnvironmentFailed(
                "the environment is not open: call open() first", proven_ours=True
            )
        sandbox = self._taken[1]
        limit_s = sandbox.limits.cpu_s
        if self._data is not None:
            told = {key: value for key, value in self._data.items() if key != "label"}
            request |= {"planning": told, "cpu_limit_s": limit_s}
        result = await sandbox.run(request, self._begun)
        # This runs in a thread, because the agent's result may be large.
        self._state, output = await asyncio.to_thread(_observed, result)
        if self._data is not None and isinstance(self._state, dict):
            trial = {"trial": self.turn_number} if self.turn_number < self._attempts else {}
            self._state = {**self._state, "cpu_limit_s": limit_s, **trial}
        return Execution(output=output, queued_s=result.queued_s)

    def _begun(self) -> None:
        self.waiting = False

    async def observe(self) -> State:
        return self._state

    async def snapshot(self) -> State:
        """Return the current state as the snapshot. Nothing else is needed, because each program
        gets a new network."""
        return self._state

    async def restore(self, snapshot: object) -> None:
        self._state = cast("State", snapshot)

    async def close(self) -> None:
        self._state = dict(UNANSWERED)
        if self._taken is not None:
            key, self._taken = self._taken[0], None
            await self._sandboxes.give_back(key, planning=self._data is not None)


#: Status of an answer without a result -> start of the error message.
_ENDED = {
    PythonStatus.RAISED: "the result cannot be read",
    PythonStatus.CPU: "the program used too much processor time",
    PythonStatus.MEMORY: "the program needs too much memory",
    PythonStatus.WALL: "the program took too long",
    PythonStatus.TOO_LARGE: "the result is too large",
    PythonStatus.CRASHED: "the program's process ended without a result",
}


#: Key of a list of changes -> noun for the elements of the list.
_COUNTED = {
    "nodes": "nodes",
    "removed_nodes": "removed nodes",
    "edges": "edges",
    "removed_edges": "removed edges",
}


def _observed(result: SandboxResult) -> tuple[State, str]:
    """Return the state for a result of the sandbox, and its description for the agent."""
    if result.status is PythonStatus.OK:
        state = read_claim(result.value)
    else:
        state = failed(f"{_ENDED[result.status]}: {result.error}")
    return state, _told(state)


def _told(state: Any) -> str:
    """Return a short description of a state, which is the output of the executed program."""
    if "error" in state:
        return str(state["error"])
    lines = [f"type {state['type']}"]
    if state["data_graph"] is None:
        cut = " (cut)" if state["cut"] else ""
        lines.append(f"data {short(state['data'], 600)}{cut}")
    for where, key in (("data", "data_graph"), ("updated_graph", "updated")):
        changes = state[key]
        if changes == "same":
            lines.append(f"{where}: the updated graph")
        elif changes is not None:
            counts = [f"{len(changes[kind])} {words}" for kind, words in _COUNTED.items()]
            more = " and more" if changes["more"] else ""
            lines.append(f"{where}, changes: {', '.join(counts)}{more}")
    return "\n".join(lines)
