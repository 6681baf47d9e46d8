"""Selection of the agent under test with command-line options, for new and resumed runs."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from netarena.a2a.request import check_url
from netarena.agent.interface import agent_names
from netarena.cli.model import Model, find_model, model_of_named
from netarena.errors import ConfigError, suggest
from netarena.file import read_text
from netarena.run.assessment import CONFIG_NAME

#: Matches HOST:PORT, a URL without the scheme.
_ADDRESS = re.compile(r"[\w.-]+:\d{1,5}(/.*)?")


@dataclass(frozen=True)
class Choice:
    """The agent that a command's options select; if they select none, all fields are empty."""

    #: The name of a named agent, or a URL.
    agent: str | None = None
    #: Command that serves an agent over A2A (``--agent-cmd``).
    command: str | None = None
    over_a2a: bool = False
    #: Command that is started for each turn (``--agent-exec``).
    program: str | None = None

    @property
    def is_made(self) -> bool:
        """Return whether an option selects the agent."""
        return (self.agent, self.command, self.program) != (None, None, None)

    @property
    def url(self) -> str | None:
        """Return the agent's URL, or None if the agent is not given as a URL."""
        return self.agent if self.agent is not None and "://" in self.agent else None

    def model(self) -> Model:
        """Return the language model of the agent, or the reason why it is unknown."""
        command = self.command or self.program
        if command is None and self.agent is not None and self.url is None:
            return model_of_named(self.agent)
        if command is None:
            return Model(unknown="the agent at a URL does not name its model")
        return find_model(command, {}, os.environ)

    def check(self) -> None:
        """Raise ConfigError for options that exclude each other and for unknown agents."""
        if self.program is not None:
            if self.over_a2a or self.agent or self.command:
                raise ConfigError(
                    "--agent-exec", "cannot be combined with --agent, --agent-cmd or --over-a2a"
                )
        elif self.command is not None:
            if self.over_a2a or self.agent:
                raise ConfigError("--agent-cmd", "cannot be combined with --agent or --over-a2a")
        elif self.url is not None:
            check_url(self.url, "--agent")
            if self.over_a2a:
                raise ConfigError(
                    "--over-a2a",
                    "is allowed only with a named agent: an agent at a URL always uses A2A",
                )
        elif self.agent not in agent_names():
            known = ", ".join(agent_names()) or "the installed agents (none is installed)"
            near = suggest(self.agent or "", agent_names())
            if _ADDRESS.fullmatch(self.agent or ""):
                near = f"; did you mean 'http://{self.agent}'?"
            raise ConfigError(
                "--agent", f"{self.agent!r} is neither a URL nor one of {known}{near}"
            )

    def stored(self) -> dict[str, Any]:
        """Return the choice in the form that is stored in the run's config."""
        return asdict(self)


def choose(given: Choice, default: str) -> Choice:
    """Return the given choice or, if it is empty, the agent named ``default``."""
    return given if given.is_made else replace(given, agent=default)


def resume_choice(given: Choice, role: str, folder: Path) -> tuple[Choice, str | None]:
    """Return the agent with which to resume the run in ``folder``, and the agent's name in the run.

    If ``given`` is empty, the result is the agent of the run. Otherwise the result is ``given``;
    the name is None unless ``given`` is the agent of the run. Raises ConfigError if ``given`` is
    empty and the run does not store how to reach its agent.
    """
    kept, called = _read_choice(role, folder)
    if given.is_made:
        return given, called if given == kept or _is_mended(given, kept, called) else None
    if kept is None:
        raise ConfigError(
            "--resume",
            f"the run in {folder} does not record its agent: give --agent, "
            "--agent-cmd or --agent-exec",
        )
    return replace(kept, over_a2a=kept.over_a2a or given.over_a2a), called


def _is_mended(given: Choice, kept: Choice | None, called: str | None) -> bool:
    """Return whether ``given`` only changes the ``--agent-cmd`` of a run that has a ``--name``."""
    known = None not in (given.command, kept and kept.command)
    return known and kept is not None and called != kept.command


def _read_choice(role: str, folder: Path) -> tuple[Choice | None, str | None]:
    try:
        stored = json.loads(read_text(folder / CONFIG_NAME))
        called = stored["participants"][role]
        told = stored.get("agent")
        choice = Choice(**told) if told else Choice(agent=called)
    except (OSError, ValueError, KeyError, TypeError):
        return None, None  # ``conduct`` reports why the folder is not a run
    started = choice.command is not None or choice.program is not None
    known = started or choice.url is not None or choice.agent in agent_names()
    return choice if known else None, called


def connect(
    url: str, role: str, environ: Mapping[str, str], connect_timeout_s: float = math.inf
) -> Any:
    """Return a client of the agent at ``url``, with the role's headers from ``environ``.

    If no server listens at the URL yet, the client waits for at most ``connect_timeout_s``.
    """
    from netarena.a2a.client import A2AAgent
    from netarena.a2a.credential import load_credentials, variable
    from netarena.a2a.network import Network

    return A2AAgent(
        url,
        name=role,
        credential=load_credentials(environ).get(variable(role)),
        # link-local addresses are allowed, because the user chose the address
        network=Network(allow_link_local=True),
        connect_timeout_s=connect_timeout_s,
    )
