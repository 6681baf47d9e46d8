"""Commands that end inside a bash construct must not run in part."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from netarena.sandbox.syntax import REFUSED, STATUS, arguments
from netarena.task.command_line import lacks

#: text of a command after its first line, with a construct that is never closed
HALF = {
    "for": "for i in 1 2; do",
    "for with a body": "for i in 1 2; do\n  echo ran",
    "for without words": "for i in",
    "for as in C": "for ((i = 0; i < 2; i++)); do echo ran",
    "select": "select i in 1 2; do",
    "while": "while false; do echo ran",
    "until": "until true\n",
    "if": "if true; then\necho ran",
    "else": "if true; then echo ran; else",
    "elif": "if true; then echo ran; elif true; then",
    "case": "case a in\na) echo ran",
    "brace": "{ echo ran",
    "function": "f() {\necho ran",
    "function without a body": "f()",
    "test": "[[ -n a",
    "test that goes on": "[[ -n a &&",
    "arithmetic": "((1 +",
    "parenthesis": "(echo ran",
    "array": "a=(1 2",
    "write": "echo ran >",
    "append": "echo ran >>",
    "read": "cat <",
    "descriptor": "echo ran 2>&",
    "here-string": "cat <<<",
    "here-document": "cat <<END\nran",
    "here-document within a substitution": "echo $(cat <<END\nran\n)",
    "substitution": "echo $(echo ran",
    "process": "cat <(echo ran",
    "coproc": "coproc {",
    "time": "time {",
    "single quote": "echo 'ran",
    "double quote": 'echo "ran',
    "expansion": "echo ${ran",
    "pipe": "echo ran |",
    "and": "echo ran &&",
    "end in a comment": "for i in 1; do # done",
    "behind set -n": "set -n\nfor i in 1; do",
    "behind an exit": "exit\nfor i in 1; do",
    "extended pattern": "shopt -s extglob\necho !(a",
    "nested deeply": "((((((((" * 4000 + "\necho ran",
}
WHOLE = {
    "loop": ("for i in 1 2; do\n  echo $i\ndone", "1\n2\n"),
    "here-document with half a loop": ("cat <<END\nfor i in\nEND\necho b", "for i in\nb\n"),
    "extended pattern": ("shopt -s extglob\necho /et!(x|y)c", "/etc\n"),
    "function": ("f() {\n  echo $1\n}\nf a", "a\n"),
    "joined lines": ("echo a \\\n  b", "a b\n"),
    "last line empty": ("echo a\n\n", "a\n"),
    "comment with half a loop": ("echo a\n# for i in\necho b", "a\nb\n"),
    "name of the shell, arguments, level": ("\necho $0 $#\necho $SHLVL", "bash 0\n1\n"),
    "pattern in quotes": ("echo a\necho '!(a'", "a\n!(a\n"),
}


def run(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments(command),
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("rest", HALF.values(), ids=HALF)
def test_command_with_an_unclosed_construct_does_not_run_at_all(rest: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    done = run(f"touch {mark}\n{rest}")
    assert not mark.exists()
    assert done.returncode == STATUS
    assert done.stdout.startswith(REFUSED)
    assert done.stdout.count("\n") == 1
    assert "bash: " not in done.stdout.removeprefix("bash: ")


@pytest.mark.parametrize(("command", "output"), WHOLE.values(), ids=WHOLE)
def test_complete_command_of_several_lines_runs(command: str, output: str) -> None:
    done = run(command)
    assert (done.stdout, done.returncode) == (output, 0)


def test_plain_bash_runs_the_first_line_of_an_incomplete_command() -> None:
    command = f"echo ran\n{HALF['for']}"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "ran\n"


@pytest.mark.parametrize(
    "last", ["for i in 1; do", "{ echo b", "echo b >", "if true; then", "(echo b", "f() {"]
)
def test_incomplete_single_line_is_refused_without_a_second_shell(last: str) -> None:
    command = f"echo ran; {last}"
    assert len(arguments(command)) == 3
    done = run(command)
    assert "ran\n" not in done.stdout
    assert done.returncode == STATUS


def test_trailing_backslash_is_refused_before_any_shell_starts() -> None:
    assert lacks("echo a\necho b \\")
