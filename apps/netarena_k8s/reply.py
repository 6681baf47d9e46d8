"""Reading a reply: one kubectl command line.

The form is the outside contract's: what stands between the first pair of triple backticks (a
language tag is allowed), or a bare line that starts with ``kubectl``. What the command may do is
the cluster's to say.
"""

from __future__ import annotations

import re

from netarena.errors import ReplyRefused

#: bytes of one command; Linux takes no argument beyond 128 KiB
MAX_COMMAND_BYTES = 65_536
#: characters of a reply that are read
MAX_READ_CHARS = 262_144

_FENCE = "```"
#: what may stand behind the opening backticks on their line
_TAG = re.compile(r"[A-Za-z0-9_+-]{0,20}[ \t]*\r?\n")
_BARE = re.compile(r"^[ \t]*(?:\$ )?(kubectl[ \t].*)$", re.MULTILINE)
_FORM = "put one kubectl command between triple backticks"


def read_reply(reply: str) -> str:
    """The command of a reply. Raises ReplyRefused with a reason for the agent."""
    text = reply[:MAX_READ_CHARS]
    command = _fenced(text)
    if command is None:
        found = _BARE.search(text)
        if found is None:
            raise ReplyRefused(f"the reply holds no command: {_FORM}")
        command = found[1]
    return _checked(command.strip())


def _fenced(text: str) -> str | None:
    """What stands between the first pair of triple backticks."""
    _, opening, rest = text.partition(_FENCE)
    body, closing, _ = rest.partition(_FENCE)
    if not opening or not closing:
        return None
    tag = _TAG.match(body)
    return body[tag.end() :] if tag else body


def _checked(command: str) -> str:
    if not command:
        raise ReplyRefused(f"the command is empty: {_FORM}")
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise ReplyRefused("the command is not valid Unicode text") from None
    if "\0" in command:
        raise ReplyRefused("the command holds a NUL character, which no command can")
    if size > MAX_COMMAND_BYTES:
        raise ReplyRefused(f"the command has {size} bytes; {MAX_COMMAND_BYTES} are allowed")
    return command
