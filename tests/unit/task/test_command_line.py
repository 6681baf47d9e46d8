"""Incomplete commands, compared with bash itself."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.task.command_line import lacks, read_line, read_lines
from tests.thorough import THOROUGH

WHOLE = [
    "kubectl get pods",
    "a | b && c || d; e & f",
    "a |\n b &&\n\n c",
    "a # isn't \\",
    "echo a#b' #'",
    "echo \"a `date` $(echo \")\") ${x:-'}'}\"",
    "echo $'it\\'s' $\"x\" $$ ${#x} ${x##*'}'} $# $((1 << 2)) `echo \\`date\\``",
    "cat <<E\nit's ` \" $(\nE",
    "cat <<'E' | b\nx\nE",
    'cat <<-E <<"F G"\n\tx\n\tE\ny\nF G\nz',
    "cat <<E |\nx\nE\nb",
    "a=$(cat <<E\n)\nE\n)",
    "cat <<'E'\nx \\\nE",
    "cat <<E\nx \\\\\nE",
    "cat <<<x && b <<<'y'",
    "case x in x) a;; esac",
    ":(){ :|:& };:",
    "f() { a; }\nfor i in 1 2; do b; done",
    "a \\\n  b\\\\",
    "(a; (b) ) #'",
    "a >| b >&2 2>&1 &>c",
    "printf '\\\n'",
    "a ' \u2014b' # \u2014c",
    "a '^'\nb -c ^x \\^ # ^\nd\\ e",
    "a |\\\n # c\n b",
    'a "\\ \n" `b`',
    "((x = 1 << 2)); for ((i=1; i < (1<<4); i++)); do a; done",
    "( (a <<E\nx\nE\n); b)",
    "a <<E\n--x ^\n| \\ \nE",
]  # fmt: skip
#: incomplete commands -> part of the message
HALF = {
    "kubectl patch x \\": "backslash",
    "a \\\n\nb": "backslash",
    "a \\\n \n": "backslash",
    "a |": "follows |",
    "a |&  # c": "follows |&",
    "a && \n": "follows &&",
    "a ||\n# c": "follows ||",
    "a 'b": "single quote",
    "a $'b\\'": "single quote",
    'a "b\\"': "double quote",
    'a "$(b"': "double quote",
    "a $(b": "bracket",
    "a ${b": "bracket",
    "(a": "bracket",
    "a `b": "backtick",
    "cat <<E\nx": "no line E",
    "cat <<E\nx\n E": "no line E",
    "cat <<E <<F\nE\nx": "no line F",
    "a\nb '\nc": "single quote",
    "cat <<": "<<",
    "cat <<E\nx \\\nE": "no line E",
    "a \\ #'": "single quote",
}

#: commands that bash would run without their last lines, although these are meant as part of them
TORN = {
    "a \\ \n  --b": "spaces or tabs",
    "a \\\t": "spaces or tabs",
    "a $(b \\  # c\n)": "spaces or tabs",
    "a \\\n  # b\n  --c": "comment",
    "a;\\\n# b\n--c": "comment",
    "a ^\n  --b": "ends with ^",
    "a ^": "last ^",
    "a `\n --b `\n --c": "opening backtick",
    "a\n  --b": "a line is broken",
    "a\n\n# c\n-b": "a line is broken",
    "a\n  \u2014b": "a line is broken",
    "a \u2014b": "no hyphen",
    "a 'b'\nc \u2013\u2013d": "no hyphen",
    "a\n| b": "a line is broken",
    "a\n  && b": "a line is broken",
}


def bash_wants_more(text: str) -> bool:
    done = subprocess.run(
        ["bash", "--norc", "-n", "-c", text], capture_output=True, text=True, check=False
    )
    return "unexpected E" in done.stderr or "end of file" in done.stderr or (
        "end-of-file" in done.stderr
    )  # fmt: skip


@pytest.mark.parametrize("text", WHOLE)
def test_complete_command_is_accepted(text):
    assert lacks(text) == ""
    assert not bash_wants_more(text)


@pytest.mark.parametrize("text", HALF)
def test_incomplete_command_is_reported(text):
    assert HALF[text] in lacks(text)


@pytest.mark.parametrize("text", TORN)
def test_command_whose_last_lines_would_run_separately_counts_as_incomplete(text):
    assert TORN[text] in lacks(text)


@THOROUGH
@given(
    st.lists(
        st.sampled_from(
            [
                *("a", "'", '"', "\\", "\n", " ", ";", "&", "&&", "$(", ")", "(", "`", "${x", "}"),
                *("$", "#", "<<E\n", "<<'E' ", "E\n", "\nE\n", "<<<", "$((1<<2))"),
            ]
        ),
        max_size=9,
    ).map("".join)
)
def test_lines_of_any_text_are_consecutive(text):
    place = 0
    for line in read_lines(text):
        assert text[place : line.start].strip() == ""
        assert line.start < line.end <= len(text)
        assert all(line.start <= a <= b <= line.end for a, b in line.texts)
        place = line.end
    assert text[place:].strip() == ""


def test_line_ends_where_bash_starts_to_run_it():
    text = "a 'b\n' \\\n c <<E\nx'\nE\nkubectl d # '"
    lines = [text[line.start : line.end] for line in read_lines(text)]
    assert lines == ["a 'b\n' \\\n c <<E\nx'\nE", "kubectl d # '"]
    assert [text[a:b] for a, b in read_line(text).texts] == ["'b\n'", "x'\n"]


@pytest.mark.parametrize(
    "text",
    [
        "'" * 60_001,
        '"$(' * 20_000,
        "<<E\n" * 15_000,
        "`" * 60_001,
        "${" * 30_000,
        "# \n" * 20_000,
        "\\\n" * 30_000,
        "((a(b)" * 12_000,
        "( ^" + " \n" * 30_000,
    ],
    ids=lambda text: text[:4],
)
def test_huge_text_is_parsed_once(text):
    lines = read_lines(text)
    assert sum(line.end - line.start for line in lines) <= len(text)
