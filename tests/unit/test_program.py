"""The environment variables of an agent under test that a run starts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from netarena.a2a.scenario import read_scenario
from netarena.agent.process import agent_environ, free_port, running
from netarena.agent.program_agent import CONTEXT, TurnAgent
from netarena.cli.scenario import started
from netarena.errors import ConfigError

SECRETS = (
    "NETARENA_SEED",
    "NETARENA_HEADERS_TOY_OPERATOR",
    "NETARENA_MCP_TOKEN",
    "NETARENA_PHRASING_PACK",
    "NETARENA_",
    "GREEN_SECRETS_JSON",
    "RAY_AUTH_TOKEN",
)
OTHERS = ("NETARENA_HOST", "OPENAI_API_KEY", "HTTPS_PROXY", "VIRTUAL_ENV", "MY_NETARENA_SEED")


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SECRETS, *OTHERS):
        monkeypatch.setenv(name, f"value of {name}")


def seen(text: str) -> set[str]:
    return {name for name in (*SECRETS, *OTHERS) if f"{name}=value of {name}\n" in f"\n{text}\n"}


def test_secrets_are_removed_from_the_environment_of_an_agent() -> None:
    environ = agent_environ()
    assert not environ.keys() & set(SECRETS)
    assert environ.keys() >= {*OTHERS, "PATH"}


def test_agent_cmd_gets_no_secret(tmp_path: Path) -> None:
    async def start() -> None:
        url = f"http://127.0.0.1:{free_port()}/"
        async with running(
            ["sh", "-c", f"env >{tmp_path}/env"], url, name="--agent-cmd", tell=print
        ):
            pass

    with pytest.raises(ConfigError, match="the command ended"):
        asyncio.run(start())
    lines = (tmp_path / "env").read_text()
    assert seen(lines) == set(OTHERS)
    assert not any(value in lines for value in map("value of {}".format, SECRETS[:2]))


def test_agent_exec_gets_its_context_and_no_secret() -> None:
    agent = TurnAgent(["env"], environ={"NETARENA_SEED": "set on purpose"})
    reply = asyncio.run(agent.ask("?", context_id="c", timeout_s=20.0))
    assert seen(reply.text) == set(OTHERS)
    assert f"{CONTEXT}=c\n" in reply.text
    assert "NETARENA_SEED=set on purpose\n" in reply.text, "env of a scenario is explicit"


def test_scenario_passes_secrets_to_the_green_agent_only(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    command = "sh -c 'env >{}/{}; sleep 60'"
    parties = []
    for table, role in (("green_agent", "green"), ("[participants]", "toy_operator")):
        parties += [
            f"[{table}]",
            *([f'role = "{role}"'] if role != "green" else []),
            f'endpoint = "http://127.0.0.1:{free_port()}"',
            f'cmd = "{command.format(tmp_path, role)}"',
            f'env = {{ OWN = "${{NETARENA_SEED}} of {role}" }}',
        ]
    path.write_text("\n".join(parties))
    scenario = read_scenario(path)

    async def start() -> None:
        for party in (*scenario.participants, scenario.green):
            alone = type(scenario)(scenario.name, party, (), {})
            one = alone if party is scenario.green else scenario
            with pytest.raises(ConfigError, match="no agent card"):
                async with started(one, 0.5):
                    pass

    asyncio.run(start())
    assert seen((tmp_path / "toy_operator").read_text()) == set(OTHERS)
    green = (tmp_path / "green").read_text()
    assert seen(green) == {*SECRETS, *OTHERS}
    assert "OWN=value of NETARENA_SEED of green\n" in green
