"""Exceptions that cross module boundaries. The type of an exception shows which side is at fault.

Only these four kinds decide the result of an episode or a command:

=====================  ===========================  ====================================
exception              at fault                     result
=====================  ===========================  ====================================
``ConfigError``        the caller                   exit status 2, a rejected task
``ReplyRefused``       the agent, this turn only    the turn is used up, the prompt says why
``AgentFailed``        the agent or its endpoint    outcome ``agent_failed``
``EnvironmentFailed``  NetArena                     one retry, then outcome ``invalid``
=====================  ===========================  ====================================
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

_FOLDERS = re.compile(r"(?<![\w.~/-])/(?!/)(?:[\w.@+-]+/)+")


def one_line(text: str, limit: int = 2000) -> str:
    r"""Return text as one line, with unprintable characters escaped, truncated to ``limit``
    characters.

    >>> one_line("a\nb")
    'a\\nb'
    """
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[: limit + 1])
    return shown if len(text) <= limit else f"{shown[:limit]}…"


def without_folders(text: str) -> str:
    r"""Return text with each absolute path reduced to its last component; URLs do not change.

    Services use this function for messages to clients, which must not reveal the service's folders.

    >>> without_folders("[Errno 2] No such file: '/srv/runs/a.json' (http://host/a/b)")
    "[Errno 2] No such file: 'a.json' (http://host/a/b)"
    """
    return _FOLDERS.sub("", text)


class NetArenaError(Exception):
    """Base class of all errors that NetArena raises on purpose."""


class ConfigError(NetArenaError):
    """An invalid request. The message is one line with the error and the allowed values.

    >>> str(ConfigError("num_queries", "must be at least 1, not 0"))
    'num_queries: must be at least 1, not 0'
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(one_line(f"{field}: {problem}" if field else problem))
        self.field = field
        self.problem = problem


def reason_of(error: Exception) -> str:
    """Return the reason why a stored file cannot be used, as a text for users.

    >>> reason_of(KeyError("seed"))
    "the key 'seed' is missing"
    >>> reason_of(PermissionError(13, "Permission denied"))
    'the file cannot be read: Permission denied'
    """
    if isinstance(error, KeyError) and error.args:
        return f"the key {error.args[0]!r} is missing"
    if isinstance(error, OSError):
        return f"the file cannot be read: {error.strerror or error}"
    return "it has another structure" if isinstance(error, TypeError) else str(error)


class ReplyRefused(NetArenaError):
    """A reply that is not executed. The agent's next prompt contains the message."""


class FailureReason(StrEnum):
    """Reason of an agent failure (``Episode.reason``)."""

    TIMEOUT = "timeout"  # no complete reply within agent_timeout_s
    ENDPOINT = "endpoint"  # unreachable, connection lost, HTTP error
    TOO_LARGE = "too_large"  # the reply exceeds the maximum size
    MALFORMED = "malformed"  # protocol error: broken JSON, no text, an invalid agent card
    TASK_FAILED = "task_failed"  # the agent's task failed, was rejected or was cancelled
    NO_REPLY = "no_usable_reply"  # every reply of the episode was refused
    TIME_BUDGET = "time_budget"  # the assessment's time ended before there was a usable reply


class AgentFailed(NetArenaError):
    """The agent returned no valid answer.

    ``unsent`` means that the request cannot have reached the agent, so it cost nothing.
    """

    def __init__(self, reason: FailureReason, detail: str, *, unsent: bool = False) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.unsent = unsent


class EnvironmentFailed(NetArenaError):
    """The environment of a query (network, cluster) failed, or an injected fault had no effect.

    ``evidence`` is stored in the episode. ``proven_ours`` means that evidence from outside the
    sandbox shows an environment failure. Otherwise, a failure after a reply was executed counts as
    an agent failure.
    """

    def __init__(self, detail: str, *, evidence: Any = None, proven_ours: bool = False) -> None:
        super().__init__(detail)
        self.detail = detail
        self.evidence = evidence
        self.proven_ours = proven_ours


class AssessmentFailed(NetArenaError):
    """The assessment has no summary: the agent was never reachable, or no episode was graded."""


class AgentSilent(AssessmentFailed):
    """The agent answered in no episode. The assessment is not ranked, and may be restarted.

    ``reached`` is true if the agent was reached but gave no usable answer, for example a late one.
    """

    def __init__(self, message: str, *, reached: bool = False) -> None:
        super().__init__(message)
        self.reached = reached


#: Matches the detail of an agent failure if the endpoint was reached.
_ANSWERED = re.compile(r"\bHTTP \d{3}\b|\bconnection lost\b")


def describe_absence(agent: str, failure: AgentFailed) -> str:
    """Return a text that says whether the agent was unreachable or gave no usable answer."""
    if failure.reason is not FailureReason.ENDPOINT or _ANSWERED.search(failure.detail):
        return f"the agent {agent} was reached but gave no usable answer: {failure}"
    return f"the agent {agent} could not be reached: {failure}"


def suggest(given: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'NAME'?`` with the known name most similar to ``given``, or ""."""
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.6)
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def not_one_of(given: object, known: Iterable[str]) -> str:
    """Return ``'x' is not one of a, b``, with the most similar known name, if any.

    >>> not_one_of("tiket", ["full", "ticket"])
    "'tiket' is not one of full, ticket; did you mean 'ticket'?"
    """
    names = list(known)
    near = suggest(given, names) if isinstance(given, str) else ""
    return f"{one_line(repr(given), 60)} is not one of {', '.join(names)}{near}"
