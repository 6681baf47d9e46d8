"""Scripted agent that waits before each reply, as a model does while it generates.

    python benchmarks/thinking_agent.py APP AGENT --seed S --port P --think SECONDS \
        [--host ADDRESS] [--set KEY=VALUE ...]

Use it with ``netarena run APP --agent-cmd``. With an agent that answers immediately, an emulator is
never idle.
"""

from __future__ import annotations

import argparse
import asyncio

from netarena.a2a.purple import serve_agent
from netarena.agent.interface import Agent, Brief, load_agent
from netarena.cli.option import read_pairs
from netarena.errors import AgentFailed, FailureReason
from netarena.model import AgentInfo, Reply
from netarena.task.application import load


class Thinking:
    """Wrapper that waits ``think_s`` before each reply of the agent."""

    def __init__(self, agent: Agent, think_s: float) -> None:
        self._agent = agent
        self._think_s = think_s

    @property
    def info(self) -> AgentInfo:
        return self._agent.info

    async def open(self, *, timeout_s: float) -> None:
        await self._agent.open(timeout_s=timeout_s)

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        if self._think_s >= timeout_s:
            await asyncio.sleep(timeout_s)
            raise AgentFailed(FailureReason.TIMEOUT, f"thinks for {self._think_s:g} s")
        await asyncio.sleep(self._think_s)
        return await self._agent.ask(
            prompt, context_id=context_id, timeout_s=timeout_s - self._think_s
        )

    async def aclose(self) -> None:
        await self._agent.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("application")
    parser.add_argument("agent")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS")
    parser.add_argument("--think", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    app = load(given.application)
    config = app.config_type.parse(read_pairs(given.set))
    brief = Brief(application=app, config=config, seed=given.seed, role=app.role)
    serve_agent(
        Thinking(load_agent(given.agent, brief), given.think),
        host=given.host,
        port=given.port,
        card_url=None,
        name=f"netarena-{given.agent}",
        description=f"The scripted {given.agent} agent, {given.think:g} s for each reply.",
        ready=print,
    )


if __name__ == "__main__":
    main()
