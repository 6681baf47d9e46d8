"""Selection of the examined agent: how to reach and name it, also for a resumed run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from netarena.a2a.request import check_url
from netarena.agent import agent_names
from netarena.assessment import CONFIG_NAME
from netarena.errors import ConfigError, suggest
from netarena.file import read_text

#: HOST:PORT, a URL without its scheme
_ADDRESS = re.compile(r"[\w.-]+:\d{1,5}(/.*)?")


@dataclass(frozen=True)
class Choice:
    """An agent, as options of ``run`` choose it; none of them is no choice."""

    #: a named one, or the URL of one
    agent: str | None = None
    #: that starts one (``--agent-cmd``)
    command: str | None = None
    over_a2a: bool = False
    #: that is started for each turn (``--agent-exec``)
    program: str | None = None

    @property
    def is_made(self) -> bool:
        """Whether anything was chosen."""
        return (self.agent, self.command, self.program) != (None, None, None)

    @property
    def url(self) -> str | None:
        """Where it is, if the choice says so."""
        return self.agent if self.agent is not None and "://" in self.agent else None

    def check(self) -> None:
        """Refuse what cannot be asked before any world is built. Raises ConfigError."""
        if self.program is not None:
            if self.over_a2a or self.agent or self.command:
                raise ConfigError("--agent-exec", "leaves no choice of another agent")
        elif self.command is not None:
            if self.over_a2a or self.agent:
                raise ConfigError(
                    "--agent-cmd", "leaves no choice of --agent, and needs no --over-a2a"
                )
        elif self.url is not None:
            check_url(self.url, "--agent")
            if self.over_a2a:
                raise ConfigError("--over-a2a", "is for named agents: a URL is talked to over A2A")
        elif self.agent not in agent_names():
            known = ", ".join(agent_names()) or "none is installed"
            near = suggest(self.agent or "", agent_names())
            if _ADDRESS.fullmatch(self.agent or ""):
                near = f"; did you mean 'http://{self.agent}'?"
            raise ConfigError(
                "--agent", f"{self.agent!r} is neither a URL nor one of {known}{near}"
            )

    def stored(self) -> dict[str, Any]:
        """For the run's config."""
        return asdict(self)


def choose(given: Choice, default: str) -> Choice:
    """What was given, or the agent of that name."""
    return given if given.is_made else replace(given, agent=default)


def resume_choice(given: Choice, role: str, folder: Path) -> tuple[Choice, str | None]:
    """The choice of the run in ``folder`` where none is given, and what the agent is called there.

    The name is None where another agent is given: it has its own. Raises ConfigError where the run
    does not say how its agent is had.
    """
    kept, called = _read_choice(role, folder)
    if given.is_made:
        return given, called if given == kept or _is_mended(given, kept, called) else None
    if kept is None:
        raise ConfigError(
            "--resume",
            f"the run in {folder} does not say how its agent is had: give --agent, --agent-cmd or "
            "--agent-exec",
        )
    return replace(kept, over_a2a=kept.over_a2a or given.over_a2a), called


def _is_mended(given: Choice, kept: Choice | None, called: str | None) -> bool:
    """Whether an agent that has a name of its own (``--name``) is started by another command."""
    known = None not in (given.command, kept and kept.command)
    return known and kept is not None and called != kept.command


def _read_choice(role: str, folder: Path) -> tuple[Choice | None, str | None]:
    try:
        stored = json.loads(read_text(folder / CONFIG_NAME))
        called = stored["participants"][role]
        told = stored.get("agent")
        choice = Choice(**told) if told else Choice(agent=called)
    except (OSError, ValueError, KeyError, TypeError):
        return None, None  # ``conduct`` says why, where it is no run
    started = choice.command is not None or choice.program is not None
    known = started or choice.url is not None or choice.agent in agent_names()
    return choice if known else None, called


def connect(
    url: str, role: str, environ: Mapping[str, str], connect_timeout_s: float = math.inf
) -> Any:
    """A client of the agent at ``url``, with the headers that ``environ`` has for the role.

    Its card is waited for no longer than ``connect_timeout_s`` while nobody serves the URL.
    """
    from netarena.a2a.client import A2AAgent
    from netarena.a2a.credential import load_credentials, variable
    from netarena.a2a.network import Network

    return A2AAgent(
        url,
        name=role,
        credential=load_credentials(environ).get(variable(role)),
        # whoever names an address on a command line of theirs means it
        network=Network(allow_link_local=True),
        connect_timeout_s=connect_timeout_s,
    )
