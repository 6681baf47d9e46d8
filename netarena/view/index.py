"""Index of journals by file offset: outlines in memory, whole episodes read on request.

A journal may contain gigabytes and may still grow. The index parses each line once, only for the
fields that a list of episodes shows, and stores the line's offset.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ValidationError

from netarena.config import Config
from netarena.errors import ConfigError
from netarena.file import open_regular
from netarena.model import (
    AgentInfo,
    Ask,
    Episode,
    Failure,
    Finding,
    JsonValue,
    Localised,
    Outcome,
    Outline,
    Query,
    Record,
    Usage,
    outlined,
    storable,
)
from netarena.report.entrant import terms_of_run
from netarena.report.story import Story, Turn, is_lost, move_text, tell, why
from netarena.report.table import public_id
from netarena.run.archive import find_participants
from netarena.run.assessment import QUERIES_NAME
from netarena.run.journal import JOURNAL_NAME, MOST_LINE_BYTES, Header, is_running, read_events
from netarena.task.application import Application, forwarded, load
from netarena.view.corpus import Corpus
from netarena.view.text import visible

log = logging.getLogger(__name__)
#: Maximum number of characters of a reason in a list.
WHY_CHARS = 400
#: Maximum time in s for which a journal is read without a pause.
_SLICE_S = 0.2
#: Time in s between checks of completely read journals, and between searches for new runs.
_LOOK_EVERY_S, _SCAN_EVERY_S = 0.5, 1.0
#: Pattern of query ids that can be used as the name of a page.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

R = TypeVar("R", bound=Record)


# These models have only the fields of a journal's line that a list shows. Skipping the other fields
# is five times as fast as parsing them.


class _Judgement(BaseModel):
    correct: bool
    findings: tuple[Finding, ...] = ()
    detail: Annotated[Any, BeforeValidator(outlined)] = None


class _Reply(BaseModel):
    text: str = ""


class _Step(BaseModel):
    reply: _Reply | None = None
    refused: str | None = None
    move: Any = None
    output: str = ""
    judgement: _Judgement | None = None


class _Episode(BaseModel):
    query_id: str
    repeat: int = 1
    index: int
    label: str
    level: str
    role: str
    agent: AgentInfo
    outcome: Outcome
    correct: bool = False
    safe: bool = False
    iterations: int = 0
    reason: str = ""
    detail: str = ""
    failure: Failure | None = None
    noted: tuple[str, ...] = ()
    claimed: bool | None = None
    claim_right: bool | None = None
    localised: Localised | None = None
    turns_healthy: int | None = None
    steps: tuple[_Step, ...] = ()
    agent_time_s: float = 0.0
    execution_time_s: float = 0.0
    own_time_s: float = 0.0
    world_s: float = 0.0
    queue_s: float = 0.0
    usage: Usage | None = None


class _Line(BaseModel):
    event: str
    episode: _Episode | None = None
    complete: bool = False
    header: Header | None = None


class _QueryLine(BaseModel):
    id: str
    seed: int
    text: str = ""


class Place(NamedTuple):
    """Position and size of a line in its file, in bytes."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A graded episode as a list shows it."""

    run: Run
    outline: Outline
    #: Number among the episodes of the run in order of grading, starting at 0.
    number: int
    #: Name of the episode's page, unique within its run.
    name: str
    agent: str
    why: str
    lost: bool
    place: Place

    @property
    def path(self) -> str:
        """Return the path of the episode's page relative to the site."""
        return f"episode/{self.run.slug}/{self.name}.html"


class Run:
    """One participant of a stored assessment, whose journal is read as it grows."""

    def __init__(self, folder: Path, home: Path, slug: str, *, public: bool = False) -> None:
        """Open a run.

        With ``public``, ground truth and all data that reveals ground truth is omitted: ids are
        sealed, and reasons, findings, states, pictures and the seed are left out. Raises
        ConfigError if ``folder`` does not contain a journal that describes the run.
        """
        header = _read_header(folder)
        self.folder = folder
        self.slug = slug
        self.public = public
        self.header: Header = header
        self.application: Application = forwarded(load(header.application), header.config)
        self.complete = False
        #: Whether the run was still in progress (its folder was locked) at the last check.
        self.running = False
        #: Error messages about lines of the journal that this version cannot read.
        self.problems: list[str] = []
        self._home = home
        #: Name that distinguishes the run from other runs. The library may add more parts of the
        #: path.
        self.title = self.name(1)
        self._path = folder / JOURNAL_NAME
        self._queries_path = home / QUERIES_NAME
        #: Query id as shown -> position of the query's line in the queries file.
        self._queries: dict[str, Place] = {}
        #: Query id as shown -> ``Query.content``.
        self._contents: dict[str, str] = {}
        #: Query id -> sealed id, for a public run.
        self._sealed: dict[str, str] = {}
        #: Texts of episodes by ``Ask``, and texts of tasks by query id.
        self._corpus: Corpus[Ask | str] = Corpus()
        self._originals = 0
        self._queries_bytes = -1
        self._entries: dict[Ask, Entry] = {}
        self._names: dict[str, Ask] = {}
        #: Number of bytes and of lines of the journal that have been read, and the file's inode.
        self._offset = 0
        self._lines = 0
        self._file = -1
        self._lock = threading.Lock()

    def name(self, depth: int) -> str:
        """Return the last ``depth`` parts of the run's path, plus the participant's subfolder."""
        depth += self.folder != self._home
        return "/".join(self.folder.resolve().parts[-depth:]).replace("//", "/")

    @property
    def config(self) -> Config:
        """Return the config of the run. Raises ConfigError if this version cannot read it."""
        return self.application.config_type.parse(self.header.config)

    @property
    def terms(self) -> dict[str, JsonValue]:
        """Return the settings that must be equal for two runs to be compared.

        Raises ConfigError if this version cannot read the config.
        """
        whole = len(self.entries) >= self.asked
        return terms_of_run(self.application, self.header, self.config, complete=whole)

    @property
    def entries(self) -> list[Entry]:
        """Return the last episode of each query and repetition, in the order of grading."""
        with self._lock:
            return list(self._entries.values())

    @property
    def read_bytes(self) -> int:
        """Return the number of bytes of the journal that have been read."""
        return self._offset

    @property
    def size_bytes(self) -> int:
        """Return the size of the journal."""
        try:
            return self._path.stat().st_size
        except OSError:
            return self._offset

    @property
    def agent(self) -> str:
        """Return the name of the agent, or "" before the first episode."""
        with self._lock:
            return next((entry.agent for entry in self._entries.values()), "")

    @property
    def repeats(self) -> int:
        """Return the number of repetitions of each query."""
        repeats = self.header.config.get("repeats", 1)
        return repeats if isinstance(repeats, int) else 1

    @property
    def going(self) -> bool:
        """Return whether the run is in progress: it is not complete, and its folder is locked."""
        return self.running and not self.complete and len(self.entries) < self.asked

    @property
    def asked(self) -> int:
        """Return the number of episodes that the complete run will have."""
        return self._originals * self.repeats

    def find(self, name: str) -> Entry | None:
        """Return the entry whose page has this name, or None."""
        with self._lock:
            ask = self._names.get(name)
            return self._entries.get(ask) if ask is not None else None

    def answer(self, ask: Ask) -> Entry | None:
        """Return the entry for this query and repetition, or None."""
        with self._lock:
            return self._entries.get(ask)

    def search(self, text: str) -> set[Ask]:
        """Return the query and repetition of each episode that contains ``text``, ignoring case.

        The search covers query id, task, commands, replies, outputs, findings and reason.
        """
        found = self._corpus.find(text)
        with self._lock:
            return {ask for ask in self._entries if ask in found or ask.query_id in found}

    def words(self, entry: Entry) -> str:
        """Return the lower-cased texts of an episode that ``search`` covers."""
        return self._corpus.read(entry.outline.ask) + self._corpus.read(entry.outline.query_id)

    def look(self) -> bool:
        """Update ``running``; return whether its value has changed."""
        before = self.running
        self.running = not self.complete and is_running(self._home)
        return self.running is not before

    def catch_up(self, limit_s: float = math.inf) -> bool:
        """Read new lines of the journal for at most ``limit_s``; return whether any were read.

        An incomplete last line is left for the next call. Raises OSError.
        """
        until = time.monotonic() + limit_s
        with open_regular(self._path) as file:
            self._begin(os.fstat(file.fileno()))
            start = self._offset
            file.seek(start)
            while time.monotonic() < until:
                line = file.readline(MOST_LINE_BYTES)
                if not line.endswith(b"\n"):
                    break
                self._lines += 1
                self._take(line, Place(self._offset, len(line)))
                self._offset += len(line)
        return self._offset != start

    def tell(self, entry: Entry) -> Story:
        """Return the story of an episode. Raises ConfigError if the journal lacks the episode."""
        episode = self.read(entry)
        place = self._queries.get(episode.query_id)
        if place is None:
            raise ConfigError("query", f"{episode.query_id} is not in {QUERIES_NAME}")
        query = _parse(Query, _read_at(self._queries_path, place), self._queries_path)
        if not self.public:
            return tell(self.application, query, episode)
        turns = (
            Turn(number, step, move_text(step.move), pictures=(), turned=())
            for number, step in enumerate(episode.steps, start=1)
        )
        query = query.model_copy(update={"id": episode.query_id})
        return Story(query, episode, _reason(episode), actions=(), pictures=(), turns=tuple(turns))

    def read(self, entry: Entry) -> Episode:
        """Return a whole episode from the journal. Raises ConfigError like ``tell``."""
        event = _read_at(self._path, entry.place)
        episode = event.get("episode") if isinstance(event, dict) else None
        read = _parse(Episode, episode, self._path)
        return _without_truth(read, self.shown_id(read.query_id)) if self.public else read

    def shown_id(self, query_id: str) -> str:
        """Return the id under which a query is shown."""
        if not self.public:
            return query_id
        return self._sealed.get(query_id) or public_id(query_id, self.header.seed)

    def _read_more_queries(self) -> None:
        if self._queries_path.stat().st_size != self._queries_bytes:
            self._queries.clear()
            self._read_queries()

    def _read_queries(self) -> None:
        offset = 0
        originals: set[str] = set()
        with open_regular(self._queries_path) as file:
            while line := file.readline(MOST_LINE_BYTES):
                with suppress(ValidationError):  # ``tell`` reports that the query is missing
                    query = _QueryLine.model_validate_json(line)
                    if self.public:
                        self._sealed[query.id] = public_id(query.id, query.seed)
                    shown = self.shown_id(query.id)
                    if shown not in self._queries:
                        self._queries[shown] = Place(offset, len(line))
                        self._contents[shown] = _content(line)
                        self._corpus.add(shown, [query.text])
                    originals.add(query.id if query.seed == self.header.seed else "")
                offset += len(line)
        # Replacement queries have other seeds and do not add to the number of queries.
        self._originals = len(originals - {""})
        self._queries_bytes = offset

    def _begin(self, status: os.stat_result) -> None:
        """Discard all data and start again if the journal was replaced or truncated."""
        if status.st_ino == self._file and status.st_size >= self._offset:
            return
        self.header = _read_header(self.folder)
        with self._lock:
            self._entries.clear()
            self._names.clear()
        self._queries.clear()
        self._contents.clear()
        self._corpus.clear()
        self._read_queries()
        self.problems.clear()
        self.complete = False
        self._file, self._offset, self._lines = status.st_ino, 0, 0

    def _take(self, line: bytes, place: Place) -> None:
        try:
            event = _read_event(line)
        except ValueError:
            self.problems.append(
                f"line {self._lines} of the journal was not written by this version"
            )
            return
        if event.event in {"assessment", "end"}:
            self.complete = event.complete
        self.header = event.header or self.header
        if event.event in {"assessment", "replaced"}:  # new queries may have been added
            self._read_more_queries()
        # the run was restarted, so episodes before the restart do not count
        if event.event == "anew":
            with self._lock:
                self._entries.clear()
                self._names.clear()
        if event.episode is None:
            return
        episode = _slim(event.episode)
        if self.public:
            episode = _without_truth(episode, self.shown_id(episode.query_id))
        reason = visible((_reason if self.public else why)(episode)[:WHY_CHARS])
        texts = _texts(event.episode, public=self.public)
        self._corpus.add(episode.ask, [episode.query_id, reason, *texts])
        with self._lock:
            old = self._entries.get(episode.ask)
            entry = Entry(
                run=self,
                outline=replace(
                    episode.outline(), content=self._contents.get(episode.query_id, "")
                ),
                number=old.number if old else len(self._entries),
                name=self._name(episode.ask),
                agent=sys.intern(episode.agent.name),
                why=reason,
                lost=is_lost(episode),
                place=place,
            )
            self._entries[episode.ask] = entry
            self._names[entry.name] = episode.ask

    def _name(self, ask: Ask) -> str:
        """Return the name of an episode's page.

        The name is the query's id if it is a valid file name, otherwise the query's position.
        Repetitions after the first get a suffix.
        """
        name = ask.query_id
        if not _PLAIN.fullmatch(name):
            stands = list(self._queries).index(name) if name in self._queries else self._lines
            name = f"~{stands}" if name in self._queries else f"~~{stands}"
        return name if ask.repeat == 1 else f"{name}~{ask.repeat}"


def _content(line: bytes) -> str:
    """Return the digest ``Query.content`` of a line of ``queries.jsonl`` without parsing the line.

    The digest covers the last keys of the line: text, initial state and actions.
    """
    _, key, rest = line.rstrip().partition(b'"text":')
    return hashlib.sha256(b"{" + key + rest).hexdigest()[:16] if key else ""


class Library:
    """The runs that the viewer shows, in the order in which they were given or found."""

    def __init__(
        self, folders: Sequence[Path], *, watch: bool = False, public: bool = False
    ) -> None:
        """Open the runs in ``folders``, which are runs or participants, or contain runs.

        With ``public``, ground truth is omitted. With ``watch``, the library also finds runs that
        start later, so folders may be empty. Raises ConfigError.
        """
        self.runs: list[Run] = []
        self._folders = tuple(folders)
        self._watch = watch
        self._public = public
        self._scanned = -math.inf
        for folder in folders:
            try:
                for home, place in _find(folder):
                    self._add(home, place)
            except ConfigError:
                if not (watch and folder.is_dir()):
                    raise
        #: Number that increases with each change of the runs' contents.
        self.generation = 0
        #: Errors that occurred while reading runs; each error is reported once.
        self._problems: dict[str, str] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def _add(self, home: Path, place: Path) -> bool:
        """Add the run in ``place`` unless the library has it already; return whether it was added.

        Raises ConfigError if the journal does not describe the run.
        """
        if any(run.folder == place or run.folder.samefile(place) for run in list(self.runs)):
            return False
        if self._public:  # the folder's name is not shown, because it may contain the seed
            number = len(self.runs) + 1
            self.runs.append(Run(place, home, f"run-{number}", public=True))
            self.runs[-1].title = f"run {number}"
            return True
        words = home.resolve().name if place == home else f"{home.resolve().name}-{place.name}"
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", words).strip("-.")[:60] or "run"
        taken = {run.slug.lower() for run in self.runs}
        slug, number = plain, 1
        while slug.lower() in taken:
            number += 1
            slug = f"{plain}-{number}"
        self.runs.append(Run(place, home, slug))
        _tell_apart(self.runs)
        return True

    def _scan(self) -> bool:
        """Search for newly started runs; return whether any were found."""
        if not self._watch or time.monotonic() < self._scanned + _SCAN_EVERY_S:
            return False
        new = False
        for folder in self._folders:
            # the journal of a run that has not started yet cannot be read
            with suppress(ConfigError, OSError):
                for home, place in _find(folder):
                    with suppress(ConfigError, OSError):
                        new |= self._add(home, place)
        self._scanned = time.monotonic()
        return new

    @property
    def entries(self) -> list[Entry]:
        """Return the entries of all runs."""
        return [entry for run in self.runs for entry in run.entries]

    @property
    def progress(self) -> tuple[int, int]:
        """Return the number of bytes read from all journals, and the journals' total size."""
        read = sum(run.read_bytes for run in self.runs)
        return read, max(read, sum(run.size_bytes for run in self.runs))

    def run(self, slug: str) -> Run | None:
        """Return the run with this name in paths, or None."""
        return next((run for run in self.runs if run.slug == slug), None)

    def find_episode(self, name: str) -> Entry:
        """Return the episode with the name ``ID``, or ``ID~K`` for the query's K-th repetition.

        Raises ConfigError unless exactly one run has this episode.
        """
        found = []
        for run in self.runs:
            base, apart, repeat = name.partition("~")
            entry = run.find(name) or run.find(f"{run.shown_id(base)}{apart}{repeat}")
            found += [entry] if entry else []
        if not found:
            raise ConfigError("--episode", f"no run here has a graded episode {name!r}")
        if len(found) > 1:
            titles = ", ".join(entry.run.title for entry in found)
            raise ConfigError(
                "--episode", f"{name!r} is in several runs ({titles}): give only one DIR"
            )
        return found[0]

    def catch_up(self, limit_s: float = math.inf) -> bool:
        """Read each journal for a limited time; return whether new lines were read."""
        new = self._scan()
        for run in self.runs:
            try:
                new |= run.catch_up(limit_s)
                new |= run.look()
                self._problems.pop(run.slug, None)
            except (OSError, ConfigError) as error:
                if self._problems.get(run.slug) != str(error):
                    log.warning("%s: %s", run.folder, error)
                self._problems[run.slug] = str(error)
        self.generation += new
        return new

    def __enter__(self) -> Self:
        """Start to follow the journals in a thread."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._follow, name="journals", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self) -> None:
        while not self._stopped.is_set():
            if not self.catch_up(_SLICE_S):
                self._stopped.wait(_LOOK_EVERY_S)


def _tell_apart(runs: Sequence[Run]) -> None:
    """Give runs with the same name distinct titles, by adding parts of their paths."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(run.name(1), []).append(run)
    for members in alike.values():
        depth = 1
        while len({run.name(depth) for run in members}) < len(members):
            depth += 1
        for run in members:
            run.title = run.name(depth)


def _find(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield (run's folder, participant's folder) for each participant of the runs in ``folder``."""
    try:
        home, places = find_participants(folder)
    except ConfigError:
        below = [] if not folder.is_dir() else sorted(folder.glob(f"*/{QUERIES_NAME}"))
        if not below:
            raise
        for path in below:
            with suppress(ConfigError):  # this is the folder of a run that has not started
                home, places = find_participants(path.parent)
                yield from ((home, place) for place in places)
        return
    yield from ((home, place) for place in places)


def _read_header(folder: Path) -> Header:
    for event in read_events(folder / JOURNAL_NAME):
        try:
            return Header.model_validate(event.get("header"))
        except ValidationError:
            break
    raise ConfigError(
        "directory", f"the journal in {folder} does not name its application and config"
    )


def _read_event(line: bytes) -> _Line:
    """Parse the event in a line of a journal. Raises ValueError for an invalid line."""
    try:
        return _Line.model_validate_json(line)
    except ValidationError:  # lone surrogates are invalid for pydantic's parser
        return _Line.model_validate(storable(_load(line)))


def _reason(episode: Episode) -> str:
    """Return the reason of an agent failure, otherwise "". Public runs show no other reasons."""
    return episode.reason if episode.outcome is Outcome.AGENT_FAILED else ""


def _without_truth(episode: Episode, shown_id: str) -> Episode:
    """Return an episode with ``shown_id`` and without ground truth, as ``--public`` exports it."""
    steps = [
        step.model_copy(
            update={
                "state": None,
                "judgement": step.judgement
                and step.judgement.model_copy(
                    update={
                        "reason": "",
                        "detail": None,
                        "noted": (),
                        "findings": tuple(
                            Finding(rule=finding.rule, element="", detail="")
                            for finding in step.judgement.findings
                        ),
                    }
                ),
            }
        )
        for step in episode.steps
    ]
    failure = episode.failure and episode.failure.model_copy(update={"detail": ""})
    left_out = {"detail": "", "noted": (), "localised": None, "evidence": (), "initial_state": None}
    left_out |= {"trials": None, "endurance": None}
    shown = {"query_id": shown_id, "steps": tuple(steps), "failure": failure}
    return episode.model_copy(update=left_out | shown)


def _texts(read: _Episode, *, public: bool) -> Iterator[str]:
    """Yield the searchable texts of the steps. Texts that a reply already contains are omitted."""
    for step in read.steps:
        reply = step.reply.text if step.reply else ""
        asked = move_text(step.move)
        yield from (reply, "" if asked in reply else asked, step.output)
        if step.judgement:
            for finding in step.judgement.findings:
                yield from (finding.rule, "" if public else finding.detail)


def _slim(read: _Episode) -> Episode:
    """Return an episode from which an outline can be made; its steps have only the fields of
    ``_Step``.

    Parsing complete steps would double the reading time.
    """
    # interned, because many entries share a few labels and levels
    words = {"label": sys.intern(read.label), "level": sys.intern(read.level)}
    return Episode.model_construct(**dict(read) | words)


def _read_at(path: Path, place: Place) -> Any:
    try:
        with open_regular(path) as file:
            file.seek(place.offset)
            return _load(file.read(place.size))
    except (OSError, ValueError):
        raise ConfigError(path.name, "has changed: reload the page") from None


def _load(line: bytes) -> Any:
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _parse(kind: type[R], value: Any, path: Path) -> R:
    try:
        return kind.model_validate(storable(value))
    except ValueError:
        raise ConfigError(
            path.name, f"contains no {kind.__name__.lower()} that this version can read"
        ) from None
