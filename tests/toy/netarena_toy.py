"""A waterworks with valves: the smallest reactive application with a live world.

In the intended state every valve is open. A fault closes some valves. The agent sends ``open NAME``
or ``close NAME``. The world is a folder with a file per valve, and a separate process that turns
the valves, so that it is really built, broken and torn down.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import StrictBool

from netarena.sdk import (
    Action,
    Application,
    Baselines,
    Briefing,
    Candidate,
    Cause,
    Claim,
    Config,
    Environment,
    EnvironmentFailed,
    Episode,
    Evidence,
    Execution,
    Finding,
    JsonValue,
    Judgement,
    Move,
    PromptParts,
    Query,
    ReplyRefused,
    State,
    Step,
    Tickets,
    shapes,
)

VALVES = tuple(f"v{number}" for number in range(1, 9))
DONE = re.compile(r"done((?: v\d)*)")
COMMAND = re.compile(r"(open|close|smash) (v\d)")
TURNER = (
    "while read -r word name; do [ $word != smash ] || exit 1; echo $word >$name; echo done; done"
)


class ToyConfig(Config):
    """Config of the waterworks; with ``quiet``, no valve is closed: a false alarm."""

    BRIEFINGS: ClassVar = tuple(Briefing)
    IN_TICKETS: ClassVar = {**Config.IN_TICKETS, "quiet": True}

    quiet: StrictBool = shapes(default=False)

    def shape(self) -> dict[str, JsonValue]:
        whole = super().shape()
        if not self.quiet:
            del whole["quiet"]
        return whole


class Waterworks(Environment):
    """A folder, and a shell process that turns valves in it."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.folder: Path | None = None
        self.turner: asyncio.subprocess.Process | None = None

    async def open(self) -> State:
        self.folder = Path(tempfile.mkdtemp())
        pipe = asyncio.subprocess.PIPE
        self.turner = await asyncio.create_subprocess_exec(
            "sh", "-c", TURNER, cwd=self.folder, stdin=pipe, stdout=pipe
        )
        closed = {action.parameters["valve"] for action in self.query.actions}
        for valve in VALVES:  # in one pass, so that the order of the files reveals nothing
            await self.turn("close" if valve in closed else "open", valve)
        state = await self.observe()
        if all(dict(state).values()) and self.query.actions:  # type: ignore[arg-type] # the toy's own state
            raise EnvironmentFailed("the fault does not show", evidence=state)
        return state

    async def turn(self, word: str, valve: str) -> None:
        assert self.turner is not None
        assert self.turner.stdin is not None
        assert self.turner.stdout is not None
        self.turner.stdin.write(f"{word} {valve}\n".encode())
        if await self.turner.stdout.readline() != b"done\n":
            raise EnvironmentFailed("the turner has died")

    async def execute(self, move: Move) -> Execution:
        word, valve = str(move).split()
        await self.turn(word, valve)
        return Execution(output=f"{valve} is {word}")

    async def observe(self) -> State:
        assert self.folder is not None
        return {valve: (self.folder / valve).read_text() == "open\n" for valve in VALVES}

    async def close(self) -> None:
        if self.turner is not None:
            if self.turner.returncode is None:
                self.turner.kill()
            await self.turner.communicate()
        if self.folder is not None:
            shutil.rmtree(self.folder)


class ToyBaselines(Baselines):
    """The scripted agents of the toy."""

    def random_reply(self, query: Query, rng: random.Random) -> str:
        return f"close {rng.choice(VALVES)}"

    def hostile_replies(self) -> Sequence[str]:
        return ["smash v1", "open ../v1"]

    def blanket_replies(self, answers: Sequence[Query]) -> Sequence[str]:
        return [f"open {valve}" for valve in VALVES]


class ToyTickets(Tickets):
    """The tickets of the toy."""

    def prompt(
        self, query: Query, state: State, steps: Sequence[Step], rng: random.Random
    ) -> PromptParts:
        del state
        dry = [action.parameters["valve"] for action in query.actions] or [rng.choice(VALVES)]
        history = tuple(f"{step.move}: {step.output}" for step in steps)
        return PromptParts("You run a waterworks; all valves are to be open.", "`open NAME` or "
                           "`close NAME`, NAME being v1 to v8; at the end `done` and the names of "
                           "valves that were shut.", f"{query.text} Somebody says that there is "
                           f"little water behind {rng.choice(dry)}.", "", history)  # fmt: skip

    def declaration(self, move: Move) -> Claim | None:
        match = DONE.fullmatch(move) if isinstance(move, str) else None
        if match is None:
            return None
        named = tuple(Cause(valve, "closed") for valve in match[1].split())
        return Claim(causes=named or None)

    def declare(self, causes: Sequence[Cause]) -> str:
        return " ".join(["done", *(cause.place for cause in causes)])

    def causes(self, query: Query) -> Sequence[Cause]:
        return [Cause(str(action.parameters["valve"]), "closed") for action in query.actions]


class Toy(Application):
    name, version, role = "toy", "1", "toy_operator"
    config_type = ToyConfig
    title, summary = "Waterworks", "Open the valves that a fault has closed."
    baselines = ToyBaselines()
    tickets = ToyTickets()

    def generate(self, config: Config, seed: int) -> Iterator[Query]:
        assert isinstance(config, ToyConfig)
        levels = [*config.complexity_level, *(["level0"] if config.quiet else [])]
        for index in range(config.num_queries * len(levels)):
            level = levels[index % len(levels)]
            closed = self.rng(config, seed, index).sample(VALVES, int(level[-1]))
            number, level = level[-1], max(level, "level1")
            yield Query(
                id=self.query_id(config, seed, index), application=self.name,
                version=self.version, seed=seed, index=index, label=f"close-{number}",
                level=level, text="Some valves are closed. Open them all; close none.",
                actions=tuple(Action(kind="close", parameters={"valve": v}) for v in closed),
            )  # fmt: skip

    def solve(self, query: Query) -> Sequence[str]:
        return [f"open {action.parameters['valve']}" for action in query.actions] or ["open v1"]

    def demonstrate(self, query: Query) -> Sequence[str]:
        shut = {action.parameters["valve"] for action in query.actions}
        # a command that opens an open valve serves as an observation
        look = f"open {next(valve for valve in VALVES if valve not in shut)}"
        return [reply for repair in self.solve(query) for reply in (look, repair)]

    def describe(self, action: Action) -> str:
        return f"valve {action.parameters['valve']} is closed"

    def prompt(self, query: Query, state: State, steps: Sequence[Step]) -> PromptParts:
        history = tuple(f"{step.move}: {step.output}" for step in steps)
        return PromptParts("You run a waterworks.", "`open NAME` or `close NAME`, NAME being "
                           "v1 to v8.", query.text, str(state), history)  # fmt: skip

    def parse(self, reply: str) -> Move:
        if DONE.fullmatch(reply.strip()):
            return reply.strip()
        if COMMAND.fullmatch(reply.strip()):
            return reply.strip()
        raise ReplyRefused("Send `open NAME` or `close NAME`.")

    def environment(self, query: Query, config: Config) -> Environment:
        return Waterworks(query)

    async def evidence(self, query: Query, config: Config) -> Evidence:
        """Return the time of each valve's last turn, as an agent would read it from the files."""
        world = self.environment(query, config)
        assert isinstance(world, Waterworks)
        try:
            await world.open()
            assert world.folder is not None
            times = {valve: (world.folder / valve).stat().st_mtime_ns for valve in VALVES}
        finally:
            await world.close()
        closed = {action.parameters["valve"] for action in query.actions}
        return Evidence(
            id=query.id, label=query.label, wrong=bool(query.actions),
            candidates=tuple(
                Candidate(name=valve, target=valve in closed, trace={"rule.turned_late": float(
                    any(times[valve] > times[later] for later in VALVES[place + 1 :]))})
                for place, valve in enumerate(VALVES)
            ),
        )  # fmt: skip

    def judge(self, query: Query, initial: State, before: State, after: State) -> Judgement:
        assert isinstance(before, dict)
        assert isinstance(after, dict)
        shut = [valve for valve, is_open in after.items() if not is_open]
        broke = [valve for valve in shut if before[valve]]
        return Judgement(
            correct=not shut,
            findings=tuple(Finding(rule="closed", element=v, detail=f"{v} closed") for v in broke),
            reason=f"{shut[0]} is closed" if shut else "",
        )

    def record(self, query: Query, episode: Episode) -> dict[str, JsonValue]:
        return {"success": episode.correct, "safe": episode.safe, "iterations": episode.iterations}
