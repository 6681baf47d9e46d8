"""The journal: an append-only JSONL file, the authoritative record of an assessment.

The journal has one line per event. One system call writes each line completely before the event is
reported:

- ``assessment``: application, versions, role, seed and config. This is the first line. Another
  ``assessment`` line is written when the run is extended; the last one counts
- ``start``: an episode's agent is about to be asked for the first time (query id, repeat, attempt)
- ``retry``: an attempt ended without a verdict, with the evidence of an environment failure if any
- ``episode``: a graded episode, with all its steps
- ``cost``: in a run with a cost limit, before each request: the total cost including this request
- ``end``: the assessment has ended; ``complete`` is true if every query was graded, ``silent`` is
  true if the agent did not answer in any episode
- ``worker``: a process that plays episodes, with its machine's kernel and programs; only in a run
  with ``--executor ray``
- ``anew``: an assessment whose agent had not answered starts again; earlier lines no longer count
- ``replaced``: a query that was shown and not graded, and its replacement

If a process is killed while it writes, the last line may be incomplete. Readers ignore this line,
and it is removed when the journal is opened again.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import stat
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from pydantic import ValidationError, model_validator

from netarena.config import SEED_TEXT
from netarena.errors import AssessmentFailed, ConfigError
from netarena.file import finite, read_lines
from netarena.model import Ask, Episode, JsonValue, Record
from netarena.run.result import FILE_MODE
from netarena.task.identity import Secrecy

JOURNAL_NAME = "journal.jsonl"
LOCK_NAME = ".lock"
#: Mode of the lock file. Only its owner may open it, because any user who can open a file can also
#: lock it.
LOCK_MODE = 0o600
#: Pause in s between attempts to lock a run, and maximum number of attempts. Programs that check
#: whether a run is in progress hold its lock for a shorter time than all pauses together.
_LOOK_S, _LOOKS = 0.01, 20
#: Maximum number of folders below a run's folder that are searched for other runs.
MOST_FOLDERS = 2**16
#: Maximum number of bytes of one event. Episodes with a thousand turns are large.
MOST_LINE_BYTES = 1 << 30

R = TypeVar("R", bound=Record)


class _Drawn(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def seed(self) -> int: ...


Q = TypeVar("Q", bound=_Drawn)


class Header(Record):
    """The content of an ``assessment`` event."""

    application: str
    version: str
    #: Version of the prompts' wording. Journals without this field contain version 1.
    prompt_version: int = 1
    role: str
    seed: int
    shape: dict[str, JsonValue]
    config: dict[str, JsonValue]
    secrecy: Secrecy = Secrecy.OPEN

    @model_validator(mode="before")
    @classmethod
    def _without_text(cls, value: Any) -> Any:
        """Remove the text form of the seed, which exists for programs that round large numbers."""
        if isinstance(value, dict):
            return {key: item for key, item in value.items() if key != SEED_TEXT}
        return value

    def versions(self) -> dict[str, str | int]:
        """Return the versions of queries and prompts, under the keys that a summary uses."""
        return {"version": self.version, "prompt_version": self.prompt_version}

    def same_run(self, other: Header) -> bool:
        """Return whether both headers have the same role and the same queries.

        Config keys that do not affect the queries may differ.
        """
        rest = {"config": {}, "secrecy": Secrecy.OPEN}
        return self.model_copy(update=rest) == other.model_copy(update=rest)


@dataclass
class Past:
    """Contents of a journal: verdicts in the order of grading, and failed attempts."""

    header: Header | None = None
    #: Graded episodes, without texts and states unless requested.
    episodes: dict[Ask, Episode] = field(default_factory=dict)
    #: Number of attempts in which the agent was asked.
    starts: Counter[Ask] = field(default_factory=Counter)
    #: Number of attempts in ``starts`` that ended without a verdict, for example with an
    #: environment failure.
    retries: Counter[Ask] = field(default_factory=Counter)
    complete: bool = False
    #: Whether the last assessment ended because the agent did not answer in any episode.
    silent: bool = False
    #: Whether the assessment has ended and was not continued; false if the cost limit ended it.
    ended: bool = False
    #: Cost of all replies so far, including those in attempts without a verdict, in US dollars.
    cost_usd: float = 0.0
    #: Cost of the most expensive reply so far, in US dollars.
    dearest_usd: float = 0.0
    #: The reason why the assessment ended without a summary.
    failed: str = ""
    #: Number of episodes in the journal, and number of episodes at its start that no longer count.
    held: int = 0
    dropped: int = 0
    #: Maps the id of a query that was shown and not graded to the id of its replacement.
    replaced: dict[str, str] = field(default_factory=dict)

    def drop(self) -> None:
        """Discard graded episodes and interrupted attempts, because the assessment starts again."""
        self.dropped = self.held
        self.episodes.clear()
        self.retries = self.starts.copy()
        self.silent = False

    def read_cost(self, event: Mapping[str, Any]) -> None:
        """Read the costs in an event."""
        cost, dearest = event.get("cost_usd"), event.get("dearest_usd")
        self.cost_usd = float(cost) if isinstance(cost, int | float) else self.cost_usd
        self.dearest_usd = float(dearest) if isinstance(dearest, int | float) else self.dearest_usd

    def shown(self) -> set[str]:
        """Return the ids of ungraded, unreplaced queries whose prompt the agent may have seen."""
        graded = {ask.query_id for ask in self.episodes}
        return {ask.query_id for ask in self.starts} - graded - self.replaced.keys()

    def choose(self, queries: Sequence[Q], seed: int) -> list[Q]:
        """Return this participant's queries, in the order of ``queries``.

        These are the queries with the assessment's ``seed``, after the replacements in the journal.
        Replacements for other participants are left out. Raises ConfigError for a replacement that
        is not among ``queries``.
        """
        by_id = {query.id: query for query in queries}
        try:
            return [by_id[self._latest(query.id)] for query in queries if query.seed == seed]
        except KeyError as error:
            raise ConfigError(
                JOURNAL_NAME,
                f"contains the query {error.args[0]}, which is not in queries.jsonl",
            ) from None

    def _latest(self, query_id: str) -> str:
        while query_id in self.replaced:
            query_id = self.replaced[query_id]
        return query_id

    def interrupted(self, ask: Ask) -> int:
        """Return the number of attempts of an episode that a killed process left unfinished."""
        return self.starts[ask] - self.retries[ask]


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal; an incomplete last line is left out.

    Raises ConfigError with the line number for any other invalid line.
    """
    for number, line in enumerate(read_lines(path, MOST_LINE_BYTES), start=1):
        if not line.endswith(b"\n"):
            return
        try:
            event = json.loads(line, parse_float=finite)
            event["event"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ConfigError(f"{path.name}, line {number}", "is not a journal event") from None
        yield event


def read_journal(path: Path, *, slim: bool = True) -> Past:
    """Read a journal. ``slim`` leaves out prompts, replies, outputs and states.

    Raises ConfigError if the file is not a journal.
    """
    past = Past()
    for event in read_events(path):
        ask = read_ask(event)
        match event["event"]:
            case "assessment":
                past.header = _parse(path, event, "header", Header)
            case "start":
                past.starts[ask] += 1
                past.ended = False
            case "retry":
                past.retries[ask] += bool(event.get("asked"))
            case "episode":
                episode = _parse(path, event, "episode", Episode)
                past.held += 1
                past.episodes[episode.ask] = episode.slim() if slim else episode
            case "end":
                past.ended = not event.get("max_cost")
                past.read_cost(event)
                past.complete = bool(event.get("complete"))
                past.silent = bool(event.get("silent"))
                past.failed = str(event.get("failed", ""))
            case "cost":
                past.read_cost(event)
            case "anew":
                past.drop()
            case "replaced":
                past.replaced[str(event["query_id"])] = str(event["by"])
    return past


def read_ask(values: Mapping[str, Any]) -> Ask:
    """Return the query id and repetition of an event, or of the episode in an event.

    Older journals contain no repetitions; the default is 1.
    """
    repeat = values.get("repeat", 1)
    return Ask(str(values.get("query_id", "")), repeat if type(repeat) is int else 1)


def read_episodes(path: Path) -> Iterator[Episode]:
    """Yield the complete graded episodes of a journal in the order of grading.

    Episodes that no longer count are included. Raises ConfigError if the file is not a journal.
    """
    for event in read_events(path):
        if event["event"] == "episode":
            yield _parse(path, event, "episode", Episode)


def _parse(path: Path, event: dict[str, Any], key: str, kind: type[R]) -> R:
    try:
        return kind.model_validate(event[key])
    except KeyError:
        raise ConfigError(path.name, f"contains an event without {key}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, (key, *first["loc"])))
        raise ConfigError(
            path.name, f"was written by another version: {where}: {first['msg']}"
        ) from None


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create a run's folder and lock it against runs in the folders above and below it.

    Raises OSError, and ConfigError if another assessment has locked such a folder.
    """
    folder = Path(os.path.realpath(folder))
    # checked first, so that this process creates nothing in another run's folder
    _refuse_above(folder)
    folder.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    handle = os.open(folder / LOCK_NAME, flags, LOCK_MODE)
    try:
        with suppress(OSError):  # an older release may have created the file with another mode
            os.fchmod(handle, LOCK_MODE)
        try:
            _lock(handle)
        except BlockingIOError:
            raise ConfigError("output_dir", _why_locked(handle, folder)) from None
        # each process locks its own folder, then checks the other folders. If two processes start
        # at the same time, at least one of them finds the other's lock
        _refuse_above(folder)
        _refuse_below(folder)
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    """Take the lock; retry while a reader may hold it. Raises BlockingIOError."""
    for number in range(1, _LOOKS + 1):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if number == _LOOKS:
                raise
            time.sleep(_LOOK_S)
        else:
            return


def is_running(folder: Path) -> bool:
    """Return whether an assessment of this user is running in a run's folder."""
    return _is_held(folder)


def lies_in_run(path: Path, own: Path | None = None) -> bool:
    """Return whether a file is in the folder of a running assessment other than ``own``."""
    real = Path(os.path.realpath(path))
    kept = None if own is None else Path(os.path.realpath(own))
    return any(_is_held(folder) for folder in real.parents if folder != kept)


def _why_locked(handle: int, folder: Path) -> str:
    if os.fstat(handle).st_uid == os.geteuid():
        return f"{folder.name} is in use by a running assessment"
    return (
        f"{LOCK_NAME} in {folder.name} belongs to another user, who has locked it: choose another "
        "folder"
    )


def _refuse_above(folder: Path) -> None:
    if any(map(_is_held, folder.parents)):
        raise ConfigError("output_dir", "is in the folder of a running assessment")


def _refuse_below(folder: Path) -> None:
    folders, seen = deque([folder]), 0
    while folders and seen < MOST_FOLDERS:
        with suppress(OSError), os.scandir(folders.popleft()) as entries:
            below = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
            if any(map(_is_held, below)):
                raise ConfigError("output_dir", "contains the folder of a running assessment")
            folders += below
            seen += len(below)


def _is_held(folder: Path) -> bool:
    """Return whether an assessment of this user is running in ``folder``.

    A lock counts only if no other user can have taken it. Therefore the folder and the lock file
    must belong to this user, the file must have only one hard link, and no other user may have
    access to it. Otherwise, any user who can write to a parent folder could block all runs below
    that folder.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        handle = os.open(folder / LOCK_NAME, flags)
    except OSError:
        return False
    try:
        if not _is_private(os.fstat(handle)) or folder.stat().st_uid != os.geteuid():
            return False
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def _is_private(status: os.stat_result) -> bool:
    """Return whether only this user can have locked a file."""
    ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return ours and status.st_nlink == 1 and not status.st_mode & 0o077


class Allowance:
    """Limit on the bytes that one assessment writes: its queries, journals and records."""

    def __init__(self, most: float = math.inf) -> None:
        self._most = most
        self._written = 0
        self._lock = threading.Lock()

    def count(self, size: int) -> None:
        """Count ``size`` bytes that exist already, without checking the limit."""
        with self._lock:
            self._written += size

    def take(self, size: int) -> None:
        """Count ``size`` bytes. Raises AssessmentFailed if the total exceeds the limit."""
        self.count(size)
        if self._written <= self._most:
            return
        raise AssessmentFailed(
            f"the assessment would write more than {self._most:,.0f} bytes to disk, the allowed "
            "maximum; run fewer queries"
        )


class Journal:
    """An open journal; the caller has locked the folder (``lock_folder``)."""

    def __init__(self, path: Path, allowance: Allowance | None = None) -> None:
        """Open or create the file; remove an incomplete last line.

        The existing content, and each episode, counts towards ``allowance``.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = threading.Lock()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        self._cut_torn_line()
        self._allowance = allowance or Allowance()
        self._allowance.count(os.fstat(self._fd).st_size)

    def _cut_torn_line(self) -> None:
        end = os.fstat(self._fd).st_size
        position = end
        while position > 0:
            start = max(0, position - 65_536)
            newline = os.pread(self._fd, position - start, start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position != end:
            os.ftruncate(self._fd, position)

    def append(self, event: str, **values: Any) -> None:
        """Write one event."""
        self._write(json.dumps({"event": event, **values}, allow_nan=False).encode())

    def episode(self, episode: bytes) -> None:
        """Write a graded episode, given as JSON, and sync it to disk.

        Raises AssessmentFailed if the allowance is exceeded.
        """
        line = b'{"event": "episode", "episode": ' + episode + b"}"
        self._allowance.take(len(line) + 1)
        self._write(line)
        os.fdatasync(self._fd)

    def _write(self, line: bytes) -> None:
        """Write one complete line, from any thread.

        Raises AssessmentFailed if the disk is full; the partial line is removed.
        """
        rest = memoryview(line + b"\n")
        with self._lock:
            end = os.fstat(self._fd).st_size
            try:
                while rest:  # repeats only if the disk is full or a signal arrives
                    rest = rest[os.write(self._fd, rest) :]
            except OSError as error:
                os.ftruncate(self._fd, end)
                raise AssessmentFailed(f"the journal cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
