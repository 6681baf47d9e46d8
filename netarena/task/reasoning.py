"""Thoughts in replies: text that a model writes to itself before its answer.

A thought ends at a closing marker, such as ``</think>`` (``netarena.task.reasoning_marker`` has
the table). Text
before the last closing marker is not read, whether or not the thought was opened: templates of
prompts open thoughts unseen. Markers inside the program or command that counts are part of it. So
the program must be known to find the thoughts, and the other way round: ``read_answer`` looks for
the program in a shorter and shorter end of the reply until the two fit. A thought that is opened
and not closed holds nothing that counts.
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
#: characters of the longest marker, and blanks that one may hold
_MAX_MARKER, _MAX_BLANKS = 128, 48
_TAG = rf"(?i:(?:{_NAMES})\s{{0,{_MAX_BLANKS}}}+>)"
_LITERALS = tuple(pair.opening for pair in reasoning_marker.PAIRS if pair.opens)
#: markers that count wherever they stand; the others count in pairs
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
#: the beginning of each of these is a word that texts without such markers lack
_PAIRED_HINT = re.compile("|".join(re.escape(pair.opening) for pair, _, _ in _PAIRED))
_BLANK = re.compile(r"\s*+")
#: how often what counts is looked for in one reply: so often at least, so often at most, and in
#: between as long as no more characters are read
_LEAST_TRIES, _MOST_TRIES, _MOST_CHARS = 6, 32, 2**19
#: markers at the end of an answer of unknown form that are looked at
_MAX_LOOKS = 64
#: the beginning of an opening marker whose end has not arrived yet
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
#: as k8s reads them: behind a word, in a list or a quotation too
_FENCE = re.compile(r"`{3,}+|^[ \t>]*+(~{3,}+)", re.MULTILINE)
#: in one line; an apostrophe within a word opens none
_QUOTED = re.compile(r"\"[^\"\n]*+\"|(?<!\w)'[^'\n]*+'|(?<!`)`[^`\n]++`(?!`)")


@dataclass(frozen=True)
class Found(Generic[T]):
    """What counts of a reply, or would count, were it not ``refused`` for a reason.

    ``start`` and ``end`` are its place in the reply. ``whole`` says that a marker between them
    stands in a text or comment of it, so that it ends no thought.
    """

    value: T
    start: int
    end: int
    whole: bool = True
    refused: str = ""


def read_answer(reply: str, find: Callable[[int, int], Found[T]]) -> T:
    """What counts of ``reply`` outside of its thoughts.

    ``find(start, end)`` looks at that part of the reply alone; it raises ReplyRefused where
    nothing counts, and so does this.
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
            # not at once to the last one, which may stand inside of what counts
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
            why = f"{why}; what stands before the end of a thought is not read"
        raise ReplyRefused(why)
    raise ReplyRefused(
        "the reply mixes thoughts and answers so that none can be told from the other"
    )


def ends_of(text: str) -> list[tuple[int, int]]:
    """Places of the markers that end a thought."""
    return _marks(text)[1]


def _marks(text: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Places of the markers that open a thought, and of those that end one."""
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
    """Place where the text ends, without markers that end an answer."""
    end = len(text)
    while True:
        bare = _last_end(text, end)
        last = next((one for one in reasoning_marker.ENDS if text.endswith(one, 0, bare)), None)
        if last is None:
            return end
        end = bare - len(last)


def is_kept(command: str, part: str, *, bare: bool = False) -> bool:
    """Whether each marker of ``part`` of a reply is in the ``command`` that it says, in a text.

    What bash would take for anything but a text is none of a command: ``</think>`` asks for a file.
    Nothing says where a ``bare`` command ends but its line, so that comments are none of it, nor
    what an apostrophe or a quote of an earlier line opens: there the thought ends.
    """
    marks = ends_of(command)
    if not marks or len(marks) < len(ends_of(part)):
        return False
    lines = command_line.read_lines(command)
    texts = sorted(
        text for line in lines for text in (_delimited(command, line) if bare else line.texts)
    )
    #: how far the texts reach that begin so far or before
    reach = list(accumulate((end for _, end in texts), max))
    numbers = [bisect_right(texts, (begin, len(command))) for begin, _ in marks]
    return all(
        number and reach[number - 1] >= end for number, (_, end) in zip(numbers, marks, strict=True)
    )


def _delimited(command: str, line: command_line.Line) -> Iterator[tuple[int, int]]:
    """Here-documents, and quotes within one line that no word runs into."""
    documents = {begin for begin, _ in line.documents}
    comments = set(line.comments)
    for begin, end in line.texts:
        loose = "\n" in command[begin:end] or command[max(0, begin - 1) : begin].isalnum()
        if begin in documents or ((begin, end) not in comments and not loose):
            yield begin, end


def drop_thoughts(answer: str) -> str:
    """An answer of whatever form without the thoughts that can be told without knowing its form.

    Those are the ones that it begins with, and what stands before a marker that is neither in a
    closed code block nor in quotes within its line. Empty where it is nothing but a thought.
    """
    answer = answer[: _end(answer)]
    opened, closed = _marks(answer)
    begins = dict(opened)
    start = _skip_leading(answer, 0, begins, closed)
    if _blank_end(answer, start) in begins:
        return ""
    held = sorted([*_blocks(answer, start), *(m.span() for m in _QUOTED.finditer(answer, start))])
    #: how far they reach that begin so far or before
    reach = [0, *accumulate((end for _, end in held), max)]
    for begin, end in reversed(closed[-_MAX_LOOKS:]):
        if begin < start:
            break
        if end > reach[bisect_right(held, (begin, 0))]:
            return answer[end:]
    return answer[start:]


def _blocks(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Where the code blocks are that are closed, those of one line too."""
    opened: re.Match[str] | None = None
    run = ""
    for fence in _FENCE.finditer(text, start):
        mark = fence[1] or fence[0]
        if opened is None:
            opened, run = fence, mark
        elif mark[0] == run[0] and len(mark) >= len(run):
            # a block ends alone in its line, or glued to the last one; where a word follows in
            # another line, one of its kind begins in it
            alone = not text[fence.end() : fence.end() + 1].strip()
            if alone or text.find("\n", opened.end(), fence.start()) < 0:
                yield opened.start(), fence.end()
                opened = None


class Sieve:
    """Passes on an answer that comes in pieces, but for thoughts that it begins with."""

    def __init__(self) -> None:
        #: what may be the beginning of a marker
        self._held = ""
        #: what stands before it
        self._blanks: list[str] = []
        self._thinking = False
        self._passing = False

    def take(self, piece: str) -> str:
        """The next piece; what is known of the answer by it."""
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
    """Place where the text goes on after closed thoughts that it begins with."""
    while (place := _blank_end(text, start)) in begins:
        number = bisect_left(closed, (place, begins[place]))
        if number == len(closed):
            break
        start = closed[number][1]
    return start


def _last_end(text: str, end: int) -> int:
    """``end`` without the blanks before it."""
    while end and text[end - 1].isspace():
        end -= 1
    return end


def _blank_end(text: str, start: int = 0) -> int:
    blank = _BLANK.match(text, start)
    assert blank is not None
    return blank.end()


def _is_within(found: Found[T] | None, mark: tuple[int, int]) -> bool:
    return found is not None and found.whole and found.start <= mark[0] and mark[1] <= found.end
