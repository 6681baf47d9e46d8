"""netarena.task.simple_command: a command line is split into its simple commands."""

from __future__ import annotations

import pytest

from netarena.task.simple_command import read_commands


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a 1; b 2 && c | d || e & f\ng", "a 1,b 2,c,d,e,f,g"),
        ("echo 'a; b' \"c && d\"", "echo a; b c && d"),
        ("X=1 sudo -n /sbin/a b 2>&1 >/tmp/x", "a b"),
        ("for i in 1 2; do a $i; done", "for i in 1 2,a $i,done"),
        ("sh -c 'a; b'", "sh -c a; b,a,b"),
        ('echo "$(a b)" `c d`', "a b,echo $(a b),c d"),
        ("cat <<EOF\na; b\nEOF\nc", "cat,c"),
        ("a; b 'c", "a,b"),
        ("a # b; c\nd", "a,d"),
    ],
)
def test_command_line_is_split_into_the_commands_that_a_shell_would_run(
    text: str, expected: str
) -> None:
    found = [" ".join([one.program, *one.arguments]) for one in read_commands(text)]
    assert ",".join(found) == expected


def test_parsed_command_lists_the_files_that_it_writes_and_its_input_text() -> None:
    (command,) = read_commands("a b >/tmp/x 2>>/tmp/y <<EOF\ntext\nEOF")
    assert (command.written, command.fed) == (["/tmp/x", "/tmp/y"], ["text\n"])
    assert command.positional() == ["b"]
