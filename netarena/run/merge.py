"""Merges the folders of all shards into the folder that a single run would have written.

All data comes from the journals of the shards. Each journal is read twice: first for the positions
of its lines, then episode by episode in the order of the whole run. Memory holds only two numbers
per line of a journal, and the outline of each episode.
"""

from __future__ import annotations

import json
import os
import shutil
from array import array
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from heapq import merge as merge_sorted
from math import fsum
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from netarena.analysis.stats import summarise
from netarena.config import Config, with_seed_text
from netarena.errors import AssessmentFailed, ConfigError, reason_of
from netarena.file import open_regular, read_lines, read_text
from netarena.model import Episode, Outcome, Outline, Query
from netarena.run.assessment import (
    CONFIG_NAME,
    MAY_DIFFER,
    QUERIES_NAME,
    ROLE,
    folder_of,
    keep_earlier,
    make_header,
    make_warnings,
    warn_of_variety,
    write_results,
)
from netarena.run.journal import (
    JOURNAL_NAME,
    MOST_LINE_BYTES,
    Header,
    is_running,
    lock_folder,
    read_ask,
)
from netarena.run.query_store import Variety
from netarena.run.record import make_record
from netarena.run.result import Spool, replace_file, write_json
from netarena.run.shard import Shard, order_indices
from netarena.task.application import Application, configured, explain_version, load
from netarena.task.failure import Losses
from netarena.task.identity import Secrecy

#: Keys in which shards may differ, because they affect neither queries nor verdicts.
FREE = MAY_DIFFER - {"agent_timeout_s", "output_file"}
_SAME = (
    "application",
    "version",
    "prompt_version",
    "seed",
    "participants",
    "participant_config",
    "config",
    "shape",
)

#: Folder in OUT for the files of an unfinished merge.
_STAGING = ".merge"

Told = Callable[[Outline], None]


@dataclass(frozen=True)
class Run:
    """Properties of the whole run to which the shards belong."""

    application: Application
    config: Config
    seed: int
    #: Maps each role to the participant's name in the results.
    participants: Mapping[str, str]
    #: Maps a role to the config keys that only this participant has.
    own: Mapping[str, Mapping[str, Any]]
    #: Data for reaching the agent, from the shard with the lowest number.
    origin: Mapping[str, Any] | None
    #: Number of shards.
    of: int
    #: Indices of all queries, in the order in which an unsharded run asks them.
    order: Sequence[int]

    def header(self, config: Config, role: str) -> Header:
        """Return the header of a participant's journal in a run of ``config``."""
        told = config.with_own(role, self.own.get(role, {}))
        header = make_header(self.application, config, Secrecy.OPEN)
        header["config"] = make_header(self.application, told, Secrecy.OPEN)["config"]
        return Header.model_validate({**header, "role": role})

    def query_id(self, index: int) -> str:
        """Return the id of the query with this index."""
        return self.application.query_id(self.config, self.seed, index)


@dataclass(frozen=True)
class Gap:
    """Queries of one shard that have no verdict yet."""

    shard: Shard
    #: Ids of the missing queries, in the order of the run.
    queries: Sequence[str]
    #: Number of queries of the shard.
    size: int
    #: The shard's folder; None if it was not given.
    folder: Path | None = None
    #: Whether an assessment is in progress in the folder.
    running: bool = False
    #: The reason why the assessment failed, if it failed.
    failed: str = ""


@dataclass
class _Lines:
    """Byte offsets of a journal's lines. Each line belongs to a request (a query and repetition).

    ``places`` and ``offsets`` have an element for each line that precedes a verdict: the position
    of the line's request in the shard's order, and the line's offset.
    """

    places: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    #: Offset of the last episode of each request, plus one; 0 for a request without an episode.
    episodes: array[int] = field(default_factory=lambda: array("Q"))
    failed: str = ""
    #: Cost of the replies, in a run with a cost limit.
    cost_usd: float | None = None

    def sort(self) -> None:
        """Sort ``offsets`` by ``places``; lines of the same request keep their order."""
        ranks = sorted(range(len(self.places)), key=self.places.__getitem__)
        self.places = array("Q", (self.places[rank] for rank in ranks))
        self.offsets = array("Q", (self.offsets[rank] for rank in ranks))


@dataclass
class _Part:
    """One shard's folder."""

    folder: Path
    shard: Shard
    #: Indices of the shard's queries, in the order in which they are asked.
    order: Sequence[int]
    #: Byte offset of each query in ``queries.jsonl``, plus one; 0 for a missing query.
    queries: array[int]
    #: Lines of the journals, by role.
    lines: dict[str, _Lines] = field(default_factory=dict)

    def read_query(self, place: int) -> Query:
        return Query.model_validate_json(
            _read_line(self.folder / QUERIES_NAME, self.queries[place] - 1)
        )


@dataclass
class Shards:
    """The shards of one run, read and checked; ``merge`` joins them."""

    run: Run
    parts: Mapping[int, _Part]
    gaps: Sequence[Gap]
    #: Given folders that do not contain a run.
    empty: Sequence[Path]

    @property
    def episodes(self) -> int:
        """Return the number of episodes of the whole run."""
        return len(self.run.order) * self.run.config.repeats * len(self.run.participants)


def read_shards(folders: Sequence[Path]) -> Shards:
    """Read and compare the folders of shards.

    Raises ConfigError if the folders are not shards of one run, if a shard is given twice, or if a
    folder cannot be read. Queries without a verdict are not an error; ``gaps`` contains them.
    """
    held: dict[Path, dict[str, Any]] = {}
    empty = []
    for folder in folders:
        if folder in held:
            raise ConfigError("SHARD", f"{folder} is given twice")
        if (told := _read_config(folder)) is None:
            empty.append(folder)
        else:
            held[folder] = told
    if not held:
        raise ConfigError(
            "SHARD", f"{folders[0]} contains no {CONFIG_NAME}: it is not the folder of a shard"
        )
    shards = {folder: _shard_of(folder, told) for folder, told in held.items()}
    lowest = min(held, key=lambda folder: shards[folder].index)
    seen: dict[Shard, Path] = {}
    for folder, shard in shards.items():
        if shard.of != shards[lowest].of:
            raise ConfigError(
                "SHARD",
                f"{folder} is shard {shard}, but {lowest} is shard {shards[lowest]}: all shards "
                "must come from a run split into the same number of parts",
            )
        if shard in seen:
            raise ConfigError("SHARD", f"shard {shard} is given twice: {seen[shard]} and {folder}")
        seen[shard] = folder
        _compare(lowest, held[lowest], folder, held[folder])
    run = _read_run(lowest, held[lowest], shards[lowest].of)
    parts = {shards[folder].index: _read_part(run, folder, shards[folder]) for folder in held}
    gaps = [gap for gap in (_find_gap(run, n, parts.get(n)) for n in range(run.of)) if gap]
    return Shards(run, parts, gaps, empty)


def _read_config(folder: Path) -> dict[str, Any] | None:
    """Return the content of ``config.json``; None if the file is missing. Raises ConfigError."""
    path = folder / CONFIG_NAME
    try:
        told = json.loads(read_text(path))
        dict(told["config"]), dict(told["participants"])
    except FileNotFoundError:
        if not folder.is_dir():
            raise ConfigError("SHARD", f"{folder} is not a directory") from None
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "SHARD", f"{path} is not the config of a run ({reason_of(error)})"
        ) from None
    return dict(told)


def _shard_of(folder: Path, told: Mapping[str, Any]) -> Shard:
    if "shard" not in told:
        raise ConfigError(
            "SHARD",
            f"{folder} contains a whole run, not a shard; 'netarena run --shard I/N' "
            "creates shards",
        )
    return Shard.parse(str(told["shard"]))


def _compare(first: Path, one: Mapping[str, Any], second: Path, other: Mapping[str, Any]) -> None:
    """Raise ConfigError, which names the first difference, for two shards of different runs."""
    for what in _SAME:
        left, right = one.get(what), other.get(what)
        if what == "config":
            for key in sorted({*one[what], *other[what]} - FREE):
                pair = one[what].get(key), other[what].get(key)
                _refuse_difference(first, pair[0], second, pair[1], f"{what}.{key}")
        elif what == "participants" and left != right:
            raise ConfigError(
                "SHARD",
                f"{first} has the participants {_text(left)}, but {second} has {_text(right)}; "
                "give the same --name to all shards of one agent",
            )
        else:
            _refuse_difference(first, left, second, right, what)


def _refuse_difference(first: Path, left: Any, second: Path, right: Any, what: str) -> None:
    if left != right:
        raise ConfigError(
            "SHARD", f"{first} has {what} {_text(left)}, but {second} has {_text(right)}"
        )


def _text(value: Any) -> str:
    return f"{json.dumps(value, ensure_ascii=False):.200}"


def _read_run(folder: Path, told: Mapping[str, Any], of: int) -> Run:
    application = load(str(told.get("application")))
    application, config = configured(application, told["config"])
    if config.seed is None or told.get("secrecy", Secrecy.OPEN) != Secrecy.OPEN:
        raise ConfigError(
            "SHARD", f"{folder} was not created by 'netarena run --seed S --shard I/N'"
        )
    if told.get("version") != application.version_of(config):
        why = explain_version(application, str(told.get("version")))
        raise ConfigError(
            "SHARD", f"{folder} {why}: run 'netarena merge' of the release that created this folder"
        )
    if told.get("prompt_version", 1) != application.prompt_version:
        raise ConfigError(
            "SHARD",
            f"{folder} has prompt_version {told.get('prompt_version', 1)}, but this release has "
            f"{application.prompt_version}: run 'netarena merge' of the release that created "
            "this folder",
        )
    names = {str(role): str(name) for role, name in told["participants"].items()}
    if strange := [role for role in names if not ROLE.fullmatch(role)]:
        raise ConfigError(
            "SHARD",
            f"{folder} has the role {strange[0]!r:.80}, which does not match {ROLE.pattern}",
        )
    order = array("Q", order_indices(application, config, config.seed))
    own = told.get("participant_config", {})
    return Run(application, config, config.seed, names, own, told.get("agent"), of, order)


def _read_part(run: Run, folder: Path, shard: Shard) -> _Part:
    order = run.order[shard.index :: shard.of]
    part = _Part(folder, shard, order, array("Q", bytes(8 * len(order))))
    ids = _read_ids(run, part)
    for role in run.participants:
        path = folder_of(role, run.participants, folder) / JOURNAL_NAME
        try:
            part.lines[role] = _read_lines(run, path, role, ids, len(order))
        except OSError as error:
            raise ConfigError("SHARD", f"{path} cannot be read: {error.strerror}") from None
    return part


def _read_ids(run: Run, part: _Part) -> dict[str, int]:
    """Find the queries of a shard in its ``queries.jsonl``, and store their offsets in ``part``.

    Returns the position of each query in the shard's order, by id. Raises ConfigError for a query
    of another shard, and for a query that occurs twice.
    """
    path = part.folder / QUERIES_NAME
    places = {index: place for place, index in enumerate(part.order)}
    ids: dict[str, int] = {}
    position = 0
    try:
        for line in read_lines(path):
            index = json.loads(line)["index"]
            place = places.get(index)
            if place is None:
                raise ConfigError(
                    "SHARD",
                    f"{path} contains query {index}, which does not belong to shard {part.shard}",
                )
            if part.queries[place]:
                raise ConfigError("SHARD", f"{path} contains query {index} twice")
            part.queries[place] = position + 1
            ids[run.query_id(index)] = place
            position += len(line)
    except FileNotFoundError:
        pass  # the shard was stopped before it wrote the file, so every query is missing
    except OSError as error:
        raise ConfigError("SHARD", f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError("SHARD", f"{path} contains a line that is not a query") from None
    return ids


def _read_lines(run: Run, path: Path, role: str, ids: Mapping[str, int], queries: int) -> _Lines:
    """Return the offsets of each request's lines in a journal; omit an incomplete last line.

    Raises ConfigError for a journal of another run, and OSError.
    """
    lines = _Lines(episodes=array("Q", bytes(8 * queries * run.config.repeats)))
    if not path.exists():
        return lines
    expected = run.header(run.config, role)
    position = 0
    for number, line in enumerate(read_lines(path, MOST_LINE_BYTES), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            event = json.loads(line)
            kind = event["event"]
            if kind == "assessment":
                event["header"].pop("seed_text", None)
                if not Header.model_validate(event["header"]).same_run(expected):
                    raise ConfigError("SHARD", f"{path} belongs to another run")
            elif kind in {"start", "retry", "episode"}:
                ask = read_ask(event["episode"] if kind == "episode" else event)
                place = ids[ask.query_id] + (ask.repeat - 1) * queries
                if kind == "episode":
                    lines.episodes[place] = position + 1
                else:
                    lines.places.append(place)
                    lines.offsets.append(position)
            elif kind == "anew":
                lines = _Lines(episodes=array("Q", bytes(8 * queries * run.config.repeats)))
            elif kind == "end":
                lines.failed = str(event.get("failed", ""))
                lines.cost_usd = event.get("cost_usd", lines.cost_usd)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            raise ConfigError(
                "SHARD", f"{path}, line {number}: this line is not an event of this run"
            ) from None
        position += len(line)
    lines.sort()
    return lines


def _find_gap(run: Run, number: int, part: _Part | None) -> Gap | None:
    """Return the queries of a shard that lack a verdict; None if the shard is complete."""
    shard = Shard(number, run.of)
    if part is None:
        missing = [run.query_id(index) for index in run.order[number :: run.of]]
        return Gap(shard, missing, len(missing)) if missing else None
    size = len(part.order)
    running = is_running(part.folder)
    missing = [
        run.query_id(index)
        for place, index in enumerate(part.order)
        if not part.queries[place]
        or not all(all(lines.episodes[place::size]) for lines in part.lines.values())
    ]
    if not missing and not running:
        return None
    failed = next((lines.failed for lines in part.lines.values() if lines.failed), "")
    return Gap(shard, missing, size, part.folder, running, failed)


def merge(shards: Shards, out: Path, told: Told = lambda _: None) -> dict[str, dict[str, Any]]:
    """Write the folder of the whole run; return its summaries by role.

    ``shards`` must have no gaps. ``told`` is called with the outline of each episode. If merging
    succeeds, an earlier run in ``out`` is moved to ``earlier-N/``. Raises ConfigError, and
    AssessmentFailed if the whole run would have failed.
    """
    run = shards.run
    if any(out.resolve() == part.folder.resolve() for part in shards.parts.values()):
        raise ConfigError("OUT", f"{out} is the folder of a shard; choose another folder")
    # the config that a single run in ``out``, which was not resumed, would have stored
    config = run.config.model_copy(update={"output_dir": str(out), "resume": False})
    header = make_header(run.application, config, Secrecy.OPEN)
    try:
        with lock_folder(out), _staged(out) as staging:
            replace_file(staging / QUERIES_NAME, _queries(shards))
            summaries = {
                role: _merge_role(shards, config, role, staging, told) for role in run.participants
            }
            had: dict[str, Any] = {"agent": dict(run.origin)} if run.origin else {}
            if run.own:
                had["participant_config"] = dict(run.own)
            names = dict(run.participants)
            write_json(
                staging / CONFIG_NAME, with_seed_text({**header, "participants": names, **had})
            )
    except OSError as error:
        raise ConfigError("OUT", f"{out} cannot be written: {error.strerror}") from None
    return summaries


@contextmanager
def _staged(out: Path) -> Generator[Path]:
    """Yield an empty folder; at the end, its files replace an earlier run in ``out``."""
    staging = out / _STAGING
    shutil.rmtree(staging, ignore_errors=True)  # the folder exists if an earlier merge was killed
    staging.mkdir()
    try:
        yield staging
        keep_earlier(out)
        made = [path.relative_to(staging) for path in staging.rglob("*") if path.is_file()]
        # the config is last, because a folder with a config counts as a run
        for name in sorted(made, key=lambda name: name == Path(CONFIG_NAME)):
            (out / name).parent.mkdir(exist_ok=True)
            (staging / name).replace(out / name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _queries(shards: Shards) -> Iterator[str]:
    """Yield the lines of ``queries.jsonl`` in order of index."""

    def of(part: _Part) -> Iterator[tuple[int, str]]:
        for line in read_lines(part.folder / QUERIES_NAME):
            yield json.loads(line)["index"], line.decode()

    streams = [of(part) for part in shards.parts.values()]
    return (line for _, line in merge_sorted(*streams))


def _merge_role(shards: Shards, config: Config, role: str, out: Path, told: Told) -> dict[str, Any]:
    """Write journal and results of one participant; return its summary."""
    run = shards.run
    folder = folder_of(role, run.participants, out)
    folder.mkdir(parents=True, exist_ok=True)
    outlines: list[Outline] = []
    variety = Variety()
    losses, answered = Losses(), False
    costs = [part.lines[role].cost_usd for part in shards.parts.values()]
    known = [cost for cost in costs if cost is not None]
    spent = fsum(known) if known else None

    def journal(spool: Spool) -> Generator[str]:
        nonlocal answered
        header = with_seed_text(run.header(config, role).model_dump(mode="json"))
        yield json.dumps({"event": "assessment", "header": header}) + "\n"
        for part, place, before, line in _asks(shards, role):
            yield from before
            yield line
            episode, query = _read_episode(part, role, line), part.read_query(place)
            spool.append(make_record(run.application, query, episode))
            answered = answered or episode.answered
            silent = episode.outcome is Outcome.UNSOLVED and not episode.answered
            if episode.outcome is Outcome.AGENT_FAILED or silent:
                losses.add(episode.reason, episode.detail)
            outlines.append(episode.outline(query))
            if episode.repeat == 1:
                variety.add(query)
            told(outlines[-1])
        if all(outline.outcome is Outcome.INVALID for outline in outlines):
            raise AssessmentFailed(
                f"no query could be graded; the first failure: {outlines[0].detail}"
            )
        if not answered:
            raise AssessmentFailed(
                f"the agent {run.participants[role]} did not reply in any episode "
                f"({losses.episodes} played); {losses.commonest()}"
            )
        cost = {} if spent is None else {"cost_usd": spent, "max_cost": False}
        yield json.dumps({"event": "end", "complete": True, **cost}) + "\n"

    with Spool(folder) as spool:
        with closing(journal(spool)) as lines:
            replace_file(folder / JOURNAL_NAME, lines)
        own = config.with_own(role, run.own.get(role, {}))
        summary = summarise(run.application, own, run.seed, outlines)
        summary |= make_warnings(
            run.application,
            role,
            alone=len(run.participants) == 1,
            scarce=warn_of_variety(variety),
        )
        names = {role: run.participants[role]}
        write_results(folder, names, spool, summary, config.output_file)
    return summary


def _asks(shards: Shards, role: str) -> Iterator[tuple[_Part, int, list[str], str]]:
    """Yield a participant's requests (query and repetition) in the order of the whole run.

    Each item is the request's shard, the position of its query in the shard, the journal's lines
    before the verdict, and the line with the verdict.
    """
    run = shards.run
    # for each shard, the index in ``places`` of the next line
    next_line = [0] * run.of
    for repeat in range(run.config.repeats):
        for rank in range(len(run.order)):
            place, number = divmod(rank, run.of)
            part = shards.parts[number]
            lines, ask = part.lines[role], place + repeat * len(part.order)
            path = folder_of(role, run.participants, part.folder) / JOURNAL_NAME
            before = []
            while (at := next_line[number]) < len(lines.places) and lines.places[at] <= ask:
                before.append(_read_line(path, lines.offsets[at]).decode())
                next_line[number] += 1
            yield part, place, before, _read_line(path, lines.episodes[ask] - 1).decode()


def _read_episode(part: _Part, role: str, line: str) -> Episode:
    try:
        return Episode.model_validate(json.loads(line)["episode"])
    except (ValidationError, ValueError) as error:
        raise ConfigError(
            "SHARD",
            f"{part.folder}: an episode of {role} was written by another version: {error!s:.200}",
        ) from None


def _read_line(path: Path, offset: int) -> bytes:
    """Return one line of a file. The file is opened for each line, because there may be many
    shards."""
    with open_regular(path) as file:
        file.seek(offset, os.SEEK_SET)
        return file.readline()
