"""Scenario files: the participants of an assessment, their start commands, and the config.

The files are TOML and have two forms. Local files contain each agent's URL and the command that
starts the agent:

    [green_agent]
    endpoint = "http://127.0.0.1:9009"
    cmd = "netarena serve malt --port 9009"

    [[participants]]
    role = "malt_operator"
    endpoint = "http://127.0.0.1:9010"
    cmd = "netarena-purple --model openai/gpt-4o-mini --port 9010"

    [config]
    num_queries = 1

Leaderboard files name an image or the platform's id of the agent, and the environment variables. In
these files, the key for the role is ``name``:

    [[participants]]
    agentbeats_id = "…"
    image = "ghcr.io/me/my-agent:1"
    name = "malt_operator"
    env = { OPENAI_API_KEY = "${OPENAI_API_KEY}" }
    volumes = ["./pack.json:/data/pack.json:ro"]

If the green agent has an ``application`` instead of an endpoint, no green agent is started, and
``netarena run`` itself evaluates the participants. The participants may then be programs that are
started for each turn (``exec``). NetArena ignores other keys and tables, which are for the
platform.

A participant may have its own ``config`` with keys that affect only its prompts:

    [[participants]]
    role = "gpt-4o-react"
    endpoint = "http://127.0.0.1:9041"
    config = { prompt_type = "react" }

Instead, a file may list other scenario files, which are run one after the other:

    scenarios = ["expert/malt.toml", "expert/backbone.toml"]
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from netarena.a2a.request import MAX_PARTICIPANTS, OWN_CONFIG, ROLE, check_url
from netarena.errors import ConfigError, not_one_of
from netarena.file import read_text
from netarena.task.application import load

#: Error message for options and keys that work only if ``netarena run`` itself runs the
#: application.
NEEDS_APPLICATION = 'needs application = "NAME" instead of endpoint and cmd in [green_agent]'

#: Maximum number of bytes of a scenario file.
MOST_SCENARIO_BYTES = 1 << 20
#: Maximum number of scenario files that one file may list.
MOST_SCENARIOS = 16
#: Port on which the agent in every image listens.
IMAGE_PORT = 9009
#: Suffix of typical roles, such as ``malt_operator``.
_ROLE_END = "_operator"
#: Matches ``netarena serve APP`` in a command, and ``…/netarena-APP:TAG`` in an image's name.
_SERVED = re.compile(r"\bnetarena(?:\S* serve |-)([a-z0-9]+)(?=$|[\s:@])")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Accepted form of a mount (part of the short syntax of compose): a path or a volume's name, the
#: path in the container, and optionally ``ro`` or ``rw``.
_VOLUME = re.compile(r"[^:\0]+:/[^:\0]*(:r[ow])?")
_NO_IMAGES: Mapping[str, str] = MappingProxyType({})
#: Health check of a container. An agent has two minutes to start (60 checks).
_HEALTH = {
    "test": [
        "CMD",
        "curl",
        "--fail",
        "--silent",
        "--output",
        "/dev/null",
        f"http://localhost:{IMAGE_PORT}/.well-known/agent-card.json",
    ],
    "interval": "2s",
    "timeout": "5s",
    "retries": 60,
}


@dataclass(frozen=True)
class Party:
    """One agent of a scenario: its URL, and how to start it."""

    #: The participant's role, or ``green_agent`` for the green agent.
    role: str
    endpoint: str | None = None
    cmd: str | None = None
    #: Command that is started for each turn; it reads the prompt and writes the reply.
    program: str | None = None
    image: str | None = None
    agentbeats_id: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    #: Mounts of the container, each ``SOURCE:TARGET`` or ``SOURCE:TARGET:ro``.
    volumes: tuple[str, ...] = ()
    #: Config keys that apply only to this participant (``Config.prompt_keys``), not yet validated.
    config: Mapping[str, Any] = field(default_factory=dict)

    def environ(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the agent's environment with ``${NAME}`` replaced by values of ``given``.

        Raises ConfigError if a name is missing.
        """

        def replace(match: re.Match[str]) -> str:
            if match[1] not in given:
                raise ConfigError(
                    f"{self.role}.env", f"{match[1]} is not set in the environment: export it"
                )
            return given[match[1]]

        return {name: _VARIABLE.sub(replace, value) for name, value in self.env.items()}


@dataclass(frozen=True)
class Scenario:
    """Contents of a scenario file."""

    #: Name of the scenario's results, made from the application and the file's name without
    #: extension.
    name: str
    green: Party
    participants: tuple[Party, ...]
    config: Mapping[str, Any]
    #: Application that ``netarena run`` itself runs, if the green agent is not a service.
    application: str | None = None

    @property
    def examined(self) -> str:
        """Return the application's name.

        If the green agent is a service, the name is a guess (``_guess_application``).
        """
        roles = [party.role for party in self.participants]
        return self.application or _guess_application(self.green, roles)

    def request(self, endpoints: Mapping[str, str]) -> str:
        """Return the request for the assessment as JSON. ``endpoints`` maps roles to URLs."""
        request = {"participants": dict(endpoints), "config": dict(self.config)}
        if own := self.own():
            request[OWN_CONFIG] = own
        return json.dumps(request)

    def own(self) -> dict[str, dict[str, Any]]:
        """Return the participants' own config keys by role."""
        return {party.role: dict(party.config) for party in self.participants if party.config}

    def ids(self) -> dict[str, str]:
        """Return the participants' platform ids by role."""
        return {
            party.role: party.agentbeats_id for party in self.participants if party.agentbeats_id
        }

    def endpoints(self) -> dict[str, str]:
        """Return the URLs by role of all participants that are not programs.

        Raises ConfigError for a participant without a URL.
        """
        urls = {}
        for party in self.participants:
            if party.program is not None:
                if self.application is None:
                    raise ConfigError(
                        f"{party.role}.exec",
                        NEEDS_APPLICATION,
                    )
                continue
            if party.endpoint is None:
                raise ConfigError(
                    f"participants.{party.role}",
                    "has no endpoint: give endpoint (and cmd), or run images with "
                    "`netarena compose`",
                )
            urls[party.role] = party.endpoint
        return urls


def read_series(path: Path) -> dict[str, Scenario]:
    """Return the scenarios that a file lists (key ``scenarios``), by name and in order.

    The result is empty if the file is itself a scenario. Paths are relative to the file's folder.
    Raises ConfigError, which names the key.
    """
    data = _read(path)
    if "scenarios" not in data:
        return {}
    names = data["scenarios"]
    if (
        not isinstance(names, list)
        or not 1 <= len(names) <= MOST_SCENARIOS
        or not all(isinstance(name, str) and name for name in names)
    ):
        raise ConfigError("scenarios", f"must be a list of 1 to {MOST_SCENARIOS} file paths")
    if more := sorted(data.keys() & {"green_agent", "participants", "config"}):
        raise ConfigError(
            "scenarios", f"must be the only key: move {more[0]} into the files that it names"
        )
    folders = _name_apart([Path(name) for name in names])
    return {
        folder: read_scenario(path.parent / name)
        for folder, name in zip(folders, names, strict=True)
    }


def _name_apart(files: list[Path]) -> list[str]:
    """Return a distinct name for each file: its stem, preceded by as many folders as necessary.

    Raises ConfigError if a file is listed twice, or if two files differ only in their extension.
    """
    parts = [[*file.parts[:-1], file.stem] for file in files]
    if twice := [str(file) for file in files if files.count(file) > 1]:
        raise ConfigError("scenarios", f"lists {twice[0]} twice: use repeats to ask queries again")
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["-".join(part[-depth:]) for part in parts]
        if len({*names}) == len(names):
            return names
    raise ConfigError(
        "scenarios", "two files have the same path apart from the extension: rename one"
    )


def read_scenario(path: Path) -> Scenario:
    """Return the scenario in a file. Raises ConfigError, which names the key."""
    data = _read(path)
    if "scenarios" in data:
        raise ConfigError(
            "scenarios",
            f"{path} lists other scenario files; only `netarena run {path}` accepts such a file",
        )
    green_table = _table(data, "green_agent")
    parties = data.get("participants")
    if not isinstance(parties, list) or not 1 <= len(parties) <= MAX_PARTICIPANTS:
        raise ConfigError(
            "participants", f"must be 1 to {MAX_PARTICIPANTS} tables [[participants]]"
        )
    participants = tuple(
        _party(party, _role(party, number)) for number, party in enumerate(parties)
    )
    roles = [party.role for party in participants]
    if twice := [role for role in roles if roles.count(role) > 1]:
        raise ConfigError("participants", f"the role {twice[0]!r} is used twice")
    scenario = Scenario(
        name=path.stem,
        green=_party(green_table, "green_agent"),
        participants=participants,
        config=_table(data, "config", empty=True),
        application=_text(green_table, "application", "green_agent"),
    )
    return replace(scenario, name=f"{scenario.examined}-{path.stem}")


def compose(
    scenario: Scenario, *, image: str | None = None, images: Mapping[str, str] = _NO_IMAGES
) -> dict[str, Any]:
    """Return the content of a compose file that runs the scenario's images and stores its results.

    ``docker compose up --abort-on-container-exit --exit-code-from assessment`` ends when the
    results are in ``./output``. ``images`` maps roles to images that replace those of the scenario;
    the green agent has the role ``green_agent``. ``image`` is the default for agents without an
    image.

    The service that requests the assessment uses the green agent's image too. Raises ConfigError
    for an agent without an image, for an image of an unknown role, and for a default image that no
    agent needs.
    """
    green = scenario.green
    roles = [party.role for party in scenario.participants]
    for role in images:
        if role not in {green.role, *roles}:
            raise ConfigError("--image", f"role {not_one_of(role, [green.role, *roles])}")
    parties = [green, *scenario.participants]
    if image is not None and all(images.get(one.role, one.image) for one in parties):
        raise ConfigError(
            "--image", f"all agents already have an image: to replace one, write ROLE={image}"
        )
    urls = {role: f"http://{_service(role)}:{IMAGE_PORT}/" for role in roles}
    services: dict[str, Any] = {
        "green-agent": _container(green, images.get(green.role, green.image or image))
    }
    application = scenario.application or _guess_application(green, roles)
    if _needs_privileges(application):
        services["green-agent"]["privileged"] = True
    for party in scenario.participants:
        chosen = images.get(party.role, party.image or image)
        services[_service(party.role)] = _container(party, chosen)
    named = [word for role, known in scenario.ids().items() for word in ("--id", f"{role}={known}")]
    services["assessment"] = {
        "image": services["green-agent"]["image"],
        "entrypoint": ["netarena", "request"],
        # dollar signs are doubled, because compose would otherwise substitute variables
        "command": [
            f"http://green-agent:{IMAGE_PORT}/",
            scenario.request(urls).replace("$", "$$"),
            "--out",
            "/output",
            *(word.replace("$", "$$") for word in named),
        ],
        # the output files then belong to the user who runs compose
        "user": "${UID:-0}",
        "volumes": ["./output:/output"],
        "depends_on": {name: {"condition": "service_healthy"} for name in services},
    }
    return {"services": services}


def _needs_privileges(application: str) -> bool:
    """Return whether an application needs a privileged container; False for an unknown one."""
    try:
        return load(application).privileged
    except ConfigError:
        return False


def _container(party: Party, image: str | None) -> dict[str, Any]:
    if image is None:
        known = f" (id {party.agentbeats_id})" if party.agentbeats_id else ""
        raise ConfigError(
            f"{party.role}.image",
            f"is missing{known}: add image = ... to the file, or --image {party.role}=IMAGE",
        )
    service: dict[str, Any] = {"image": image}
    if party.env:
        service["environment"] = {name: _late(value) for name, value in party.env.items()}
    if party.volumes:
        service["volumes"] = [_late(volume) for volume in party.volumes]
    # a copy, because YAML would write a shared object as an alias
    service["healthcheck"] = copy.deepcopy(_HEALTH)
    return service


def _late(text: str) -> str:
    """Return text in which compose replaces ``${NAME}`` when it starts.

    The file therefore contains no secret.
    """
    return _VARIABLE.sub(r"${\1:?\1 is not set}", text.replace("$", "$$").replace("$${", "${"))


def _guess_application(green: Party, roles: list[str]) -> str:
    """Return the application named in the green agent's command or image.

    If neither names an application, the result is the first role without the suffix ``_operator``.
    """
    told = _SERVED.search(f"{green.cmd or ''} {green.image or ''}")
    return told[1] if told else roles[0].removesuffix(_ROLE_END)


def _service(role: str) -> str:
    """Return the name of a role's service.

    The name is also a host name, so it has no underscores, dots or upper-case letters.
    """
    return re.sub(r"[^a-z0-9-]+", "-", role.lower()).strip("-") or "participant"


def _role(party: Any, number: int) -> str:
    where = f"participants[{number}]"
    if not isinstance(party, dict):
        raise ConfigError(where, "must be a table")
    role = party.get("role", party.get("name"))
    if not isinstance(role, str) or not ROLE.fullmatch(role):
        raise ConfigError(
            f"{where}.role", f"(or name) must be a string that matches {ROLE.pattern}"
        )
    return role


def _party(table: Mapping[str, Any], role: str) -> Party:
    endpoint = _text(table, "endpoint", role)
    cmd = _text(table, "cmd", role)
    if endpoint is not None:
        check_url(endpoint, f"{role}.endpoint")
    if cmd is not None and endpoint is None and "application" not in table:
        raise ConfigError(
            f"{role}.endpoint",
            "is missing: give the URL at which the agent that cmd starts will listen",
        )
    program = _text(table, "exec", role)
    if program is not None and (endpoint or cmd or role == "green_agent"):
        raise ConfigError(
            f"{role}.exec", "is allowed only for a participant that has neither endpoint nor cmd"
        )
    env = table.get("env", {})
    names = list(env) if isinstance(env, dict) else [""]
    if not all(_NAME.fullmatch(name) and isinstance(env[name], str | int) for name in names):
        raise ConfigError(
            f"{role}.env", "must be a table of variable names with strings or integers"
        )
    volumes = table.get("volumes", [])
    if not isinstance(volumes, list) or not all(
        isinstance(volume, str) and _VOLUME.fullmatch(volume) for volume in volumes
    ):
        raise ConfigError(f"{role}.volumes", 'must be a list of strings "SOURCE:/TARGET[:ro]"')
    return Party(
        role=role,
        endpoint=endpoint,
        cmd=cmd,
        program=program,
        image=_text(table, "image", role),
        agentbeats_id=_text(table, "agentbeats_id", role),
        env={name: str(value) for name, value in env.items()},
        volumes=tuple(volumes),
        config=_own_config(table, role),
    )


def _own_config(table: Mapping[str, Any], role: str) -> dict[str, Any]:
    """Return a participant's own config keys, not yet validated.

    Raises ConfigError for a value that is not a table.
    """
    own = table.get("config", {})
    if not isinstance(own, dict):
        raise ConfigError(f"{role}.config", "must be a table of config keys")
    if own and role == "green_agent":
        raise ConfigError("green_agent.config", "belongs in the table [config]")
    # in older files, the key is outside the table, where it had no effect
    if "prompt_type" in table:
        raise ConfigError(
            f"{role}.prompt_type", 'belongs in its config: config = { prompt_type = "react" }'
        )
    return own


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path, MOST_SCENARIO_BYTES))
    except OSError as error:
        raise ConfigError("scenario", f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("scenario", f"{path} is not valid TOML: {error}") from None


def _text(table: Mapping[str, Any], key: str, role: str) -> str | None:
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{role}.{key}", f"must be a string, not {type(value).__name__}")
    # templates have empty values that users fill in
    return value or None


def _table(data: Mapping[str, Any], key: str, *, empty: bool = False) -> dict[str, Any]:
    value = data.get(key, {} if empty else None)
    if not isinstance(value, dict):
        raise ConfigError(key, f"must be a table [{key}]")
    return value
