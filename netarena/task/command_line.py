"""Parser that checks whether a bash command line is complete.

The parser also finds quotes, comments and here-documents.

The parser handles only quotes, escapes, comments, substitutions, parentheses, here-documents, and
operators that need a right side. Bash itself refuses some incomplete commands (a ``do`` without
``done``). This module detects incomplete commands that bash would run: a line that ends with a
backslash, or a here-document without an end. It also detects commands whose rest is on the next
line by mistake: a backslash followed by blanks, continuation marks of other shells, or a line that
starts with an option.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

#: Patterns of text without special characters: in double quotes, in ``${...}``, and elsewhere. The
#: key is the closing mark of the innermost construct.
_PLAIN = {
    '"': re.compile(r'[^\\"$`]++'),
    "}": re.compile(r"[^\\\"'$`}]++"),
    "": re.compile(r"[^\\\"'$`()#|&<\n]++"),
}
_SINGLE = re.compile(r"'[^']*+'")
_ANSI = re.compile(r"\$'[^'\\]*+(?:\\.[^'\\]*+)*+'", re.DOTALL)
_COMMENT = re.compile(r"#[^\n]*+")
#: Characters that may precede a comment. A ``)`` may also precede a comment, unless it closes a
#: substitution.
_BREAK = frozenset(" \t\n;|&(<>")
_DOCUMENT = re.compile(r"<<(-?)[ \t]*+((?:\\.|'[^'\n]*+'|\"[^\"\n]*+\"|[^\s;&|<>()'\"\\])++)")
_OPERATOR = re.compile(r"\|[|&]?|&&")
#: Arithmetic ``((...))``, in which ``<<`` shifts bits.
_SUM = re.compile(r"\(\((?:[^()\n'\"`\\]|\([^()\n'\"`\\]*+\))*+\)\)")
#: Matched after a backslash: blanks at the end of the line. Because of these blanks, the line does
#: not continue on the next line.
_LOOSE_END = re.compile(r"[ \t]++(?=\n|\Z)|[ \t]{2,}+(?=#)")
#: Matched after a backslash at the end of a line: an empty line (``_EMPTY``) or a comment
#: (``_COMMENTED``). The command ends there.
_EMPTY = re.compile(r"\n[^\S\n]*+(?:\n|\Z)")
_COMMENTED = re.compile(r"\n[ \t]*+#")
#: A line end after a backtick, which PowerShell treats as a line continuation.
_LINE_END = re.compile(r"[ \t]*+\n")
#: An option whose hyphens an editor has replaced with dashes. Bash reads such a word as an ordinary
#: argument.
_DASH = re.compile(r"[ \t][\u2010-\u2015\u2212]{1,2}[A-Za-z]")
#: The beginning of a continuation line: an option or an operator. Commands do not begin with these.
_REST = re.compile(r"\s*+(?:[-\u2010-\u2015\u2212]{1,2}[A-Za-z]|\|&?[ \t]|&&|\|\|)")

#: Prompts of shells: ``me@box:~$``, ``[me@box ~]$``, ``(env) $``. A superuser's prompt ends in
#: ``#``, but a ``#`` at the start of a line begins a comment.
_PLACE = r"[\w.@:~/\\-]"
_PROMPTS = (
    rf"{_PLACE}{{0,100}}[$%]",
    rf"\[{_PLACE}{{1,50}}[ ]{_PLACE}{{1,50}}\][$%#]",
    rf"(?:{_PLACE}{{0,50}}[@:~/]{_PLACE}{{0,50}}|/[ ]|[a-z]{{0,3}}sh-[\d.]{{1,9}})\#",
    r"PS[ ][A-Za-z]:\\[^>\n]{0,100}>",
    "[\u276f\u279c]",
)
_PROMPT = re.compile(rf"(?:\([\w.-]{{1,40}}\)[ \t])?+(?:{'|'.join(_PROMPTS)})[ \t]++")


@dataclass
class Line:
    """One logical line: the text that bash reads before it runs the commands in it.

    ``why`` names the missing part; it is empty if the line is complete. ``texts`` are the positions
    of quotes, comments and here-documents. ``comments`` are the positions of comments, and
    ``documents`` the positions of here-documents with their closing lines.
    """

    start: int
    end: int
    why: str = ""
    texts: list[tuple[int, int]] = field(default_factory=list)
    comments: list[tuple[int, int]] = field(default_factory=list)
    documents: list[tuple[int, int]] = field(default_factory=list)


def read_line(text: str, start: int = 0) -> Line:
    """Return the logical line that starts at ``start``, up to the end of its last physical line."""
    return _Reader(text, start).read()


def read_lines(text: str) -> list[Line]:
    """Return all logical lines that are not empty."""
    lines, place = [], 0
    while place < len(text):
        line = read_line(text, place)
        if text[line.start : line.end].strip():
            lines.append(line)
        place = line.end + 1
    return lines


def lacks(command: str) -> str:
    """Return a text that names the missing part of a command; "" if the command is complete."""
    for number, line in enumerate(read_lines(command)):
        if line.why:
            return line.why
        if number and is_rest(command, line.start):
            return "a line is broken: its rest is on the next line"
        if _DASH.search(command, line.start, line.end) and _DASH.search(
            blank(command, line.texts), line.start, line.end
        ):
            return "an option begins with a dash that is no hyphen"
    return ""


def blank(text: str, places: list[tuple[int, int]]) -> str:
    """Return the text with underscores in the given ranges (start, end)."""
    pieces, place = [], 0
    for begin, end in sorted(places):
        pieces += [text[place:begin], "_" * (min(end, len(text)) - max(begin, place))]
        place = max(place, end)
    return "".join([*pieces, text[place:]])


def is_rest(text: str, place: int) -> bool:
    """Return whether the text at ``place`` starts like a continuation line, not a command."""
    return _REST.match(text, place) is not None


class _Reader:
    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._line = Line(start, len(text))
        self._place = start
        #: Closing marks of the open constructs, innermost last.
        self._open: list[str] = []
        #: Number of open constructs when the outermost ``$((`` started. Inside it, ``<<`` shifts
        #: bits.
        self._sum = 0
        #: Start of the outermost text in double quotes.
        self._quoted: int | None = None
        #: Here-documents whose bodies start at the next line: the closing line, whether tabs may
        #: precede it, and whether backslashes join lines.
        self._documents: list[tuple[str, bool, bool]] = []
        #: End of the last escaped character, which is part of a word.
        self._escaped = -1
        #: The operator that ends the text read so far, or "".
        self._operator = ""

    def read(self) -> Line:
        text, line = self._text, self._line
        while self._place < len(text) and not line.why:
            if self._step():
                line.end = self._place
                return line
        line.why = line.why or self._missing()
        return line

    def _missing(self) -> str:
        if self._open:
            names = {'"': "a double quote", "`": "a backtick"}
            return f"{names.get(self._open[-1], 'a bracket')} is not closed"
        if self._documents:
            return f"the here-document has no line {self._documents[0][0]:.40}"
        if self._is_caret(len(self._text)):
            return "the line after the last ^ is missing"
        return f"nothing follows {self._operator}" if self._operator else ""

    def _step(self) -> bool:
        """Advance by one construct; return true at the end of the line."""
        text, place = self._text, self._place
        inner = self._open[-1] if self._open else ""
        plain = _PLAIN.get(inner, _PLAIN[""]).match(text, place)
        if plain:
            self._place = plain.end()
            if plain[0].strip():
                self._operator = ""
            return False
        sign = text[place]
        self._place += 1
        if sign == "\\":
            self._escape(place, inner)
        elif sign == inner:
            self._close(sign)
        elif sign == '"' and inner != '"':
            self._open_text(place)
        elif sign in "$`":
            self._substitute(sign, inner, place)
        elif inner == '"':
            pass
        elif sign == "'":
            self._take(_SINGLE.match(text, place), "a single quote is not closed")
        elif inner != "}":
            return self._structure(sign, place)
        return False

    def _escape(self, place: int, inner: str) -> None:
        if self._place >= len(self._text):
            self._line.why = "the line after the last backslash is missing"
            return
        if inner not in {'"', "}"} and _LOOSE_END.match(self._text, self._place):
            self._line.why = "a backslash is followed by spaces or tabs at the end of its line"
            return
        if self._text[self._place] == "\n":
            if not self._open and _EMPTY.match(self._text, self._place):
                self._line.why = "the line after a backslash is empty"
            elif inner in {"", ")"} and not self._operator and self._is_commented(place):
                self._line.why = "the line after a backslash is a comment"
        else:
            self._operator = ""
        self._place = self._escaped = place + 2

    def _is_commented(self, place: int) -> bool:
        """Return whether a comment line follows the backslash at ``place`` (the end of a line)."""
        comment = _COMMENTED.match(self._text, place + 1)
        return comment is not None and (
            comment.end() - place > 3 or self._text[place - 1 : place] in _BREAK
        )

    def _is_caret(self, end: int) -> bool:
        """Return whether ``^``, the continuation mark of cmd.exe, precedes the line end ``end``."""
        text, texts = self._text, self._line.texts
        place = end - 1
        while place > self._line.start and text[place] in " \t":
            place -= 1
        return (
            text[place - 1 : place + 1] in {" ^", "\t^"}
            and place > self._line.start
            and place > self._escaped
            and not (texts and texts[-1][1] > place)
        )

    def _close(self, sign: str) -> None:
        self._open.pop()
        if len(self._open) < self._sum:
            self._sum = 0
        if sign == '"' and '"' not in self._open and self._quoted is not None:
            self._line.texts.append((self._quoted, self._place))
            self._quoted = None

    def _open_text(self, place: int) -> None:
        if '"' not in self._open:
            self._quoted = place
        self._open.append('"')
        self._operator = ""

    def _substitute(self, sign: str, inner: str, place: int) -> None:
        self._operator = ""
        following = self._text[self._place : self._place + 1]
        if sign == "`":
            self._open.append("`")
            if inner in {"", ")"} and _LINE_END.match(self._text, self._place):
                self._line.why = "a line ends with an opening backtick"
        elif following == "'" and inner != '"':
            self._take(_ANSI.match(self._text, place), "a single quote is not closed")
        elif following == "$":
            self._place += 1
        elif following in {"(", "{"}:
            self._open.append(")" if following == "(" else "}")
            self._place += 1
            if self._text.startswith("((", place + 1) and not self._sum:
                self._sum = len(self._open)

    def _structure(self, sign: str, place: int) -> bool:
        """Handle a character outside quotes and substitutions; return true at the line's end."""
        if sign == "\n":
            return self._end_line()
        if sign == "#":
            begins = place == self._line.start or self._text[place - 1] in _BREAK
            if begins and place != self._escaped:
                self._take(_COMMENT.match(self._text, place), "", keep=True)
                self._line.comments.append((place, self._place))
            else:
                self._operator = ""
        elif sign in "|&":
            operator = _OPERATOR.match(self._text, place)
            self._operator = operator[0] if operator else ""
            self._place = operator.end() if operator else self._place
        elif self._text.startswith("<<", place) and not self._sum:
            self._document(place)
        else:
            self._operator = ""
            if sign == "(" and (summed := _SUM.match(self._text, place)):
                self._place = summed.end()
            elif sign == "(":
                self._open.append(")")
        return False

    def _document(self, place: int) -> None:
        self._operator = ""
        if self._text.startswith("<<<", place):
            self._place = place + 3
            return
        begun = _DOCUMENT.match(self._text, place)
        if begun is None:
            self._line.why = "nothing follows <<"
            return
        name = re.sub(r"\\(.)|['\"]", lambda sign: sign[1] or "", begun[2])
        self._documents.append((name, bool(begun[1]), name == begun[2]))
        self._place = begun.end()

    def _end_line(self) -> bool:
        if self._is_caret(self._place - 1):
            self._line.why = "a line ends with ^"
            return False
        while self._documents:
            end = self._end_document(*self._documents[0])
            if end is None:
                self._place = len(self._text)
                return False
            self._line.texts.append((self._place, end.start()))
            self._line.documents.append((self._place, end.end()))
            self._documents.pop(0)
            self._place = min(end.end() + 1, len(self._text))
            if not self._documents and not self._open and not self._operator:
                self._place = end.end()
                return True
        if self._open or self._operator:
            return False
        self._place -= 1
        return True

    def _end_document(self, name: str, tabs: bool, joins: bool) -> re.Match[str] | None:  # noqa: FBT001
        form = ("^\t*+" if tabs else "^") + re.escape(name) + "$"
        for end in re.compile(form, re.MULTILINE).finditer(self._text, self._place):
            before = self._text[self._place : end.start()].removesuffix("\n")
            if not joins or (len(before) - len(before.rstrip("\\"))) % 2 == 0:
                return end
        return None

    def _take(self, match: re.Match[str] | None, why: str, *, keep: bool = False) -> None:
        if not keep:
            self._operator = ""
        if match is None:
            self._line.why = why
            return
        self._line.texts.append(match.span())
        self._place = match.end()


def has_prompt(command: str) -> bool:
    """Return whether ``command`` begins with the prompt of a shell, such as ``root@box:~#``."""
    return _PROMPT.match(command) is not None


def strip_prompts(session: str) -> str:
    """Return the commands of a shell session, without the prompt at the start of each line.

    Raises ValueError for a line without a prompt, because it may be output of a command.
    """
    commands = []
    for line in read_lines(session):
        prompt = _PROMPT.match(session, line.start, line.end)
        if prompt is None:
            raise ValueError("a line without a prompt follows lines with one")
        commands.append(session[prompt.end() : line.end])
    return "\n".join(commands)
