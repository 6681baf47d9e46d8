"""Detection of turns without effect, based on the output of the command.

A nonzero exit status does not mean failure. For example, ``grep`` may have found no match, ``diff``
may have found differences, or a watch may have been stopped after it printed output. A command had
no effect in one of three cases: it was stopped before it printed, the shell could not run it, or it
printed only refusals. Refusals are errors from the API server, or from kubectl for a line that it
cannot parse.
"""

from __future__ import annotations

import re

from netarena.sdk import Step

#: last line of an output if the command failed or was stopped (see ``CommandResult``)
_END = re.compile(r"\[(?:exit status (?P<status>\d+)|stopped: .*)\]\Z")
#: exit statuses of the shell for a program that cannot run or does not exist
_UNRUN = frozenset({126, 127})
#: exit status of a command that ``timeout`` stopped; statuses of signals are higher
_CUT_OFF = 124
#: A line with a refusal. Kubectl's message that it timed out while waiting is not a refusal.
_REFUSAL = re.compile(
    r"""
    Error\ from\ server | error:\ (?!timed\ out\ waiting) | Error:\ | Unable\ to\ connect\ to
    | The\ (?:connection\ to\ the\ server|request\ is\ invalid) | The\ \S+\ ".*"\ is\ invalid
    # kubectl: unknown kinds in a manifest; a program that the container does not have
    | \[?resource\ mapping\ not\ found | unable\ to\ recognize | OCI\ runtime\ exec\ failed
    | \S+\ "\S+"\ is\ forbidden:\ User\b
    | bash:\ | \S+:\ command\ not\ found
    """,
    re.VERBOSE,
)
#: continuation lines of a refusal, and lines that accompany a refusal
_AROUND = re.compile(
    r"\s|\*\ |Warning: |See '|Did you mean|ensure CRDs |A copy of your changes|<klog> |[EWI]\d{4} "
    r"|command terminated with exit code 12[67]|Unable to use a TTY|Defaulted container"
    r"|If you don't see a command prompt|All commands and output from this session"
)


def came_to_nothing(step: Step) -> bool:
    """Return whether a turn ran no command, or a command that had no effect and returned no
    information."""
    if not step.executed:
        return True
    output, _, last = step.output.rstrip("\n").rpartition("\n")
    end = _END.match(last)
    if end is None:
        return False
    lines = [line for line in output.splitlines() if line.strip()]
    if not lines:
        status = end["status"] and int(end["status"])
        return not status or status in _UNRUN or status >= _CUT_OFF
    return any(map(_REFUSAL.match, lines)) and all(
        _REFUSAL.match(line) or _AROUND.match(line) for line in lines
    )
