"""Command line of bash that parses an agent's command completely before it runs any part.

``bash -c`` reads a text line by line and runs each line before it parses the next one. A text that
ends inside a ``for``, ``if`` or ``{``, or after a ``>``, would therefore run in part. The parser
is bash itself (``bash -n``), inside the sandbox and within the command's limits, because no other
parser agrees with it on every text.
"""

from __future__ import annotations

#: exit status of a command that is not whole: that of bash for a syntax error
STATUS = 2
#: begins the one line that is printed in place of running such a command
REFUSED = "bash: nothing was run: the command is not whole or not valid"

#: ``bash -n`` only warns about a here-document without its end; extended patterns are parsed once
#: they are switched on, which a line of the command itself may do
_PARSE_AND_RUN = rf"""
parse() {{
  said=$(bash "$@" 2>&1) && [[ $said != *'delimited by end-of-file'* ]]
}}
parse_extended() {{
  [[ $1 == *'shopt -s '*extglob* ]] && parse -O extglob -n -c -- "$1"
}}
if parse -n -c -- "$1" || parse_extended "$1"; then
  exec bash -c -- "$1"
fi
said=${{said%%$'\n'*}}
said=${{said#bash: }}
printf '%s\n' "{REFUSED} (${{said#-c: }})"
exit {STATUS}
"""


def arguments(command: str) -> list[str]:
    """Return the arguments, ``bash`` first, that run ``command`` or print why it is not whole.

    Bash parses a command of one line whole by itself.
    """
    if "\n" not in command.strip("\n"):
        return ["bash", "-c", command]
    return ["bash", "-c", _PARSE_AND_RUN, "bash", command]
