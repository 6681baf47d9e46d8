"""Sessions as ``environment_factory`` for TRL's ``GRPOTrainer``.

    from netarena.training.trl import make_environment, make_rows

    trainer = GRPOTrainer(
        model, args=GRPOConfig(...), environment_factory=make_environment("route"),
        train_dataset=Dataset.from_list(make_rows(seed=7, number=512)),
    )

An application's kinds of action (``tools_of``) become tools. Tools are methods of a generated
class, typed and documented as TRL expects. The model gets the first prompt and, after each call,
the new part of the next prompt. ``make_dialogues`` converts a data set of ``netarena sft`` to such
rollouts for ``SFTTrainer``. This module does not import TRL.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from netarena.config import with_seed_text
from netarena.errors import ConfigError, ReplyRefused
from netarena.task.application import Application, reply_of, tools_of
from netarena.task.prompt import news
from netarena.task.tool import DONE, Tool
from netarena.training.arena import Seat, config_of, load_for
from netarena.training.reward import Rewards

_GUIDE = "Act by calling your tools, in place of replies in that form: each call is a turn."
_ENDED = "The task has ended."
#: Last message of the assistant in a dialogue of ``make_dialogues``.
_LAST = "Done."
_CAME = "What it led to."
#: Names that tools must not have.
_RESERVED = frozenset({"reset", "get_reward"})


class Rollout:
    """Base class of the class that TRL instantiates for each rollout.

    TRL treats all public methods except ``reset`` and ``get_reward`` as tools, so this class has no
    other public methods.
    """

    #: Function that creates the session (``Seat``) from the arguments of ``make_environment``.
    _seated: Callable[[], Seat]

    def __init__(self) -> None:
        self._seat = self._seated()
        self._prompt = ""
        self._reward = 0.0
        self._done = True
        #: ``Acted.info`` of each turn so far, for evaluation. TRL does not treat attributes as
        #: tools.
        self.infos: list[dict[str, Any]] = []

    def reset(self, seed: int = 0, task: int = 0, seed_text: str = "", **row: Any) -> str:
        """Start task ``task`` of ``seed`` and return the first prompt.

        Both numbers come from the data set row, which all rollouts of a group share. ``seed_text``
        replaces ``seed`` if it is not empty. Raises ConfigError, EnvironmentFailed.
        """
        del row
        self._prompt = self._seat.start(int(seed_text or seed), int(task))
        self._reward, self._done, self.infos = 0.0, False, []
        return _opening(self._prompt)

    def get_reward(self) -> float:
        """Return the sum of all rewards, plus ``Session.forfeit`` for an unfinished episode."""
        return self._reward + self._seat.forfeit()

    def _call(self, tool: str, values: Mapping[str, str]) -> str:
        if self._done:
            return _ENDED
        texts = {name: str(value) for name, value in values.items()}
        acted = self._seat.act(reply_of(self._seat.application, tool, texts))
        self._reward += acted.reward
        self._done = acted.done
        self.infos.append(acted.info)
        if acted.done:
            return _ENDED
        told = _told(self._prompt, acted.observation)
        self._prompt = acted.observation
        return told


def make_environment(
    application: str,
    values: Mapping[str, Any] | None = None,
    rewards: str | Rewards = "default",
    *,
    training: bool = True,
) -> type[Rollout]:
    """Return a class for ``environment_factory``; ``values`` maps config keys to values.

    Raises ConfigError.
    """
    loaded = load_for(application, training=training)
    tools = tools_of(loaded, config_of(loaded, values or {}))

    def seated(_: object) -> Seat:
        return Seat(application, values, rewards, training=training)

    methods = {tool.name: _method(tool) for tool in tools if tool.name not in _RESERVED}
    return type(f"{application.title()}Rollout", (Rollout,), {"_seated": seated, **methods})


def make_rows(seed: int, number: int, start: int = 0) -> list[dict[str, Any]]:
    """Return data set rows: ``number`` tasks of ``seed``, beginning with task ``start``.

    Consecutive tasks cycle through the labels.
    """
    prompt = [{"role": "user", "content": ""}]
    tasks = range(start, start + number)
    return [with_seed_text({"prompt": prompt, "seed": seed, "task": task}) for task in tasks]


def make_dialogues(
    application: str, path: Path, values: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the episodes of a data set (``netarena sft``) as rollouts for ``SFTTrainer``.

    Each row has ``messages`` and ``tools``, as JSON. ``values`` are the config keys with which the
    set was generated. Raises ConfigError if a line of the file was not written by ``netarena sft``,
    and OSError if the file cannot be read.
    """
    loaded = load_for(application, training=True)
    tools = tools_of(loaded, config_of(loaded, values or {}))
    schemas = json.dumps([_schema(tool) for tool in tools])
    return [
        {"messages": list(_messages(loaded, tools, turns)), "tools": schemas}
        for turns in _episodes(path)
    ]


def _episodes(path: Path) -> Iterator[list[tuple[str, str]]]:
    """Yield the turns of each episode in a data set as pairs of prompt and reply."""
    turns: list[tuple[str, str]] = []
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            try:
                line = json.loads(text)
                prompt, reply = (str(one["content"]) for one in line["messages"])
                first = line["turn"] == 1
            except (ValueError, KeyError, TypeError):
                raise ConfigError(
                    "set", f"{path}:{number}: this line was not written by netarena sft"
                ) from None
            if first and turns:
                yield turns
                turns = []
            turns.append((prompt, reply))
    if turns:
        yield turns


def _messages(
    application: Application, tools: Sequence[Tool], turns: Sequence[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    prompts = [prompt for prompt, _ in turns]
    told = [*(_told(before, now) for before, now in pairwise(prompts)), _ENDED]
    yield {"role": "user", "content": _opening(prompts[0])}
    for (_, reply), came in zip(turns, told, strict=True):
        name, values = _call_of(application, tools, reply)
        call = {"type": "function", "function": {"name": name, "arguments": values}}
        yield {"role": "assistant", "content": "", "tool_calls": [call]}
        yield {"role": "tool", "name": name, "content": came}
    yield {"role": "assistant", "content": _LAST}


def _call_of(
    application: Application, tools: Sequence[Tool], reply: str
) -> tuple[str, dict[str, str]]:
    """Return the tool call (name and arguments) that is equivalent to ``reply``.

    Raises ConfigError if the reply cannot be read or has no equivalent tool call.
    """
    try:
        move = application.parse(reply)
    except ReplyRefused as refused:
        raise ConfigError("set", f"a reply cannot be read: {refused}") from None
    for tool in tools:
        values = _values(application, tool, reply)
        if values is not None and _reads(application, tool, values) == move:
            return tool.name, values
    raise ConfigError(
        "set", f"no tool call of {application.name} corresponds to the reply {reply[:80]!r}"
    )


def _values(application: Application, tool: Tool, reply: str) -> dict[str, str] | None:
    """Return the arguments of the call of ``tool`` that is equivalent to ``reply``, or None."""
    move = application.parse(reply)
    claim = application.tickets.declaration(move)
    if (claim is not None) != (tool.name == DONE.name):
        return None
    names = [parameter.name for parameter in tool.parameters]
    if claim is not None:
        causes = "\n".join(": ".join(one) for one in claim.causes or ())
        refused = "\n".join(f"{one.change}: {one.because}" for one in claim.refused)
        return dict(zip(names, (causes, refused), strict=False))
    if isinstance(move, Mapping):
        return {name: str(move.get(name, "")) for name in names}
    return {names[0]: str(move)}


def _reads(application: Application, tool: Tool, values: Mapping[str, str]) -> object:
    try:
        return application.parse(reply_of(application, tool.name, values))
    except ReplyRefused:
        return None


def _opening(prompt: str) -> str:
    return f"{prompt}\n\n{_GUIDE}"


def _told(before: str, now: str) -> str:
    return "\n".join(news(before, now))


def _schema(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool that ``transformers`` derives from the method of ``_method``."""
    parameters = {one.name: {"type": "string", "description": one.about} for one in tool.parameters}
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.about,
            "parameters": {
                "type": "object",
                "properties": parameters,
                "required": list(parameters),
            },
            "return": {"type": "string", "description": _CAME},
        },
    }


def _method(tool: Tool) -> Any:
    """Return a method that calls a tool, with signature and docstring for chat templates."""

    def call(self: Rollout, *given: str, **named: str) -> str:
        values = signature.bind(self, *given, **named).arguments
        del values["self"]
        return self._call(tool.name, values)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [parameter.name for parameter in tool.parameters]
    signature = inspect.Signature(
        [
            inspect.Parameter("self", kind),
            *(inspect.Parameter(name, kind, annotation=str) for name in names),
        ],
        return_annotation=str,
    )
    arguments = [f"    {one.name}: {one.about}" for one in tool.parameters]
    told = [tool.about, *(["", "Args:", *arguments] if arguments else [])]
    call.__doc__ = "\n".join([*told, "", "Returns:", f"    {_CAME}"])
    call.__name__ = call.__qualname__ = tool.name
    call.__annotations__ = {**dict.fromkeys(names, str), "return": str}
    call.__signature__ = signature  # type: ignore[attr-defined]  # inspect reads it
    return call
