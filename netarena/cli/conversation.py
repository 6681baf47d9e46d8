"""Live view of the conversation with an agent, on standard error."""

from __future__ import annotations

import time
from typing import Any

import click

from netarena.agent.interface import Agent
from netarena.errors import AgentFailed
from netarena.model import AgentInfo, Reply, Usage
from netarena.report.markdown import plain

#: Maximum number of displayed lines of one text; the journal contains the whole text.
MOST_LINES = 200
#: A note replaces the unchanged lines at the start of a prompt if there are at least this many.
FEWEST_LEFT_OUT = 4


class Watched:
    """Wrapper of an agent (``netarena.agent.interface.Agent``); prints each prompt and reply."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._numbers: dict[str, int] = {}
        self._turns: dict[str, int] = {}
        self._prompts: dict[str, str] = {}

    @property
    def info(self) -> AgentInfo:
        return self._agent.info

    async def open(self, *, timeout_s: float) -> None:
        await self._agent.open(timeout_s=timeout_s)
        info = self._agent.info
        click.secho(
            f"── the agent: {plain(info.name)}, {plain(info.base_url)}", err=True, bold=True
        )

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        number = self._numbers.setdefault(context_id, len(self._numbers) + 1)
        turn = self._turns[context_id] = self._turns.get(context_id, 0) + 1
        where = f"conversation {number}, turn {turn}"
        before = self._prompts.get(context_id, "")
        # Discard the prompts of earlier conversations, because they would fill the memory.
        self._prompts = {context_id: prompt} if len(self._prompts) > 64 else self._prompts
        self._prompts[context_id] = prompt
        _show(f"{where}: to the agent", *_news(before, prompt))
        begin = time.monotonic()
        try:
            reply = await self._agent.ask(prompt, context_id=context_id, timeout_s=timeout_s)
        except AgentFailed as error:
            _show(f"{where}: the agent failed after {time.monotonic() - begin:.1f} s", str(error))
            raise
        usage = Usage.read(reply)
        told = (
            f", {usage.input_tokens} input + {usage.output_tokens} output tokens"
            if usage.replies
            else ""
        )
        _show(
            f"{where}: reply from the agent after {time.monotonic() - begin:.1f} s{told}",
            reply.text,
        )
        return reply

    async def aclose(self) -> None:
        await self._agent.aclose()


def show_verdict(record: dict[str, Any]) -> None:
    """Print the result of an episode."""
    why = record.get("failure_rule") or ""
    _title(plain(f"{record['id']}: {record['outcome'].replace('_', ' ')}{why and f', {why}'}"))


def harmless_line(line: str) -> str:
    """Return a line of untrusted text with unprintable characters replaced."""
    return "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in line)


def _news(before: str, now: str) -> tuple[str, ...]:
    """Return the texts to display for a prompt.

    If many lines at the start are unchanged, a note replaces these lines.
    """
    old, new = before.splitlines(), now.splitlines()
    pairs = enumerate(zip(old, new, strict=False))
    same = next((i for i, (then, line) in pairs if then != line), min(len(old), len(new)))
    if same < FEWEST_LEFT_OUT:
        return (now,)
    return (f"({same} lines as in the previous turn)", "\n".join(new[same:]))


def _title(text: str) -> None:
    click.secho(f"── {text}", err=True, bold=True)


def _show(title: str, *texts: str) -> None:
    _title(title)
    lines = [line for text in texts for line in text.splitlines()]
    for line in lines[:MOST_LINES]:
        click.echo(f"   {harmless_line(line)}", err=True)
    if len(lines) > MOST_LINES:
        click.echo(f"   … {len(lines) - MOST_LINES} more lines, stored in the journal", err=True)
