"""Kinds of an agent's actions as data, with their parameters.

``Tools.kinds`` returns the kinds of actions, for agents that call tools (MCP) and for users at a
terminal. ``Tools.reply`` converts a call of a tool to a reply, which is parsed like any other
reply.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from netarena.config import Config
from netarena.model import Cause, Record, Refusal
from netarena.task.ticket import read_change

_BACKTICKS = re.compile("`{3,}")


class Parameter(Record):
    """One text argument of a tool."""

    name: str
    #: Description for agents and users, one sentence.
    about: str
    #: Whether the text may have several lines, like a program.
    lines: bool = False


class Tool(Record):
    """One kind of action."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]


#: The only tool of an application without kinds of action. The argument is a whole reply, in the
#: form that the prompt describes.
REPLY = Tool(
    name="reply",
    about="Send a reply in the form that the task asks for.",
    parameters=(Parameter(name="text", about="The whole reply."),),
)


class Tools:
    """An agent's kinds of actions. By default, the only kind is to send a whole reply.

    The declaration of a ticket is added for all applications (``application.tools_of``).
    """

    def kinds(self, config: Config) -> Sequence[Tool]:
        """Return the kinds of actions under ``config``, the most frequent first."""
        del config
        return (REPLY,)

    def reply(self, tool: str, values: Mapping[str, str]) -> str:
        """Return the reply that is equivalent to a call of a tool.

        ``values`` contains an untrusted text for each parameter of the tool. ``Application.parse``
        parses the reply and may refuse it.
        """
        del tool
        return values["text"]


#: Tool with which the agent declares that it has finished its work on a ticket.
DONE = Tool(
    name="done",
    about="Declare that the task is done. This ends the task.",
    parameters=(
        Parameter(
            name="causes",
            about="The causes, one per line, as PLACE: WORD, with the words that the task lists. "
            "Leave it empty if nothing was wrong.",
            lines=True,
        ),
    ),
)


#: Name of the parameter for refused changes.
REFUSED = "refused"
#: The tool ``DONE`` with a parameter for refused changes, for tickets that may request changes.
DONE_OR_REFUSED = Tool(
    name=DONE.name,
    about=DONE.about,
    parameters=(
        *DONE.parameters,
        Parameter(
            name=REFUSED,
            about="The requested changes that you refuse, one per line, as NUMBER: WORD, with the "
            "words that the task lists. Leave it empty if you refuse none.",
            lines=True,
        ),
    ),
)


def read_causes(text: str) -> list[Cause]:
    """Return the causes in a call of ``DONE``; lines that are not ``PLACE: WORD`` are left out."""
    pairs = [line.rpartition(":") for line in text.splitlines()]
    return [Cause(place.strip(), what.strip()) for place, sign, what in pairs if sign]


def read_refused(text: str) -> list[Refusal]:
    """Return the refused changes in a call of ``DONE_OR_REFUSED``.

    A line without a number gets the number 0, which parsers refuse. If the line were left out, the
    declaration would end the task without this change.
    """
    pairs = [line.partition(":") for line in text.splitlines() if line.strip()]
    return [
        Refusal(change=read_change(change) or 0, because=because.strip())
        for change, _, because in pairs
    ]


def fence(text: str, tag: str = "") -> str:
    """Return ``text`` as a fenced block of Markdown, even if it contains backticks."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=2)
    marks = "`" * (longest + 1)
    return f"{marks}{tag}\n{text}\n{marks}"
