"""Kinds of an agent's actions as data, with their parameters.

``Application.tools`` returns them, for agents that call tools (MCP) and for people. A call becomes
a reply through ``Application.phrase``, and is parsed like any other reply.
"""

from __future__ import annotations

import re

from netarena.model import Cause, Record

_BACKTICKS = re.compile("`{3,}")


class Parameter(Record):
    """One text that a tool takes."""

    name: str
    #: for agents and people, one sentence
    about: str
    #: whether it is written in several lines, as a program is
    lines: bool = False


class Tool(Record):
    """One kind of action."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]


#: of an application that tells no kinds: what it says of the form of a reply holds
REPLY = Tool(
    name="reply",
    about="Send a reply in the form that the task asks for.",
    parameters=(Parameter(name="text", about="The whole reply."),),
)


#: of a ticket: the end, which the agent declares
DONE = Tool(
    name="done",
    about="Declare that all is right, or always was: this ends the task.",
    parameters=(
        Parameter(
            name="causes",
            about="What was wrong: a line PLACE: WHAT for each cause, in the task's words; empty "
            "where nothing was.",
            lines=True,
        ),
    ),
)


def read_causes(text: str) -> list[Cause]:
    """The causes of a call of ``DONE``, as far as lines tell a place and a word."""
    pairs = [line.rpartition(":") for line in text.splitlines()]
    return [Cause(place.strip(), what.strip()) for place, sign, what in pairs if sign]


def fence(text: str, tag: str = "") -> str:
    """``text`` as a fenced block of Markdown, whatever backticks it holds."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=2)
    marks = "`" * (longest + 1)
    return f"{marks}{tag}\n{text}\n{marks}"
