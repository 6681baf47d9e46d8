"""Base class of applications in which agents repair networks with shell commands on machines."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, Self, cast

from netarena.sdk import (
    MAX_LOGGED_CHARS,
    Action,
    Baselines,
    Cause,
    Claim,
    Config,
    Environment,
    EnvironmentFailed,
    Episode,
    Evidence,
    JsonValue,
    Move,
    Parameter,
    Query,
    Reactive,
    Refusal,
    State,
    Step,
    Tickets,
    Tool,
    Tools,
    clip,
)
from netarena_network import action, attack, change, declaration, reply
from netarena_network.action import Fault
from netarena_network.declaration import Glossary
from netarena_network.evidence import Scene, collect
from netarena_network.real.client import Warm

_COMMAND = Tool(
    name="run_command",
    about="Run one shell command on one machine of the network, and see what it printed.",
    parameters=(
        Parameter(name="machine", about="The name of a router or host."),
        Parameter(name="command", about="One shell command line."),
    ),
)


class NetworkBaselines(Baselines):
    """Scripted baseline agents of a network application."""

    floors: ClassVar[tuple[str, ...]] = ("noop", "random", "blanket")

    def hostile_replies(self) -> Sequence[str]:
        return attack.attacks()


class NetworkTickets(Tickets):
    """Tickets whose declared causes consist of a machine and a word from a glossary."""

    glossary: ClassVar[Glossary]

    def declaration(self, move: Move) -> Claim | None:
        return declaration.claim_of(move)

    def declare(self, causes: Sequence[Cause]) -> str:
        return json.dumps(declaration.make_move(causes))

    def declare_refused(self, causes: Sequence[Cause], refused: Sequence[Refusal]) -> str:
        return json.dumps(declaration.make_move(causes, refused))

    def faults(self, query: Query) -> Sequence[Fault]:
        """Return the faults that a declaration may name as causes."""
        return action.faults_of(query)

    def causes(self, query: Query) -> Sequence[Cause]:
        return self.glossary.causes_of(self.faults(query))

    @abstractmethod
    def find(self, query: Query, asked: str) -> str | None:
        """Return the full name of the machine that is called ``asked`` in a command, or None if
        there is no such machine."""

    def places(self, query: Query) -> Callable[[Fault], Collection[str]]:
        """Return a function from a fault to the machines that may be declared as its place."""
        del query
        return declaration.machines_of

    def resolve(self, query: Query, causes: Sequence[Cause]) -> Sequence[Cause]:
        """Return the declared causes. If a cause describes a fault, the fault's own cause replaces
        it.

        A declaration may name a machine in the same forms as a command, and a fault by any word
        that describes the fault.
        """
        found = [one._replace(place=self.find(query, one.place) or one.place) for one in causes]
        return self.glossary.as_injected(self.faults(query), found, self.places(query))


class NetworkTools(Tools):
    """Tools of a network application. The only kind of action is a command on a machine."""

    def kinds(self, config: Config) -> Sequence[Tool]:
        del config
        return (_COMMAND,)

    def reply(self, tool: str, values: Mapping[str, str]) -> str:
        del tool
        return json.dumps(dict(values), ensure_ascii=False)


class NetworkApplication(Reactive):
    """An application in which each move is one shell command."""

    role: ClassVar[str] = "route_operator"
    privileged: ClassVar[bool] = True
    #: Words in declarations, for causes and for reasons to refuse changes.
    glossary: ClassVar[Glossary]
    #: Class of the application's warm process, from which networks are forked.
    warm_type: ClassVar[Callable[[], Warm]]
    tickets: Tickets
    tools: Tools = NetworkTools()

    def __init__(self, **options: bool) -> None:
        super().__init__(**options)
        self._warm: Warm | None = None

    async def __aenter__(self) -> Self:
        """Start the warm process from which networks are forked."""
        self._warm = type(self).warm_type()
        # The agent card is served even if the required privileges are missing. ``check`` reports
        # the missing requirements of each task, and each network tries to start the process again.
        with suppress(EnvironmentFailed):
            await self._warm.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._warm is not None:
            await self._warm.close()
            self._warm = None

    @abstractmethod
    def live(self, query: Query, config: Config, warm: Warm) -> Environment:
        """Return the network of ``query``, which is not yet open; ``warm`` starts its process."""

    def environment(self, query: Query, config: Config) -> Environment:
        if self._warm is None:
            raise EnvironmentFailed(
                "the application is not started: use it inside 'async with'", proven_ours=True
            )
        return self.live(query, config, self._warm)

    def configures(self, move: Move) -> bool:
        return isinstance(move, dict) and change.changes(str(move.get("command", "")))

    def describe(self, action_: Action) -> str:
        return action.describe(action_)

    def parse(self, reply_: str) -> Move:
        return reply.read_reply(reply_, self.glossary.words, self.glossary.refusals)

    @abstractmethod
    def scene(self, query: Query) -> Scene:
        """Return the parts of a query's world that are needed to compute its evidence."""

    async def evidence(self, query: Query, config: Config) -> Evidence | None:
        """Return the evidence that a query's live network contains; see
        ``netarena_network.evidence``."""
        return await collect(query, self.environment(query, config), self.scene(query))

    def record(self, query: Query, episode: Episode) -> dict[str, JsonValue]:
        faults = [
            {
                "kind": fault.kind,
                "method": fault.method,
                "machine": fault.machine,
                **fault.parameters,
                "fault": fault.words,
            }
            for fault in action.faults_of(query)
        ]
        return {
            "error_type": query.label,
            "error_detail": cast("JsonValue", faults[0] if len(faults) == 1 else faults),
            "success": episode.correct,
            "safe": episode.safe,
            "iterations": episode.iterations,
            **(
                {}
                if episode.claimed is None
                else {"leftover": [*self.tickets.leftover(query, episode)]}
            ),
            "log_content": "\n".join(self._log(query, step) for step in episode.steps),
        }

    @abstractmethod
    def tell_state(self, query: Query, state: State) -> str:
        """Return a description of a state for logs."""

    def tell_loss(self, state: State) -> Sequence[str]:
        """Return log lines about lost packets, if the state contains their number."""
        del state
        return ()

    def _log(self, query: Query, step: Step) -> str:
        """Return the log of one turn in the format of the reference implementation's stored
        results."""
        if not isinstance(step.move, dict) or "command" not in step.move:
            said = (
                "the agent declared that the task is done" if step.claim else "there was no reply"
            )
            return f"No command: {step.refused or said}\n"
        lines = []
        if step.state is not None:
            lines += [f"{self.tell_state(query, step.state)}\n"]
        lines += [f"Machine: {step.move['machine']}", f"Command: {step.move['command']}"]
        if step.judgement is not None:
            lines += [f"Not safe: {one.detail}" for one in step.judgement.findings]
        if step.state is not None:
            lines += self.tell_loss(step.state)
        lines.append(f"Elapsed Time: {step.execution_s} seconds\n")
        lines.append(f"Command Output:\n{clip(step.output, MAX_LOGGED_CHARS)}\n")
        return "\n".join(lines)
