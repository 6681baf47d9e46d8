"""Prompt styles and the renderer that combines an application's parts into a prompt.

Each prompt is complete: rules, examples (if the style has any), the task, the history and, if the
last reply was refused, the reason.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import accumulate

from netarena.config import PromptStyle
from netarena.model import Step


@dataclass(frozen=True)
class Example:
    """A worked example in a prompt: a task that is not in any query, the reasoning, and a reply."""

    task: str
    thought: str
    reply: str


@dataclass(frozen=True)
class PromptParts:
    """Parts of a prompt that an application writes; empty parts are left out."""

    #: The agent's role, a description of the world, and forbidden actions.
    rules: str
    #: Required form of a reply.
    reply_format: str
    #: The current request.
    task: str
    #: The part of the state that the agent is allowed to see.
    situation: str = ""
    #: Earlier turns, each with the reply and its result, oldest first.
    history: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True)
class CommandLimits:
    """Limits of a command and of its output, for the rules in prompts."""

    timeout_s: int
    #: Maximum number of characters of the output of one turn, and of the whole history.
    output_chars: int
    history_chars: int


_METHOD = {
    PromptStyle.ZEROSHOT_BASE: "",
    PromptStyle.FEWSHOT_BASE: "",
    PromptStyle.ZEROSHOT_COT: (
        "Think step by step before you answer. Write your reasoning first, then the reply in the "
        "form given above."
    ),
    PromptStyle.FEWSHOT_COT: (
        "Think step by step as the examples do. Write your reasoning first, then the reply in the "
        "form given above."
    ),
    PromptStyle.REACT: (
        "Answer in two parts. Start with a line 'Thought:' that says what you know, what is still "
        "unknown and what you do next. Then write a line 'Action:', followed by the reply in the "
        "form given above. The next turn, if there is one, shows the result of your action."
    ),
}


#: Heading of the section on the form of a reply.
_FORM = "Form of the reply"


def render(style: PromptStyle, parts: PromptParts, *, refused: str | None = None) -> str:
    """Return a prompt; ``refused`` is the reason why the last reply was not executed."""
    with_thought = style is PromptStyle.FEWSHOT_COT
    sections = [("", parts.rules), (_FORM, parts.reply_format)]
    if style.has_examples:
        sections += [
            (f"Example {number}", _render_example(example, with_thought=with_thought))
            for number, example in enumerate(parts.examples, start=1)
        ]
    sections += [("Method", _METHOD[style])]
    sections += [("Earlier turns", "\n\n".join(parts.history))]
    if refused is not None:
        sections += [("Your last reply was not executed", refused)]
    sections += [("Situation", parts.situation), ("Task", parts.task)]
    return "\n\n".join(
        f"## {title}\n{body.strip()}" if title else body.strip()
        for title, body in sections
        if body.strip()
    )


def without_form(prompt: str) -> str:
    """Return ``prompt`` without the section on the form of a reply, for users at a terminal."""
    before, heading, rest = prompt.partition(f"## {_FORM}\n")
    _, mark, after = rest.partition("\n\n## ")
    return f"{before}## {after}" if heading and mark else prompt


def news(before: str, now: str) -> Iterator[str]:
    """Yield the lines of the prompt ``now`` that are not in the previous prompt ``before``."""
    old, new = before.splitlines(), now.splitlines()
    for kind, _, _, start, end in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
        if kind in {"insert", "replace"}:
            yield from new[start:end]


def _render_example(example: Example, *, with_thought: bool) -> str:
    lines = [f"Task: {example.task}"]
    if with_thought:
        lines.append(f"Reasoning: {example.thought}")
    return "\n".join([*lines, "Reply:", example.reply])


#: A line ``{{ NAME }}`` in a text; the text of that name replaces the line.
_INCLUDE = re.compile(r"^\{\{ (\w+) \}\}$", re.MULTILINE)
#: File names of the examples of a reactive application: an observation and a repair.
_EXAMPLES = ("example_look", "example_repair")


@cache
def read_text(package: str, name: str) -> str:
    """Return the text ``prompts/NAME.txt`` of an application's package.

    A line ``{{ OTHER }}`` is replaced with the text ``prompts/OTHER.txt``.
    """
    text = (files(package) / "prompts" / f"{name}.txt").read_text(encoding="utf-8").strip()
    return _INCLUDE.sub(lambda found: read_text(package, found[1]), text)


def read_examples(package: str, names: Iterable[str] = _EXAMPLES) -> tuple[Example, ...]:
    """Return worked examples, one per file: task, reasoning and reply, separated by ``---``."""
    found = []
    for name in names:
        task, thought, reply = (part.strip() for part in read_text(package, name).split("\n---\n"))
        found.append(Example(task=task, thought=thought, reply=reply))
    return tuple(found)


#: Minimum number of characters per history entry. If the limit leaves fewer, ``bound`` omits whole
#: entries.
_MIN_ENTRY_CHARS = 300


#: Maximum number of characters of the command and of the output in one entry of a history.
MAX_COMMAND_CHARS = 2_000
MAX_OUTPUT_CHARS = 8_000
#: Maximum number of characters of the output in an entry, in tickets about a large world. The
#: limit is low, so that an agent cannot read the whole world in a few turns.
MAX_TICKET_OUTPUT_CHARS = 4_000
#: Maximum number of characters of the output of one command in a record.
MAX_LOGGED_CHARS = 20_000
#: Maximum number of lines about the unsafe effects of one turn, and of characters in each line.
MAX_HARM_LINES, MAX_LINE_CHARS = 20, 500


#: Line between the move and the output in a history entry.
_OUTPUT = "\nOutput:\n"


def tell_turn(
    number: int,
    step: Step,
    keys: Sequence[str],
    outcome: str = "",
    max_output_chars: int = MAX_OUTPUT_CHARS,
) -> str:
    """Return a turn as a history entry: the move's ``keys``, the output, and ``outcome``.

    If the move is a text, the text is the value of the first key. ``number`` starts at 1.
    """
    move = {keys[0]: step.move} if isinstance(step.move, str) else step.move
    if not isinstance(move, dict):
        return f"Turn {number}: {step.refused or 'there was no reply'}"
    return "\n".join(
        [
            f"Turn {number}",
            *(f"{key.capitalize()}: {clip(str(move[key]), MAX_COMMAND_CHARS)}" for key in keys),
            _OUTPUT.strip(),
            cut(step.output.rstrip("\n"), max_output_chars) or "(none)",
            *([outcome] if outcome else []),
        ]
    )


def tell_turns(
    steps: Sequence[Step],
    keys: Sequence[str],
    limits: CommandLimits,
    outcome: Callable[[Step], str] = lambda _: "",
) -> tuple[str, ...]:
    """Return the history of an episode within ``limits``.

    ``outcome`` returns the text about the result of a turn.
    """
    turns = [
        tell_turn(number, step, keys, outcome(step), limits.output_chars)
        for number, step in enumerate(steps, start=1)
    ]
    return bound(turns, limits.history_chars)


def tell_harm(lines: Iterable[str], max_lines: int = MAX_HARM_LINES) -> str:
    """Return the unsafe effects of a turn as a Markdown list; "" if there are none."""
    told = [clip(line, MAX_LINE_CHARS) for line in lines]
    if not told:
        return ""
    rest = len(told) - max_lines
    more = [f"{rest} more"] if rest > 0 else []
    return "\n".join(
        ["Not safe in this turn:", *(f"- {line}" for line in [*told[:max_lines], *more])]
    )


def clip(text: str, max_chars: int) -> str:
    """Return ``text`` with a note in place of its middle if it exceeds ``max_chars``."""
    if len(text) <= max_chars:
        return text
    head = -(-max_chars // 2)
    tail = max_chars - head
    cut = len(text) - head - tail
    return f"{text[:head]}\n[… {cut} characters left out …]\n{text[len(text) - tail :]}"


def cut(text: str, max_chars: int) -> str:
    """Return about ``max_chars`` characters of ``text``: whole lines of its beginning and its end.

    A note between beginning and end contains the number of omitted lines, including lines that an
    earlier cut omitted from ``text``. If omitting a long line would leave more than half of
    ``max_chars`` unused, only the middle of the line is omitted.
    """
    if len(text) <= max_chars:
        return text
    lines = text.split("\n")
    sizes = [len(line) + 1 for line in lines]
    head = _count(sizes, -(-max_chars // 2))
    rest = max_chars - sum(sizes[:head])
    tail = _count(reversed(sizes[head:]), rest)
    rest -= sum(sizes[len(sizes) - tail :])
    middle = lines[head : len(lines) - tail]
    # show a part of a long line if otherwise more than half of the limit stays unused
    shown = [clip(middle.pop(0), rest)] if rest > max_chars // 2 else []
    number = max(1, sum(map(_count_lines, middle)))
    note = [f"[… {number} line{'s' * (number != 1)} left out …]"] if middle else []
    return "\n".join([*lines[:head], *shown, *note, *lines[len(lines) - tail :]])


#: Note of an earlier cut: the number of omitted lines, or of omitted characters in a line. The
#: sandbox changes such lines in a command's output (``netarena.sandbox.shell.Kept``).
_NOTE = re.compile(r"\[… ([0-9]{1,12}) (lines?|characters) left out …\]")


def _count_lines(line: str) -> int:
    """Return the number of lines of the uncut output that a line of a cut output represents.

    If the middle of a line is omitted, the line becomes three lines: beginning, note and end. The
    note counts as -1, so that the three lines count as one.
    """
    note = _NOTE.fullmatch(line)
    if note is None:
        return 1
    return -1 if note[2] == "characters" else int(note[1])


def _count(sizes: Iterable[int], room: int) -> int:
    """Return the largest n for which the first n ``sizes`` have a sum of at most ``room``."""
    return sum(total <= room for total in accumulate(sizes))


#: Maximum number of entries that ``bound`` keeps from the newest entry with an output to the last
#: entry.
_MOST_AFTER = 6


def bound(history: Sequence[str], max_chars: int) -> tuple[str, ...]:
    """Return the entries, shortened to about ``max_chars`` characters in total.

    The newest entry with an output and the last entry do not change. The middles of the longest
    older entries are removed until all entries fit. If there are too many entries, a line with the
    number of omitted turns replaces the turns in the middle.
    """
    if not history:
        return ()
    last = max((place for place, one in enumerate(history) if _OUTPUT in one), default=-1)
    entries, newest = [*history[:last]], [*history[last:]]
    if (more := len(newest) - _MOST_AFTER) > 0:
        newest[1 : more + 2] = [f"[… {more + 1} turns left out …]"]
    room = max(max_chars - sum(map(len, newest)), max_chars // 4)
    most = max(2, room // _MIN_ENTRY_CHARS)
    if len(entries) > most:
        head = most // 2
        tail = most - head
        left_out = f"[… {len(entries) - most} turns left out …]"
        entries[head : len(entries) - tail] = [left_out]
    level = _level([len(entry) for entry in entries], room)
    return (*(_shorten(entry, level) for entry in entries), *newest)


def _shorten(entry: str, max_chars: int) -> str:
    """Return an entry of at most about ``max_chars`` characters.

    The move is cut to half of this limit, and the output to the rest.
    """
    if len(entry) <= max_chars:
        return entry
    move, mark, output = entry.partition(_OUTPUT)
    if not mark:
        return cut(entry, max_chars)
    move = clip(move, max_chars // 2)
    return move + mark + cut(output, max_chars - len(move))


def _level(sizes: Sequence[int], total: int) -> int:
    """Return the largest limit per entry for which entries of ``sizes`` fit into ``total``."""
    rest = total
    for place, size in enumerate(sorted(sizes)):
        share = rest // (len(sizes) - place)
        if size > share:
            return share
        rest -= size
    return max(sizes, default=0)
