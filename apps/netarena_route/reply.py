"""Reading a reply: on which machine the agent runs which command.

The form is the outside contract's: a JSON object ``{"machine": ..., "command": ...}``, bare,
fenced, or inside prose; the last object with both keys counts. It is read as leniently as can be
done without guessing: line breaks and backslashes that JSON would have escaped, single quotes, a
comma too many. Whether the machine exists and the command says anything is the world's to tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from netarena.errors import ReplyRefused

#: bytes of one command; Linux takes no argument beyond 128 KiB
MAX_COMMAND_BYTES = 65_536
#: characters at the end of a reply that are read, and objects in them that are tried
MAX_READ_CHARS = 262_144
MAX_TRIES = 64

_FORM = 'send one JSON object {"machine": "<name>", "command": "<one shell command>"}'
_OPENING = re.compile(r"""\{\s*["']""")
#: a quoted text, either way; possessive, so that reading stays linear
_TEXT = r"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")"""
_PAIR = re.compile(rf"({_TEXT})\s*+:\s*+({_TEXT})\s*+(?:,\s*+)?+", re.DOTALL)
_LOOSE = re.compile(rf"\{{\s*+(?:{_PAIR.pattern})++\}}", re.DOTALL)
#: a backslash and what follows it, if JSON knows that
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4}|\')?')
_DECODER = json.JSONDecoder(strict=False)


def read_reply(reply: str) -> dict[str, str]:
    """The machine and the command of a reply.

    Raises ReplyRefused with a reason for the agent.
    """
    for found in _objects(reply[-MAX_READ_CHARS:]):
        machine, command = found["machine"], found["command"]
        if not isinstance(machine, str) or not isinstance(command, str):
            raise ReplyRefused(f"machine and command must be texts: {_FORM}")
        return {"machine": _checked(machine.strip(), "machine"), "command": _checked(command)}
    raise ReplyRefused(f"the reply holds no object with machine and command: {_FORM}")


def _checked(text: str, what: str = "command") -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ReplyRefused(f"the {what} is not valid Unicode text") from None
    if "\0" in text:
        raise ReplyRefused(f"the {what} holds a NUL character, which no command can")
    if size > MAX_COMMAND_BYTES:
        raise ReplyRefused(f"the {what} has {size} bytes; {MAX_COMMAND_BYTES} are allowed")
    return text


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Objects with both keys, the last one first."""
    openings = [match.start() for match in _OPENING.finditer(text)]
    for start in openings[: -MAX_TRIES - 1 : -1]:
        for read in (_read_json, _read_loose):
            found = read(text, start)
            if isinstance(found, dict) and {"machine", "command"} <= found.keys():
                yield found
                break


def _read_json(text: str, start: int) -> Any:
    try:
        return _DECODER.raw_decode(text, start)[0]
    except (ValueError, RecursionError):
        return None


def _read_loose(text: str, start: int) -> dict[str, str] | None:
    """An object of texts that is JSON but for quotes, escapes and a last comma."""
    found = _LOOSE.match(text, start)
    if found is None:
        return None
    return {_unquote(key): _unquote(value) for key, value in _PAIR.findall(found[0])}


def _unquote(quoted: str) -> str:
    body = quoted[1:-1]
    if quoted[0] == "'":
        body = re.sub(r'(\\.)|"', lambda m: m[1] or r"\"", body, flags=re.DOTALL)
    known = _ESCAPE.sub(lambda m: {None: r"\\", "'": "'"}.get(m[1], m[0]), body)
    text: str = _DECODER.decode(f'"{known}"')
    return text
