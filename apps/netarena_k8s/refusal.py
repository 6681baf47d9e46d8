"""Decides which turns had no effect, by the output of their command.

An exit status other than 0 does not mean failure: ``grep`` found nothing, ``diff`` found
differences, a watch was ended after it had printed. Commands without effect are those that were
stopped before they printed, that the shell could not run, or that printed only refusals: the API
server's, or kubectl's own of a line that it does not understand.
"""

from __future__ import annotations

import re

from netarena.model import Step

#: how the last line of an output tells that a command was stopped or failed (``shell.Result``)
_END = re.compile(r"\[(?:exit status (?P<status>\d+)|stopped: .*)\]\Z")
#: of the shell: what is no program, or none that can be run
_UNRUN = frozenset({126, 127})
#: of a command that was ended before its end, by ``timeout`` or by a signal: from here on
_CUT_OFF = 124
#: a line that refuses; but that kubectl waited in vain is an answer
_REFUSAL = re.compile(
    r"""
    Error\ from\ server | error:\ (?!timed\ out\ waiting) | Error:\ | Unable\ to\ connect\ to
    | The\ (?:connection\ to\ the\ server|request\ is\ invalid) | The\ \S+\ ".*"\ is\ invalid
    # kubectl, of several objects; of a follower that asks again; of a pod without such a program
    | \[?resource\ mapping\ not\ found | unable\ to\ recognize | OCI\ runtime\ exec\ failed
    | \S+\ "\S+"\ is\ forbidden:\ User\b
    | bash:\ | \S+:\ command\ not\ found
    """,
    re.VERBOSE,
)
#: what goes on in the lines after it, and what is said beside
_AROUND = re.compile(
    r"\s|\*\ |Warning: |See '|Did you mean|ensure CRDs |A copy of your changes|<klog> |[EWI]\d{4} "
    r"|command terminated with exit code 12[67]|Unable to use a TTY|Defaulted container"
    r"|If you don't see a command prompt|All commands and output from this session"
)


def came_to_nothing(step: Step) -> bool:
    """Whether a turn ran no command, or one that did nothing and told nothing."""
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
