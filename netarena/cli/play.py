"""``netarena play``: a person answers one query in the terminal."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from netarena.cli.conversation import harmless_line
from netarena.cli.interrupt import run_until_stopped
from netarena.cli.option import RUNS, config_options, read_name, read_pairs
from netarena.cli.run_directory import choose_query, place
from netarena.cli.terminal import open_log
from netarena.config import Config
from netarena.errors import AgentFailed, AgentSilent, FailureReason
from netarena.model import AgentInfo, Outcome, Reply
from netarena.report.markdown import plain
from netarena.report.story import is_lost, why
from netarena.run.archive import read_run
from netarena.run.assessment import conduct
from netarena.task.application import Application, configured, load, reply_of, tools_of
from netarena.task.identity import Secrecy
from netarena.task.prompt import news, without_form
from netarena.task.tool import Tool

#: Default time limit of a person for each turn, in s: one day.
PATIENCE_S = 86_400.0
#: Line that ends multi-line input.
END = "."
_FENCE = "```"


@click.command("play")
@click.argument("application", metavar="APP")
@config_options
@click.option(
    "--query",
    "query_id",
    metavar="ID",
    help="Play the query with this id; result records contain the ids.",
)
@click.option(
    "--name", default="person", show_default=True, help="Name of the player in the results."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help=f"Folder for results and journal.  [default: {RUNS}/APP-SEED]",
)
def command(  # noqa: PLR0913 -- one argument per option
    *,
    application: str,
    num_queries: int | None,
    seed: int | None,
    pairs: tuple[str, ...],
    query_id: str | None,
    name: str,
    out: Path | None,
) -> None:
    """Answer one query of APP yourself. The query is chosen at random from those that the config
    selects.

    The task is shown once, then the output of each command. Ctrl-D gives up.
    """
    open_log("netarena: %(levelname)s: %(message)s")
    values = read_pairs(pairs, num_queries=num_queries, seed=seed)
    app = load(application)
    if out is not None:
        values |= read_pairs((), output_dir=str(out))
    app, config = configured(app, {"agent_timeout_s": PATIENCE_S, **values})
    secrecy = Secrecy.OPEN
    if query_id is not None:
        app, config, secrecy = choose_query(app, config, query_id)
    config, folder = place(app, config)
    config = one_query(app, config)
    person = Person(app, config, read_name(name))

    async def examine() -> None:
        async with app:
            await conduct(app, config, {app.role: person}, out=folder, secrecy=secrecy)

    try:
        run_until_stopped(examine)
    except AgentSilent:
        if person.gave_up:
            raise AgentSilent("you gave up before the first turn", reached=True) from None
        raise
    for stored in read_run(folder):
        for episode in stored.past.episodes.values():
            safe = "" if episode.outcome is Outcome.INVALID else ", safe"
            safe = ", not safe" if safe and not episode.safe else safe
            turns = f"{len(episode.steps)} turns" if len(episode.steps) != 1 else "1 turn"
            click.echo(f"{episode.outcome.replace('_', ' ')}{safe}, {turns}")
            if is_lost(episode) or episode.outcome is Outcome.INVALID:
                click.echo(plain(why(episode)))
            click.echo(f"netarena show {folder} {episode.query_id}")


def one_query(application: Application, config: Config) -> Config:
    """Return ``config`` limited to one query: the query at ``start_index``, or a random query.

    The seed determines the random query.
    """
    first = config.start_index
    if first is None:
        size = application.size(config)
        rng = random.Random(f"play-{config.seed}")  # noqa: S311 -- not for secrets
        first = rng.randrange(min(size, config.end_index or size) or 1)
    return config.model_copy(update={"start_index": first, "end_index": first + 1, "repeats": 1})


class Person:
    """An agent (``netarena.agent.interface.Agent``) for a person at a terminal.

    Prompts are printed to standard error, replies are read from standard input.
    """

    def __init__(self, application: Application, config: Config, name: str) -> None:
        self._application = application
        self._tools = {tool.name: tool for tool in tools_of(application, config)}
        self._info = AgentInfo(name=name)
        self._keyboard = Keyboard(sys.stdin.fileno())
        self._prompts: list[str] = []
        #: Whether the person has ended the input (Ctrl-D).
        self.gave_up = False

    @property
    def info(self) -> AgentInfo:
        return self._info

    async def open(self, *, timeout_s: float) -> None:
        pass

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        del context_id, timeout_s
        prompt = without_form(prompt)
        before = self._prompts[-1] if self._prompts else None
        for line in prompt.splitlines() if before is None else news(before, prompt):
            click.echo(harmless_line(line), err=True)
        if before is None:
            click.echo(f"\n{self._usage()}", err=True)
        self._prompts.append(prompt)
        while True:
            text = await self._line(f"turn {len(self._prompts)}> ")
            if text.startswith((_FENCE, "{")):
                return Reply(text=await self._raw(text))
            if text.strip():
                return Reply(text=reply_of(self._application, *await self._call(text)))

    async def aclose(self) -> None:
        pass

    def _usage(self) -> str:
        forms = [_form(tool, first=place == 0) for place, tool in enumerate(self._tools.values())]
        return "\n".join(["Enter one of these per turn:", *forms, "Ctrl-D gives up."])

    async def _line(self, mark: str) -> str:
        click.echo(mark, err=True, nl=False)
        line = await self._keyboard.line()
        if line is None:
            click.echo(err=True)
            self.gave_up = True
            raise AgentFailed(FailureReason.TASK_FAILED, f"{self._info.name} gave up")
        return line

    async def _call(self, text: str) -> tuple[str, Mapping[str, str]]:
        """Return the tool that ``text`` calls, and its arguments by parameter name.

        The words of the line are the arguments in order. The last parameter gets the rest of the
        line. If several parameters take multi-line text, each text ends with its own end mark.
        """
        word, _, rest = text.strip().partition(" ")
        tool = self._tools.get(word.removeprefix("/")) if word.startswith("/") else None
        if tool is None:
            tool, rest = next(iter(self._tools.values())), text.strip()
        names = [parameter.name for parameter in tool.parameters]
        if sum(parameter.lines for parameter in tool.parameters) > 1:
            firsts = dict.fromkeys(names, "") | {names[0]: rest}
            values = {key: await self._until(first, f"{key}... ") for key, first in firsts.items()}
            return tool.name, values
        words = rest.split(maxsplit=max(0, len(names) - 1))
        values = dict(zip(names, [*words, *[""] * len(names)], strict=False))
        if tool.parameters and tool.parameters[-1].lines:
            # The first line of a program is used unchanged, with its indentation.
            values[names[-1]] = await self._until(text if len(names) == 1 else values[names[-1]])
        return tool.name, values

    async def _until(self, first: str, mark: str = "... ") -> str:
        lines = [first]
        while (line := await self._line(mark)) != END:
            lines.append(line)
        return "\n".join(lines)

    async def _raw(self, first: str) -> str:
        """Return a reply in the form that the prompt prescribes; ``first`` is its first line."""
        lines = [first]
        while first.startswith(_FENCE) and not (len(lines) > 1 and lines[-1].startswith(_FENCE)):
            lines.append(await self._line("... "))
        return "\n".join(lines)


def _form(tool: Tool, *, first: bool) -> str:
    words = [] if first else [f"/{tool.name}"]
    words += [parameter.name.upper() for parameter in tool.parameters]
    lines = sum(parameter.lines for parameter in tool.parameters)
    each = "each of them: " if lines > 1 else ""
    return f"  {' '.join(words)}" + (
        f" ({each}one or more lines, then a line with only {END!r})" if lines else ""
    )


class Keyboard:
    """Reads lines from a file descriptor without blocking the event loop.

    The lines are read in a daemon thread, because a blocked read must not keep the process alive.
    The thread reads from a duplicate of the descriptor, so that no other file can get its number.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)
        self._lines: asyncio.Queue[str | None] | None = None
        self._ended = False

    async def line(self) -> str | None:
        """Return the next line without its line end; None after the last line."""
        if self._lines is None:
            self._lines = asyncio.Queue()
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._read, args=(loop, self._lines), daemon=True).start()
        line = None if self._ended else await self._lines.get()
        self._ended = line is None
        return line

    def _read(self, loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[Any]) -> None:
        rest = b""
        with suppress(RuntimeError, OSError):  # the event loop or the terminal is closed
            while piece := os.read(self._descriptor, 65_536):
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    text = line.decode(errors="replace").rstrip("\r")
                    loop.call_soon_threadsafe(lines.put_nowait, text)
            if rest:
                loop.call_soon_threadsafe(lines.put_nowait, rest.decode(errors="replace"))
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(lines.put_nowait, None)
        os.close(self._descriptor)
