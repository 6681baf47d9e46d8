"""Bash command line that parses an agent's complete command before it runs any part of it.

``bash -c`` reads a text line by line and runs each line before it parses the next line. If a text
ends inside a ``for``, ``if`` or ``{``, or after a ``>``, its first lines would therefore run. Bash
itself (``bash -n``) is the parser, inside the sandbox and within the command's limits, because no
other parser agrees with bash on every text.
"""

from __future__ import annotations

#: Exit status of an incomplete command, equal to bash's status for a syntax error.
STATUS = 2
#: Start of the line that is printed instead of running an incomplete command.
REFUSED = "bash: nothing was run: the command is not whole or not valid"

#: Script that parses a command with ``bash -n`` and runs it if it is complete. ``bash -n`` only
#: warns about an unclosed here-document, so its output is checked too. It parses extended patterns
#: only if they are enabled, and a line of the command itself may enable them.
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
    """Return bash's arguments (starting with ``bash``) that run ``command`` if it is complete.

    For an incomplete command, bash prints the reason instead. A command of one line needs no check,
    because bash parses it completely before it runs it.
    """
    if "\n" not in command.strip("\n"):
        return ["bash", "-c", command]
    return ["bash", "-c", _PARSE_AND_RUN, "bash", command]
