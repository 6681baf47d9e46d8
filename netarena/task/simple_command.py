"""Splits a shell command line into its simple commands, without running it.

The parts of lists, pipes, loops and substitutions are separate simple commands. Commands given to
``sh -c``, ``eval``, ``xargs`` and similar programs, and lines that a shell reads from its input,
are also separate simple commands. The result approximates the commands that a shell would run;
variables are not expanded.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

#: Operators at which a simple command ends. This pattern is not applied to redirections, which may
#: contain the same characters.
_ENDS = re.compile(r"[;|&\n()`]")
_REDIRECTIONS = frozenset({">&", "&>", "&>>", "<&", ">|", "<>"})
_HEREDOC = re.compile(
    r"<<-?[ \t]*(['\"]?)(\w+)\1([^\n]*\n)(.*?)(?:^\t*\2[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_SET = re.compile(r"\w+\+?=")
#: Keywords and programs in front of a command, and arguments that belong to such a program.
_KEYWORDS = frozenset({"do", "then", "else", "elif", "if", "while", "until", "time", "!", "{"})
_WRAPPERS = frozenset({"sudo", "env", "nohup", "nice", "timeout", "stdbuf", "setsid", "xargs"})
_WRAPPERS |= {"watch", "busybox", "exec"}
_WRAPPER_ARGUMENT = re.compile(r"-.*|\d+(\.\d+)?[smhd]?|\w+=.*|\{\}|[%@]|")
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "eval"})
#: Maximum nesting of commands, and maximum number of characters that are parsed, to limit the time.
_DEPTH, _MOST_READ = 4, 20_000


class SimpleCommand(NamedTuple):
    """A command: its program, arguments, output files (``written``) and possible inputs."""

    program: str
    arguments: Sequence[str]
    written: Sequence[str]
    #: Texts that the command may read as input: here-documents, here-strings, and the texts of echo
    #: and printf.
    fed: Sequence[str]

    def positional(self, with_values: Sequence[str] = ()) -> list[str]:
        """Return the arguments that are neither options nor values of ``with_values`` options."""
        words = iter(self.arguments)
        found = []
        for word in words:
            if word in with_values:
                next(words, None)
            elif not word.startswith("-"):
                found.append(word)
        return found


def read_commands(text: str, depth: int = 0) -> Iterator[SimpleCommand]:
    """Yield the simple commands of a command line; program names have no directory part."""
    text = _COMMENT.sub("", text[:_MOST_READ].replace("\\\n", " "))
    fed = [found[4] for found in _HEREDOC.finditer(text)]
    parts = list(_parts(_HEREDOC.sub(r"\3", text)))
    for words, _, strings in parts:
        fed += strings
        if words and words[0] in {"echo", "printf"}:
            fed.append(" ".join(words[1:]).replace("\\n", "\n"))
    unread = True
    for words, written, _ in parts:
        for inner in filter(None, map(_substituted, words if depth < _DEPTH else ())):
            yield from read_commands(inner, depth + 1)
        own = _unwrapped(words)
        if not own:
            if written:
                yield SimpleCommand("", (), written, fed)
            continue
        program = own[0].rsplit("/", 1)[-1]
        yield SimpleCommand(program, own[1:], written, fed)
        if program in _SHELLS and depth < _DEPTH:
            given = own[1:] if program == "eval" else [one for one in own[1:] if one[:1] != "-"]
            if given or unread:  # only the first shell without a command reads the input
                yield from read_commands(" ".join(given) or "\n".join(fed), depth + 1)
                unread = unread and bool(given)


def _substituted(word: str) -> str:
    """Return the commands whose output is inserted into a word, as in ``"$(ls)"``."""
    for begin, end in (("$(", ")"), ("`", "`")):
        first, last = word.find(begin), word.rfind(end)
        if 0 <= first < last:
            return word[first + len(begin) : last]
    return ""


def _unwrapped(words: Sequence[str]) -> Sequence[str]:
    """Return the words without leading assignments, keywords and wrappers such as ``sudo``."""
    place = 0
    while place < len(words):
        if words[place] in _WRAPPERS:
            place += 1
            while place < len(words) and _WRAPPER_ARGUMENT.fullmatch(words[place]):
                place += 1
        elif words[place] in _KEYWORDS or _SET.match(words[place]):
            place += 1
        else:
            break
    return words[place:]


def _parts(text: str) -> Iterator[tuple[list[str], list[str], list[str]]]:
    """Yield the words, output files and here-strings of each simple command."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";|&\n()`<>")
    lexer.whitespace_split, lexer.whitespace, lexer.commenters = True, " \t\r", ""
    words: list[str] = []
    written: list[str] = []
    strings: list[str] = []
    operator = ""
    tokens = _tokens(lexer)
    for token, is_operator in tokens:
        if is_operator and (token in _REDIRECTIONS or not _ENDS.search(token)):
            operator = token
            if words and words[-1].isdigit():  # a file descriptor, as in ``2>``
                words.pop()
        elif is_operator:
            yield words, written, strings
            words, written, strings, operator = [], [], [], ""
        elif operator:
            if ">" in operator:
                written.append(token)
            elif operator == "<<<":
                strings.append(token)
            operator = ""
        elif token.startswith("#"):
            for skipped, _ in tokens:  # a comment ends with its line
                if "\n" in skipped:
                    break
            yield words, written, strings
            words, written, strings = [], [], []
        else:
            words.append(token)
    yield words, written, strings


def _tokens(lexer: shlex.shlex) -> Iterator[tuple[str, bool]]:
    """Yield each token, and whether the token is an operator; stop at an unclosed quote."""
    while True:
        try:
            token = lexer.get_token()
        except ValueError:  # a shell would not run the rest either
            return
        if token is None:
            return
        yield token, bool(token) and set(token) <= set(";|&\n()`<>")
