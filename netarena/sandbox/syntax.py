"""Command line of bash that parses an agent's command completely before it runs any part.

``bash -c`` reads a text line by line and runs each line before it parses the next line. A text that
ends inside a ``for``, ``if`` or ``{``, or after a ``>``, would therefore run in part. The parser
is bash itself (``bash -n``), inside the sandbox and within the command's limits, because no other
parser agrees with bash on every text.
"""

from __future__ import annotations

#: Exit status of an incomplete command, equal to bash's status for a syntax error.
STATUS = 2
#: Start of the line that is printed instead of running such a command.
REFUSED = "bash: nothing was run: the command is not whole or not valid"

#: ``bash -n`` only warns about an unclosed here-document. It parses extended patterns only if
#: they are enabled, which a line of the command itself may do.
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
    """Return an argument list (``bash`` first) that runs ``command``, or prints what is incomplete.

    Bash itself parses a command of one line completely.
    """
    if "\n" not in command.strip("\n"):
        return ["bash", "-c", command]
    return ["bash", "-c", _PARSE_AND_RUN, "bash", command]
