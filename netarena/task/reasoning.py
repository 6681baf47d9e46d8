"""Removal of thoughts (the reasoning that a model writes before its answer) from replies.

A thought ends at a closing marker, such as ``</think>`` (``netarena.task.reasoning_marker`` has
the table). Text before the last closing marker is ignored, even if no opening marker precedes it,
because some prompt templates already contain the opening marker. Text after an opening marker that
is never closed is ignored too.

A marker inside the program or command of the answer is part of the answer. Finding the thoughts
therefore requires the answer, and finding the answer requires the thoughts. ``read_answer`` looks
for the answer in the end of the reply, and shortens this end until no marker in it contradicts the
answer.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

from netarena.errors import ReplyRefused
from netarena.task import command_line, reasoning_marker

T = TypeVar("T")

_NAMES = "|".join(reasoning_marker.TAGS)
#: Maximum number of characters of a marker, and of blanks in a tag.
_MAX_MARKER, _MAX_BLANKS = 128, 48
_TAG = rf"(?i:(?:{_NAMES})\s{{0,{_MAX_BLANKS}}}+>)"
_LITERALS = tuple(pair.opening for pair in reasoning_marker.PAIRS if pair.opens)
#: Opening markers that start a thought even without a closing marker. Other opening markers count
#: only if a closing marker follows.
_OPENING = re.compile("|".join([f"<{_TAG}", *map(re.escape, _LITERALS)]))
_CLOSING = re.compile(
    "|".join(
        [
            f"</{_TAG}",
            *(pair.closing for pair in reasoning_marker.PAIRS if pair.closes),
            *reasoning_marker.ANSWERS,
        ]
    )
)
_PAIRED = tuple(
    (pair, re.compile(re.escape(pair.opening)), re.compile(pair.closing))
    for pair in reasoning_marker.PAIRS
    if not (pair.opens and pair.closes)
)
#: Quick check: a text without a match has no paired markers.
_PAIRED_HINT = re.compile("|".join(re.escape(pair.opening) for pair, _, _ in _PAIRED))
_BLANK = re.compile(r"\s*+")
#: Limits on attempts to find the answer in one reply: minimum and maximum number of attempts, and
#: number of characters that all attempts together may read. The minimum number of attempts is
#: always allowed.
_LEAST_TRIES, _MOST_TRIES, _MOST_CHARS = 6, 32, 2**19
#: Maximum number of closing markers that ``drop_thoughts`` examines, starting with the last one.
_MAX_LOOKS = 64
#: Matches an incomplete opening marker at the end of a text; its rest may still arrive.
_GROWING = re.compile(
    "(?:"
    + "|".join(
        [
            rf"(?i:<(?:{_NAMES})\s{{0,{_MAX_BLANKS}}}+)",
            *(
                f"(?i:{re.escape(f'<{name}'[:i])})"
                for name in reasoning_marker.TAGS
                for i in range(len(name) + 1)
            ),
            *(re.escape(text[:i]) for text in _LITERALS for i in range(1, len(text))),
        ]
    )
    + r")?\Z"
)
#: Code fences of Markdown, including fences after a word, in a list or in a quotation.
_FENCE = re.compile(r"`{3,}+|^[ \t>]*+(~{3,}+)", re.MULTILINE)
#: Quoted text within one line; an apostrophe within a word is not a quote.
_QUOTED = re.compile(r"\"[^\"\n]*+\"|(?<!\w)'[^'\n]*+'|(?<!`)`[^`\n]++`(?!`)")


@dataclass(frozen=True)
class Found(Generic[T]):
    """The answer in a reply.

    ``refused`` is the reason why the answer is refused, or empty. ``start`` and ``end`` are the
    answer's position in the reply. If ``whole``, markers within this range are part of the answer
    and do not end a thought.
    """

    value: T
    start: int
    end: int
    whole: bool = True
    refused: str = ""


def read_answer(reply: str, find: Callable[[int, int], Found[T]]) -> T:
    """Return the answer in ``reply``, ignoring thoughts.

    ``find(start, end)`` looks for an answer only in this part of the reply, and raises ReplyRefused
    if the part contains no answer. Raises ReplyRefused if the reply contains no answer.
    """
    opened, closed = _marks(reply)
    begins = dict(opened)
    start, end = 0, _end(reply)
    open_end = False
    tries = max(_LEAST_TRIES, min(_MOST_TRIES, _MOST_CHARS // (len(reply) + 1)))
    for left in reversed(range(tries)):
        start = _skip_leading(reply, start, begins, closed)
        found: Found[T] | None = None
        try:
            found = find(start, end)
            why = found.refused
        except ReplyRefused as refused:
            why = str(refused)
        ahead = closed[bisect_left(closed, (start, 0)) : bisect_left(closed, (end, 0))]
        outside = [mark for mark in ahead if not _is_within(found, mark)]
        if outside:
            # Do not skip to the last marker directly, because it may be inside the answer.
            start = outside[0 if left > 1 else -1][1]
            continue
        begun = bisect_left(opened, (start, 0))
        if begun < len(opened) and opened[begun][0] < (end if found is None else found.start):
            mark = opened[begun]
            within = [one for one in ahead if one > mark]
            open_end = not within
            start, end = (start, mark[0]) if open_end else (within[0][1], end)
            continue
        if found is not None and not why:
            return found.value
        if open_end:
            why = f"a thought is opened and never closed, and nothing in it is run; {why}"
        elif start:
            why = f"{why}; text before the end of the reasoning is not read"
        raise ReplyRefused(why)
    raise ReplyRefused("the reply mixes reasoning and answer, so the answer cannot be identified")


def ends_of(text: str) -> list[tuple[int, int]]:
    """Return the positions of the markers that end a thought."""
    return _marks(text)[1]


def _marks(text: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the positions of markers that open a thought, and of markers that end a thought."""
    opened = [mark.span() for mark in _OPENING.finditer(text)]
    closed = [mark.span() for mark in _CLOSING.finditer(text)]
    if _PAIRED_HINT.search(text) is None:
        return opened, closed
    begun, ended = set(opened), set(closed)
    for pair, opening, closing in _PAIRED:
        ends = [mark.span() for mark in closing.finditer(text)]
        for mark in opening.finditer(text):
            number = bisect_left(ends, mark.span())
            if number < len(ends):
                ended.add(ends[number])
                begun.add(mark.span())
            elif pair.opens:
                begun.add(mark.span())
    return sorted(begun), sorted(ended)


def _end(text: str) -> int:
    """Return the position at which the text ends, if trailing end-of-answer markers are ignored."""
    end = len(text)
    while True:
        bare = _last_end(text, end)
        last = next((one for one in reasoning_marker.ENDS if text.endswith(one, 0, bare)), None)
        if last is None:
            return end
        end = bare - len(last)


def is_kept(command: str, part: str, *, bare: bool = False) -> bool:
    """Return whether all markers in ``part`` of a reply are inside quoted texts of ``command``.

    ``command`` is the command in ``part``. A marker outside a quoted text ends a thought, because
    bash would read ``</think>`` as a redirection. A ``bare`` command has no delimiter except the
    end of its line. Markers in its comments, and in quotes that start after a letter or contain a
    line end, therefore end a thought too.
    """
    marks = ends_of(command)
    if not marks or len(marks) < len(ends_of(part)):
        return False
    lines = command_line.read_lines(command)
    texts = sorted(
        text for line in lines for text in (_delimited(command, line) if bare else line.texts)
    )
    #: For each text, the largest end position of this text and all texts before it.
    reach = list(accumulate((end for _, end in texts), max))
    numbers = [bisect_right(texts, (begin, len(command))) for begin, _ in marks]
    return all(
        number and reach[number - 1] >= end for number, (_, end) in zip(numbers, marks, strict=True)
    )


def _delimited(command: str, line: command_line.Line) -> Iterator[tuple[int, int]]:
    """Yield the positions of here-documents, and of one-line quotes that do not follow a letter."""
    documents = {begin for begin, _ in line.documents}
    comments = set(line.comments)
    for begin, end in line.texts:
        loose = "\n" in command[begin:end] or command[max(0, begin - 1) : begin].isalnum()
        if begin in documents or ((begin, end) not in comments and not loose):
            yield begin, end


def drop_thoughts(answer: str) -> str:
    """Return an answer of unknown form without the thoughts that can be recognised.

    This removes the thoughts at the start. It also removes all text before the last closing marker
    that is neither in a closed code block nor in quotes within its line. The result is empty if the
    answer is only a thought.
    """
    answer = answer[: _end(answer)]
    opened, closed = _marks(answer)
    begins = dict(opened)
    start = _skip_leading(answer, 0, begins, closed)
    if _blank_end(answer, start) in begins:
        return ""
    held = sorted([*_blocks(answer, start), *(m.span() for m in _QUOTED.finditer(answer, start))])
    #: For each block or quote, the largest end position of all blocks and quotes before it.
    reach = [0, *accumulate((end for _, end in held), max)]
    for begin, end in reversed(closed[-_MAX_LOOKS:]):
        if begin < start:
            break
        if end > reach[bisect_right(held, (begin, 0))]:
            return answer[end:]
    return answer[start:]


def _blocks(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the positions of closed code blocks, including those within one line."""
    opened: re.Match[str] | None = None
    run = ""
    for fence in _FENCE.finditer(text, start):
        mark = fence[1] or fence[0]
        if opened is None:
            opened, run = fence, mark
        elif mark[0] == run[0] and len(mark) >= len(run):
            # A closing fence has no text after it, except in a block of one line. On a later line,
            # a fence with a word after it starts another block inside this block.
            alone = not text[fence.end() : fence.end() + 1].strip()
            if alone or text.find("\n", opened.end(), fence.start()) < 0:
                yield opened.start(), fence.end()
                opened = None


class Sieve:
    """Removes the thoughts at the start of an answer that arrives in pieces."""

    def __init__(self) -> None:
        #: Text that may be the start of a marker.
        self._held = ""
        #: Blanks before ``_held`` that belong to the answer if no thought follows.
        self._blanks: list[str] = []
        self._thinking = False
        self._passing = False

    def take(self, piece: str) -> str:
        """Process the next piece; return the text of the answer that can be passed on now."""
        if self._passing:
            return piece
        text, place = self._held + piece, 0
        while True:
            if self._thinking:
                closing = _CLOSING.search(text, place)
                if closing is None:
                    self._held = text[max(place, len(text) - _MAX_MARKER) :]
                    return ""
                self._thinking, place = False, closing.end()
            begin = _blank_end(text, place)
            self._blanks.append(text[place:begin])
            if opening := _OPENING.match(text, begin):
                self._blanks.clear()
                self._thinking, place = True, opening.end()
                continue
            if begin == len(text) or _GROWING.match(text, begin):
                self._held = text[begin:]
                return ""
            self._passing = True
            return "".join([*self._blanks, text[begin:]])


def _skip_leading(
    text: str, start: int, begins: dict[int, int], closed: list[tuple[int, int]]
) -> int:
    """Return the end of the closed thoughts that begin at ``start``, or ``start``."""
    while (place := _blank_end(text, start)) in begins:
        number = bisect_left(closed, (place, begins[place]))
        if number == len(closed):
            break
        start = closed[number][1]
    return start


def _last_end(text: str, end: int) -> int:
    """Return the position after the last character of ``text[:end]`` that is not a blank."""
    while end and text[end - 1].isspace():
        end -= 1
    return end


def _blank_end(text: str, start: int = 0) -> int:
    blank = _BLANK.match(text, start)
    assert blank is not None
    return blank.end()


def _is_within(found: Found[T] | None, mark: tuple[int, int]) -> bool:
    return found is not None and found.whole and found.start <= mark[0] and mark[1] <= found.end
