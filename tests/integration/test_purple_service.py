"""``netarena-purple`` as a process: prints its address, serves a card, replies, and stops."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from netarena.a2a.client import A2AAgent
from netarena.agent.interface import context_id
from netarena.task.application import load

COMMAND = [sys.executable, "-m", "a2a_purple.cli", "--application", "toy"]


@contextmanager
def service(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(
        [*COMMAND, *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            # only the test's own time limit ends this wait
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_purple_agent_serves_its_card_and_stops_on_a_signal():
    with service("--strategy", "noop") as (process, url):
        for path in ("agent-card.json", "agent.json"):
            card = httpx.get(f"{url}.well-known/{path}", timeout=10).json()
            assert card["name"] == "netarena-noop"
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=10)
        assert process.returncode == 0


def test_card_names_the_given_url():
    with service("--strategy", "noop", "--card-url", "http://proxy.example/p/") as (_, url):
        card = httpx.get(f"{url}.well-known/agent-card.json", timeout=10).text
        assert "http://proxy.example/p/" in json.dumps(card)


@pytest.mark.anyio
async def test_oracle_answers_with_the_reference_solution_turn_by_turn():
    app = load("toy")
    config = app.config_type.parse({"num_queries": 1})
    queries = list(app.generate(config, 5))
    query = max(queries, key=lambda one: len(app.solve(one)))
    context = context_id(
        5,
        application="toy",
        shape_hash=config.shape_hash(),
        index=query.index,
        role=app.role,
        attempt=0,
    )
    with service("--strategy", "oracle", "--seed", "5", "--set", "num_queries=1") as (_, url):
        agent = A2AAgent(url)
        await agent.open(timeout_s=30)
        try:
            said = [
                (await agent.ask("now?", context_id=context, timeout_s=30)).text
                for _ in app.solve(query)
            ]
        finally:
            await agent.aclose()
    assert said == list(app.solve(query))


def test_port_in_use_is_reported_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "--strategy", "noop", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert str(port) in done.stderr
