"""Texts of prompts that describe the possible replies: a command on a machine, or the declaration
that a ticket is done."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from netarena.sdk import read_text

_PACKAGE = "netarena_network"
#: Fields of a move, in the order in which histories show them.
KEYS = ("machine", "command")
#: Maximum number of characters of the history in a prompt.
MAX_HISTORY_CHARS = 48_000


def reply_format() -> str:
    """Return the description of a reply that contains a command."""
    return read_text(_PACKAGE, "reply")


def ticket_reply_format(words: Mapping[str, str]) -> str:
    """Return the description of a reply to a ticket; ``words`` maps causes to their meanings."""
    listed = "\n".join(f"- {word}: {meaning}" for word, meaning in words.items())
    return Template(read_text(_PACKAGE, "ticket_reply")).substitute(words=listed)
