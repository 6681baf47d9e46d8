"""The world of one query: nothing lives but the sandbox that all queries share.

An answer is run once, on a copy of the query's network inside the sandbox; what is observed
afterwards is what the guest claims that it returned. The sandbox gets the program and how the
network differs from the released one, which the agent may know; nothing that grades goes there.
"""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import Any

from netarena.application import Environment
from netarena.errors import EnvironmentFailed
from netarena.model import Execution, JsonValue, Move, Query, State
from netarena.sandbox.python import Limits, PythonSandbox, SandboxResult, Status
from netarena_malt import guest
from netarena_malt.network import short
from netarena_malt.query import initial_changes
from netarena_malt.state import UNANSWERED, failed, read_claim, verify
from netarena_malt.topology import released_graph

#: of every answer; the prompt tells them
LIMITS = Limits()

_IMPORT_OF_EDIT = "from netarena_malt.edit import apply_edits\n"
_FUTURE = "from __future__ import annotations\n"


def guest_source() -> str:
    """The program of the sandbox: the texts of ``edit`` and ``guest`` as one module.

    Nothing of this project can be imported in there, so what joins them is left out.
    """
    edit, own = (
        (files("netarena_malt") / f"{name}.py").read_text(encoding="utf-8")
        for name in ("edit", "guest")
    )
    head, found, body = own.partition(_IMPORT_OF_EDIT)
    if not found:
        raise AssertionError("guest.py imports something else from edit than is put before it")
    return "\n".join((edit, head.replace(_FUTURE, ""), body))


def make_sandbox(*, unsandboxed: bool = False, parallel: int | None = None) -> PythonSandbox:
    """The sandbox that runs answers, not started; see ``PythonSandbox`` for the arguments."""
    return PythonSandbox(
        guest_source(),
        guest.dump(released_graph()),
        limits=LIMITS,
        parallel=parallel,
        unsandboxed=unsandboxed,
    )


class MaltEnvironment(Environment):
    """A question about a network, and one answer to it."""

    def __init__(self, query: Query, sandbox: PythonSandbox) -> None:
        self._query = query
        self._sandbox = sandbox
        self._state: State = dict(UNANSWERED)

    async def open(self) -> State:
        """Compute the truth and verify the networks; some 50 ms, in a thread.

        Raises EnvironmentFailed for a query that cannot be asked.
        """
        try:
            fault = await asyncio.to_thread(verify, self._query)
        except Exception as error:  # noqa: BLE001 -- a file of queries may hold anything
            fault = f"its truth cannot be computed: {type(error).__name__}: {error}"
        if fault:
            raise EnvironmentFailed(f"query {self._query.id}: {fault}", proven_ours=True)
        return self._state

    async def execute(self, move: Move) -> Execution:
        """Run the program. Raises EnvironmentFailed if the sandbox, not the program, failed."""
        if not isinstance(move, dict) or not isinstance(move.get("code"), str):
            raise TypeError('a move of malt is {"code": text}')
        request: JsonValue = {"code": move["code"], "edits": initial_changes(self._query)}
        self.waiting = True
        result = await self._sandbox.run(request, self._begun)
        # both in a thread: what an agent returned may be large
        self._state, output = await asyncio.to_thread(_observed, result)
        return Execution(output=output, queued_s=result.queued_s)

    def _begun(self) -> None:
        self.waiting = False

    async def observe(self) -> State:
        return self._state

    async def close(self) -> None:
        self._state = dict(UNANSWERED)


#: how an answer ended without a result -> its beginning in words
_ENDED = {
    Status.RAISED: "the result cannot be read",
    Status.CPU: "the program used too much processor time",
    Status.MEMORY: "the program needs too much memory",
    Status.WALL: "the program took too long",
    Status.TOO_LARGE: "the result is too large",
    Status.CRASHED: "the program's process ended without a result",
}


#: lists of changes -> what they hold, in words
_COUNTED = {
    "nodes": "nodes",
    "removed_nodes": "removed nodes",
    "edges": "edges",
    "removed_edges": "removed edges",
}


def _observed(result: SandboxResult) -> tuple[State, str]:
    """The state after an answer, and what is told of it."""
    if result.status is Status.OK:
        state = read_claim(result.value)
    else:
        state = failed(f"{_ENDED[result.status]}: {result.error}")
    return state, _told(state)


def _told(state: Any) -> str:
    """The state in a line or two, as the output of what was executed."""
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
