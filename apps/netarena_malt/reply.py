"""Parser of replies: finds the agent's program in the text.

A reply must contain a Python code block that defines ``process_graph``. The last such block counts,
including its helpers and imports. Fences follow CommonMark: three or more backticks or tildes,
closed by a line with at least as many of them. The parser also accepts these variants, which
language models write:

- an opening fence after a word (``Action: ```python``)
- a block inside another block
- a docstring that contains fences
- a block that is never closed
- a last fence on the same line as code
- a block in a quotation (``> ```python``)

Reasoning is ignored (``netarena.task.reasoning``). The parser's time is linear in the length of the
reply.
"""

from __future__ import annotations

import ast
import re
import textwrap
import threading
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from netarena.sdk import Found, ReplyRefused, ends_of, read_answer

#: Maximum number of characters of a program.
MAX_CODE_CHARS = 100_000
#: Maximum number of blocks, and of possible ends of one block, that are tried.
_MAX_TRIES = 8

_PYTHON_TAGS = ("python3", "python", "py")
_DEFINITION = re.compile(
    r"[ \t]*(?:(?:async[ \t]+)?def[ \t]+process_graph\b|process_graph[ \t]*(?::[^=]*)?=(?!=))"
)
#: Mark at the start of a quoted line.
_QUOTED = re.compile(r"[ \t]{0,3}>[ \t]?")
_filters = threading.Lock()
_FORM = "send one Python code block, from ```python to ```, that defines process_graph(graph_data)"


class _Fence(NamedTuple):
    line: int
    mark: str
    length: int


class _Block(NamedTuple):
    """The lines of a code block: from ``start`` up to, but not including, ``end``."""

    start: int
    end: int


class _Program(NamedTuple):
    code: str
    #: The number of the line after the program's last line.
    end: int
    #: Whether the program is valid Python.
    valid: bool


def extract_code(reply: str) -> str:
    """Return the program of a reply: the last code block that defines ``process_graph``.

    A block of invalid Python is also returned if it looks like a definition. Running the block then
    raises an error that names the line. A reply without fences counts if the whole reply is valid
    Python. Raises ReplyRefused with a reason for the agent.
    """
    try:
        reply.encode()
    except UnicodeEncodeError:
        raise ReplyRefused("the reply is not valid Unicode text") from None
    text = reply.replace("\r\n", "\n").replace("\r", "\n")
    return read_answer(text, lambda start, end: _find(text, start, end))


def _find(text: str, start: int, end: int) -> Found[str]:
    """Return the program in a part of the reply, and its position. Raises ReplyRefused."""
    given = lines = text[start:end].split("\n")
    definitions = _find_definitions(lines)
    if not definitions:
        lines = [_QUOTED.sub("", line, count=1) for line in lines]
        definitions = _find_definitions(lines)
    if not definitions:
        raise ReplyRefused(f"the reply does not define process_graph: {_FORM}")
    blocks, closers = _scan(lines)
    tries = 0
    for block in sorted(blocks, reverse=True):
        first = bisect_left(definitions, block.start)
        if first == len(definitions) or definitions[first] >= block.end:
            continue
        program = _read(lines, block, closers)
        if program is not None:
            begin = start + sum(len(line) + 1 for line in given[: block.start])
            size = sum(len(line) + 1 for line in given[block.start : program.end])
            # If the program is invalid Python, its string literals are unknown.
            return Found(program.code, begin, min(begin + size, end), whole=program.valid)
        tries += 1
        if tries == _MAX_TRIES:
            break
    bare = "\n".join(lines)
    tree = _parse(bare) if len(bare) <= MAX_CODE_CHARS else None
    if tree is not None and _binds(tree.body):
        return Found(bare, start, end, whole=_is_kept(bare, tree))
    raise ReplyRefused(f"no code block of the reply defines process_graph at top level: {_FORM}")


def _find_definitions(lines: list[str]) -> list[int]:
    return [number for number, line in enumerate(lines) if _DEFINITION.match(line)]


def _scan(lines: list[str]) -> tuple[list[_Block], list[int]]:
    """Return all code blocks, and the numbers of the lines that could close a block."""
    blocks: list[_Block] = []
    closers: list[int] = []
    stack: list[_Fence] = []
    for number, line in enumerate(lines):
        if "```" not in line and "~~~" not in line:
            continue
        fence, closing = _fence(line, number)
        if fence is None:
            continue
        if closing:
            closers.append(number)
        if not stack:
            stack.append(fence)
        elif closing and fence.mark == stack[-1].mark and fence.length >= stack[-1].length:
            blocks.append(_Block(stack.pop().line + 1, number))
        elif not closing and _is_python(line):
            # The block is in a wrapper, in a docstring, or after a block that was never closed.
            stack.append(fence)
    blocks += [_Block(fence.line + 1, len(lines)) for fence in stack]
    return blocks, closers


def _fence(line: str, number: int) -> tuple[_Fence | None, bool]:
    """Return the fence on this line, or None, and whether the fence could close a block."""
    text = line.strip(" \t")
    for mark in "`~":
        after = text.lstrip(mark)
        length = len(text) - len(after)
        if length >= 3:
            if mark in after:  # CommonMark treats this line as inline code, not as a fence.
                return None, False
            return _Fence(number, mark, length), not after
        if _is_python(line):
            before = _untag(text)
            length = len(before) - len(before.rstrip(mark))
            if length >= 3:
                return _Fence(number, mark, length), False
    return None, False


def _is_python(line: str) -> bool:
    return line.rstrip().lower().endswith(_PYTHON_TAGS)


def _untag(text: str) -> str:
    """Return ``text`` without the language tag at its end."""
    for tag in _PYTHON_TAGS:
        if text.lower().endswith(tag):
            return text[: -len(tag)].rstrip()
    return text


def _read(lines: list[str], block: _Block, closers: list[int]) -> _Program | None:
    """Return the program in ``block``, or None if the block does not define ``process_graph``.

    Raises ReplyRefused for a program that is too long.
    """
    shortest: _Program | None = None
    for end in _ends(block, closers):
        code = "\n".join(lines[block.start : end])
        if len(code) > MAX_CODE_CHARS:
            break
        for reading in _readings(code, last=end == len(lines)):
            tree = _parse(reading)
            if tree is not None:
                if _binds(tree.body):
                    return _Program(reading, end, valid=True)
                if shortest is None:
                    return None
        shortest = shortest or _Program(code, end, valid=False)
    if shortest is None:
        raise ReplyRefused(
            f"the program that defines process_graph is longer than {MAX_CODE_CHARS} characters"
        )
    return shortest


def _readings(code: str, *, last: bool) -> Iterator[str]:
    """Yield the possible programs in these lines. ``last`` is true if the lines end the reply."""
    yield code
    if code[:1] in {" ", "\t"}:
        yield textwrap.dedent(code)
    if last:
        bare = code.rstrip()
        for mark in "`~":
            if bare.endswith(3 * mark):
                yield textwrap.dedent(bare.rstrip(mark).rstrip())


def _ends(block: _Block, closers: list[int]) -> Iterator[int]:
    """Yield possible ends of the block: its closing fence, and later fences in case earlier fences
    are in docstrings."""
    yield block.end
    after = bisect_left(closers, block.end + 1)
    yield from closers[after : after + _MAX_TRIES]


def _is_kept(bare: str, tree: ast.Module) -> bool:
    """Return whether each reasoning marker in an unfenced program is inside a string on a single
    line.

    A program without fences has no clear boundaries. A marker in a comment, or in a string that
    began on an earlier line, is therefore treated as the end of reasoning.
    """
    if not (count := len(ends_of(bare))):
        return True
    # The parser counts in bytes; in Latin-1 each byte is one character.
    raw = bare.encode().decode("latin-1")
    lines = [0, *accumulate(len(line) + 1 for line in raw.split("\n"))]
    texts = sorted(
        (lines[node.lineno - 1] + node.col_offset, lines[node.lineno - 1] + node.end_col_offset)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant | ast.JoinedStr)
        and node.lineno == node.end_lineno
        and node.end_col_offset is not None
    )
    #: For each n, the end of the literal that extends furthest among the first n string literals.
    reach = [0, *accumulate((end for _, end in texts), max)]
    marks = ends_of(raw)
    return len(marks) == count and all(
        end < reach[bisect_right(texts, (begin, 0))] for begin, end in marks
    )


def _parse(code: str) -> ast.Module | None:
    """Return the syntax tree, or None for invalid Python or nesting that is too deep for Python's
    parser."""
    # The lock is needed because warning filters are global and replies are parsed in several
    # threads.
    with _filters, warnings.catch_warnings():
        # Warnings about invalid escape sequences are irrelevant here.
        warnings.simplefilter("ignore")
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _binds(statements: list[ast.stmt]) -> bool:
    """Return whether running these statements would bind the name ``process_graph``."""
    pending = list(statements)
    while pending:
        statement = pending.pop()
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if statement.name == "process_graph":
                    return True
            case ast.Assign():
                if any(_is_name(target) for target in statement.targets):
                    return True
            case ast.AnnAssign(value=value):
                if value is not None and _is_name(statement.target):
                    return True
            case ast.ClassDef():
                pass
            case _:
                pending += [
                    child
                    for child in ast.walk(statement)
                    if isinstance(child, ast.stmt) and child is not statement
                ]
    return False


def _is_name(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id == "process_graph"
