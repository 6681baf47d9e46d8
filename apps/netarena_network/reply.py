"""Parser of replies, which name a machine and the command to run on this machine.

The documented form is an object ``{"machine": ..., "command": ...}``, bare, fenced or within prose.
The last object with these two keys counts. The parser is as lenient as possible without guessing.
It accepts:
- keys in capitals or without quotes, and single or curly quotes;
- unescaped line breaks and backslashes, which JSON requires to be escaped;
- an extra comma, and missing closing brackets at the end of the text or of its fence;
- an object inside another object or in a string of another object (a tool's arguments).

A string without an end is invalid, because half a command is a different command. If there is no
such object, two lines ``Machine: NAME`` and ``Command: TEXT`` are accepted if the command is
complete and the next line does not continue it. A reply without a command may declare a ticket
finished (``declaration``); the last declaration counts. Reasoning is skipped
(``netarena.task.reasoning``). The environment checks that the machine exists and that the command
is not empty.

Libraries that repair JSON are not used for two reasons: they guess where a string ends, and they
take quadratic or unlimited time for hostile input (issues 123, 130, 156 and 203 of json-repair).
This parser visits each position at most twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate, groupby
from typing import Any, NamedTuple

from netarena.sdk import (
    Cause,
    Found,
    Move,
    ReplyRefused,
    command_line,
    is_kept,
    read_answer,
    read_change,
)
from netarena_network.declaration import make_move, read_causes, read_refused

#: Maximum size of one command. Linux accepts no argument beyond 128 KiB.
MAX_COMMAND_BYTES = 65_536
#: Number of characters at the end of a reply that are parsed. Parsing takes at most about 0.3 s for
#: a text of this length.
MAX_READ_CHARS = 131_072

_FORM = 'send one JSON object {"machine": "<name>", "command": "<one shell command>"}'
_KEYS = frozenset({"machine", "command"})
#: Keys of a declaration, the key of a refused change whose value is a number, and the keys of a
#: cause.
_DONE, _CAUSES, _REFUSED = "done", "causes", "refused"
_CHANGE = "change"
_CAUSE_KEYS = frozenset({"place", "what"})

#: Kinds of quotes. A quote opens a string, and the next quote of the same kind closes it. Strings
#: must not overlap. Otherwise, the text after them would be parsed once per string.
_QUOTES = ('"', "'", "\u201c\u201d", "\u2018\u2019")  # the last two kinds are curly
_TEXT = "|".join(rf"[{kind}][^{kind}\\]*+(?:\\.[^{kind}\\]*+)*+[{kind}]" for kind in _QUOTES)
_TOKEN = re.compile(
    rf"\s*+(?:(?P<text>{_TEXT})|(?P<mark>[{{}}\[\]:,])|(?P<end>\Z|```)|(?P<word>[\w.+-]++))",
    re.DOTALL,
)
#: Words of JSON and Python whose value is used; other words have no value here.
_PLAIN = {"true": True, "false": False}
#: Words for "no value" in JSON and Python.
_NULL = frozenset({"null", "none"})
#: A value that is invalid for every key, such as a list with elements that are not objects.
_OTHER = ()
_OPENING = re.compile(r"\{(?=\s*+[\w" + "".join(_QUOTES) + r"])")
#: A backslash, with the next character if both together are a JSON escape sequence.
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4}|\')?')
_DECODER = json.JSONDecoder(strict=False)

#: A line with one of the keys, which Markdown may enclose, and a value. The value may be
#: incomplete.
_LINE = re.compile(
    r"[\s>*_#`-]*+(machine|command)[*_`]*+\s*+:(?:\*\*|__)?+\s*+(.*+)", re.IGNORECASE
)
_BLANK = re.compile(r"[\s>]*+")
_NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)


class _Said(NamedTuple):
    """A machine and a command, from an object or from two lines, with their position
    in the text."""

    values: dict[str, Any]
    start: int
    end: int
    #: False if this part of the reply contains a marker of the end of reasoning outside the
    #: command's quoted texts.
    whole: bool = True


def read_reply(reply: str, words: Collection[str], refusals: Collection[str] = ()) -> Move:
    """Return the machine and the command of a reply, or its declaration.

    ``words`` are the words that a declaration may use for causes. ``refusals`` are the words that
    it may use as reasons for refused changes; if ``refusals`` is empty, a declaration must not
    refuse changes. Raises ReplyRefused with a reason for the agent.
    """
    return read_answer(reply, lambda start, end: _find(reply, start, end, words, refusals))


def _find(
    reply: str, start: int, end: int, words: Collection[str], refusals: Collection[str]
) -> Found[Move]:
    start = max(start, end - MAX_READ_CHARS)
    text = reply[start:end]
    objects = list(_objects(text))
    commands = (said for said in objects if said.values.keys() >= _KEYS)
    said = _last(commands) or _last(_paired_lines(text)) or _last(iter(objects))
    if said is None:
        raise ReplyRefused(f"the reply contains no object with machine and command: {_FORM}")
    move: Move = {}
    why = ""
    try:
        if said.values.keys() >= _KEYS:
            move = _move(**{key: said.values[key] for key in _KEYS})
        else:
            causes = _read_causes(said.values[_CAUSES], words)
            move = make_move(causes, read_refused(said.values[_REFUSED], refusals))
    except ReplyRefused as refused:
        why = str(refused)
    return Found(move, start + said.start, start + said.end, said.whole, why)


def _read_causes(causes: object, words: Collection[str]) -> list[Cause]:
    """Return the causes of a declaration; raise ReplyRefused if ``causes`` is not a list of
    objects."""
    named = [] if causes is None else causes
    if not isinstance(named, list) or not all(one.keys() >= _CAUSE_KEYS for one in named):
        raise ReplyRefused(
            "causes must be a list of objects with place and what: "
            '{"done": true, "causes": [{"place": "<machine>", "what": "<word>"}]}'
        )
    return read_causes(named, words)


def _move(machine: object, command: object) -> Move:
    if not isinstance(machine, str) or not isinstance(command, str):
        raise ReplyRefused(f"machine and command must be strings: {_FORM}")
    command = _checked(command)
    if command_line.has_prompt(command.lstrip()):
        try:
            command = command_line.strip_prompts(command.strip())
        except ValueError as error:
            raise ReplyRefused(f"{error}: {_FORM}") from None
    move: Move = {"machine": _checked(machine.strip(), "machine"), "command": command}
    if why := command_line.lacks(command):
        raise ReplyRefused(f"the command is incomplete ({why}): {_FORM}")
    return move


def _last(found: Iterator[_Said]) -> _Said | None:
    last = None
    for last in found:  # noqa: B007 -- the loop only keeps the last value
        pass
    return last


def _checked(text: str, what: str = "command") -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ReplyRefused(f"the {what} is not valid Unicode text") from None
    if "\0" in text:
        raise ReplyRefused(f"the {what} contains a NUL character, which is not allowed")
    if size > MAX_COMMAND_BYTES:
        raise ReplyRefused(f"the {what} has {size} bytes; at most {MAX_COMMAND_BYTES} are allowed")
    return text


def _objects(text: str) -> Iterator[_Said]:
    """Yield the commands and declarations in a text, in the order of their ends.

    A command is an object with the keys ``machine`` and ``command``. Commands and declarations
    inside strings are also yielded.
    """
    hopeless: set[int] = set()
    opening = _OPENING.search(text)
    while opening:
        walk = _Walk(text, opening.end(), hopeless)
        for found in _speaking(walk.found):
            if found.keys() >= _KEYS or _DONE in found:
                yield _Said(found, opening.start(), walk.end)
            else:
                for value in found.values():
                    if isinstance(value, str):
                        for inner in _alone(value.strip()):
                            yield _Said(inner, opening.start(), walk.end)
        opening = _OPENING.search(text, walk.end)


def _alone(text: str) -> Iterator[dict[str, Any]]:
    """Yield the commands and declarations in a text that consists of exactly one object."""
    if opening := _OPENING.match(text):
        walk = _Walk(text, opening.end(), set())
        if walk.end == len(text):
            for found in _speaking(walk.found):
                if found.keys() >= _KEYS or _DONE in found:
                    yield found


def _speaking(found: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield declarations and other objects in the order of their ends.

    A declaration is reduced to ``done``, its causes and its refused changes.
    """
    for one in found:
        # In a tool call that must contain all keys, the keys of a command are null.
        bare = not one.keys() >= _KEYS or all(one[key] is None for key in _KEYS)
        if bare and str(one.get(_DONE)).lower() == "true":
            yield {_DONE: True, _CAUSES: one.get(_CAUSES), _REFUSED: one.get(_REFUSED)}
        else:
            yield {key: value for key, value in one.items() if key != _DONE}


class _Level:
    """An unclosed object or list, with its contents so far and the kind of token that
    must follow."""

    def __init__(self, *, keyed: bool) -> None:
        self.values: dict[str, Any] | None = {} if keyed else None
        self.key = ""
        #: "item" (a key or an element of a list), "colon", "value" or "comma".
        self.wants = "item"
        #: Number of elements of a list so far, and the elements that are objects.
        self.size = 0
        self.objects: list[dict[str, Any]] = []
        #: Start positions of the items. A parse that starts at one of them does not depend on
        #: earlier text.
        self.begun: list[int] = []


class _Walk:
    """Parse of one object, whose opening brace ends at ``start``.

    ``found`` contains the complete objects within the object and then the object itself. It is
    empty if the object is incomplete. ``end`` is the position where the search continues.

    ``hopeless`` contains the start positions of items from which the enclosing object or list
    cannot be completed (positions in lists are stored as complements). A later parse stops at these
    positions, so that all parses together take linear time.
    """

    def __init__(self, text: str, start: int, hopeless: set[int]) -> None:
        self.found: list[dict[str, Any]] = []
        self._hopeless = hopeless
        self._open: list[_Level] = []
        self.end = start
        place, fits = start, self._enter("{", start)
        while fits and self._open:
            token = _TOKEN.match(text, place)
            fits = token is not None and self._take(token)
            place = token.end() if token else place
        if fits:
            self.end = place
        else:
            hopeless.update(item for level in self._open for item in level.begun)
            self.found.clear()

    def _enter(self, mark: str, place: int) -> bool:
        self._open.append(_Level(keyed=mark == "{"))
        return self._next_item(place)

    def _next_item(self, place: int) -> bool:
        level = self._open[-1]
        level.wants = "item"
        level.begun.append(place if level.values is not None else ~place)
        return level.begun[-1] not in self._hopeless

    def _take(self, token: re.Match[str]) -> bool:
        """Process one token; return False if the token is not allowed here."""
        level = self._open[-1]
        keyed = level.values is not None
        said, wanted = token[token.lastgroup or 0], level.wants
        if token.lastgroup == "end":
            return self._cut_off()
        if said == ("}" if keyed else "]"):
            return wanted in {"item", "comma"} and self._leave()
        if wanted in {"colon", "comma"}:
            if said != (":" if wanted == "colon" else ","):
                return False
            level.wants = "value"
            return wanted == "colon" or self._next_item(token.end())
        if token.lastgroup == "mark":
            value_wanted = wanted == "value" or not keyed
            return value_wanted and said in "{[" and self._enter(said, token.end())
        content = _unquote(said) if token.lastgroup == "text" else said
        if keyed and wanted == "item":
            level.key, level.wants = content.strip().lower(), "colon"
        else:
            self._put(content if token.lastgroup == "text" else self._plain(said))
        return True

    def _plain(self, said: str) -> object:
        """Return the value of a word without quotes, or None if the value is not used.

        ``_OTHER`` stands for an invalid value of ``refused``.
        """
        key, word = self._open[-1].key, said.lower()
        if key == _CHANGE and (number := read_change(said)) is not None:
            return number
        unused = _OTHER if key == _REFUSED and word not in _NULL else None
        return _PLAIN.get(word, unused)

    def _put(self, value: object) -> None:
        """Store a complete value.

        Strings are stored unchanged. Other values matter only as truth values, numbers of changes,
        and objects in lists.
        """
        level = self._open[-1]
        if level.values is not None:
            level.values[level.key] = value
        elif isinstance(value, dict):
            level.objects.append(value)
        level.size += 1
        level.wants = "comma"

    def _leave(self) -> bool:
        level = self._open.pop()
        if level.values is not None:
            self.found.append(level.values)
        if self._open:
            of_objects = level.size == len(level.objects)
            inner = level.objects if of_objects else _OTHER
            self._put(inner if level.values is None else level.values)
        return True

    def _cut_off(self) -> bool:
        """Close all levels at the end of the text or fence.

        Returns False if more than closing brackets is missing.
        """
        if self._open[-1].wants not in {"item", "comma"}:
            return False
        while self._open:
            self._leave()
        return True


def _unquote(quoted: str) -> str:
    body = quoted[1:-1]
    if quoted[0] != '"':
        body = re.sub(r'(\\.)|"', lambda m: m[1] or r"\"", body, flags=re.DOTALL)
    known = _ESCAPE.sub(lambda m: {None: r"\\", "'": "'"}.get(m[1], m[0]), body)
    text: str = _DECODER.decode(f'"{known}"')
    return text


def _paired_lines(text: str) -> Iterator[_Said]:
    """Yield pairs of adjacent lines with a machine and a command; empty lines are ignored.

    Each line belongs to only one pair. If the text ends after a machine, the command before that
    machine does not belong to it.
    """
    lines = text.splitlines(keepends=True)
    ends = accumulate(map(len, lines))
    placed = [
        (_LINE.fullmatch(line.rstrip("\r\n")), end - len(line), end)
        for line, end in zip(lines, ends, strict=True)
        if line.strip()
    ]
    for given, group in groupby(placed, lambda one: bool(one[0])):
        run = [
            ({one[1].lower(): _bare(one[2])}, begin, end)
            for one, begin, end in group
            if given and one
        ]
        if len(run) % 2 and "command" in run[0][0]:  # the machine of the first command is unknown
            continue
        for (first, begin, _), (second, _, end) in zip(run[::2], run[1::2], strict=False):
            found = first | second
            if (
                found.keys() == _KEYS
                and _NAME.fullmatch(found["machine"])
                and _is_command(found["command"])
                # The next line might continue the command.
                and not ("command" in second and command_line.is_rest(text, _begin(text, end)))
            ):
                kept = is_kept(found["command"], text[begin:end], bare=True)
                yield _Said(found, begin, end, kept)


def _begin(text: str, place: int) -> int:
    """Return the position after the Markdown quote marks of the next non-empty line."""
    blank = _BLANK.match(text, place)
    assert blank is not None
    return blank.end()


def _is_command(line: str) -> bool:
    """Return whether a line is a complete command rather than prose about commands."""
    return not line.startswith(("`", "#")) and line != "" and not command_line.lacks(line)


def _bare(value: str) -> str:
    """Return a value without quotes or backticks that enclose the whole value."""
    value = value.strip()
    quote = value[:1]
    whole = quote in {'"', "'", "`"} and value.find(quote, 1) == len(value) - 1 > 0
    return value[1:-1] if whole else value
