"""Conducts assessments of agents and writes the result files, for ``netarena run`` and services.

A run's folder contains ``config.json`` (the request, including the seed), ``queries.jsonl``,
``journal.jsonl`` (the authoritative record) and ``results.json`` (in the format of the standard
AgentBeats client). With several participants, each has a folder ``<role>/`` with its own journal
and results. If a folder is used again without ``resume``, its earlier run is moved to
``earlier-N/``.

The folder of a shard (``netarena.run.shard``) has the same files; its ``config.json`` contains the
number of the shard.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import logging
import math
import re
import secrets
from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, takewhile
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn, Protocol

from pydantic import ValidationError

from netarena import telemetry
from netarena.agent.interface import Agent
from netarena.aio import finish
from netarena.analysis.stats import summarise
from netarena.config import SEED_BITS, Config, with_seed_text
from netarena.errors import (
    AgentSilent,
    AssessmentFailed,
    ConfigError,
    one_line,
    reason_of,
    without_folders,
)
from netarena.file import read_lines, read_text
from netarena.model import Outcome, Query
from netarena.run.capacity import Places, Slots
from netarena.run.engine import Order, Run
from netarena.run.executor import Executor, Local, Party
from netarena.run.journal import (
    JOURNAL_NAME,
    Allowance,
    Header,
    Journal,
    Past,
    lies_in_run,
    lock_folder,
    read_journal,
)
from netarena.run.opening import DrawingNotes, Opening
from netarena.run.play import clock
from netarena.run.purse import Account, Purse
from netarena.run.query_store import Deck, Variety
from netarena.run.record import WHY_CHARS, Verdict
from netarena.run.result import Spool, replace_file, replacing, write_document, write_json
from netarena.run.shard import Shard, arrange
from netarena.task.application import Application, explain_version, indices_of
from netarena.task.identity import Secrecy, find_index, read_id, seal, seal_id

CONFIG_NAME = "config.json"
QUERIES_NAME = "queries.jsonl"
RESULTS_NAME = "results.json"
OWN_NAMES = (CONFIG_NAME, QUERIES_NAME, RESULTS_NAME, JOURNAL_NAME)
#: Config keys that may change when a run is resumed, because they affect neither the queries nor
#: the judgement of replies.
MAY_DIFFER = frozenset(
    {
        "agent_client_configs",
        "agent_timeout_s",
        "benchmark_path",
        "concurrency",
        "connect_timeout_s",
        "output_dir",
        "output_file",
        "regenerate_benchmark",
        "regenerate_config",
        "regenerate_query",
        "resume",
        "time_budget_s",
    }
)
#: Default maximum number of live worlds of one process.
MAX_EPISODES = 8
#: Maximum number of queries of one assessment.
MOST_QUERIES = 100_000
#: Time in s for which an assessment draws queries without interruption. Afterwards, a cancellation
#: can take effect, or another assessment can draw its queries.
_STEP_S = 0.02
#: Pause after each step of drawing while worlds are live, as a multiple of the step's time. Without
#: it, drawing would delay episodes, because both run in one interpreter.
_RESTS = 2
#: Pattern of a role, which is also the name of a folder, and of the name of an output file.
ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

log = logging.getLogger(__name__)


class Reporter(Protocol):
    """Receives an assessment's progress, in order.

    A slow receiver delays only the end of the assessment.
    """

    async def planned(self, role: str, total: int) -> None:
        """Called with the number of episodes that will be graded for ``role``."""
        ...

    async def noted(self, role: str, line: str) -> None:
        """Called with a line about ``role`` for the waiting client."""
        ...

    async def graded(self, role: str, record: dict[str, Any]) -> None:
        """Called with the record of an episode that was graded and is in the journal."""
        ...

    async def summarised(self, role: str, summary: dict[str, Any]) -> None:
        """Called with the summary of ``role``, after all other calls for ``role``."""
        ...


class _Silent:
    async def planned(self, role: str, total: int) -> None:
        pass

    async def noted(self, role: str, line: str) -> None:
        pass

    async def graded(self, role: str, record: dict[str, Any]) -> None:
        pass

    async def summarised(self, role: str, summary: dict[str, Any]) -> None:
        pass


def load_queries(path: Path) -> list[Query]:
    """Return the queries of a JSONL file as a list, like ``read_queries``."""
    return list(read_queries(path))


def read_queries(path: Path) -> Iterator[Query]:
    """Yield the queries of a JSONL file. Raises ConfigError with the number of an invalid line."""
    try:
        for number, line in enumerate(read_lines(path), start=1):
            if not line.strip():
                continue
            try:
                query = Query.model_validate_json(line.decode())
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = ".".join(map(str, first["loc"])) or "JSON"
                raise ConfigError(
                    "benchmark_path", f"{path.name}, line {number}: {where}: {first['msg']}"
                ) from None
            yield query
    except OSError as error:
        raise ConfigError(
            "benchmark_path", f"{path.name} cannot be read: {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(
            "benchmark_path", f"{path.name} cannot be read: it is not UTF-8 text"
        ) from None


def choose_queries(
    application: Application,
    config: Config,
    fallback_seed: int | None = None,
    own: Path | None = None,
    shard: Shard | None = None,
) -> tuple[Generator[Query | None], int]:
    """Return the queries of ``config`` in order of index, and their seed.

    With ``shard``, the result contains only the queries of this shard.

    Queries are read from the file ``benchmark_path`` if it exists, unless the config requests new
    queries. Otherwise the queries are drawn, and written to this file if the config names a file.
    The file exists only after the caller has requested all queries.

    The generator draws each query, or reads and checks it, only when the caller requests the query.
    The generator yields None for each query that it skips, and while it writes the file, so that
    the caller may stop at any point.

    ``start_index`` and ``end_index`` (exclusive) select queries by index. A file without
    ``num_queries`` in the config is read completely; otherwise only queries with an index below the
    requested number are selected. If ``config`` has no seed, the seed is that of the file, else
    ``fallback_seed``, else random.

    Raises ConfigError for more than ``MOST_QUERIES`` queries. Also raises ConfigError if the file
    is malformed, was made with other keys or another seed, has fewer queries than requested, or is
    in the folder of a running assessment other than ``own``. The generator raises these errors too.
    """
    if config.benchmark_path is not None and lies_in_run(Path(config.benchmark_path), own):
        raise ConfigError("benchmark_path", "is in the folder of a running assessment")
    if (path := stored_file(config)) is not None:
        if shard is not None:
            return _read_shard(application, config, path, shard)
        whole = "num_queries" in config.model_fields_set
        most = config if whole else config.model_copy(update={"num_queries": MOST_QUERIES})
        return _read_file(application, most, path, whole=whole)
    path = Path(config.benchmark_path) if config.benchmark_path else None
    seed = next(
        given
        for given in (config.seed, fallback_seed, secrets.randbits(SEED_BITS))
        if given is not None
    )
    _check_size(config, application.size(config), shard)
    if shard is not None:
        if path is not None:
            raise ConfigError(
                "benchmark_path",
                "does not exist, and a shard cannot create it: "
                "create the file before you start the shards",
            )
        drawn = application.generate_at(
            config, seed, sorted(shard.indices(application, config, seed))
        )
        return _bound(config, drawn), seed
    if path is None:
        end = math.inf if config.end_index is None else config.end_index
        drawn = application.generate_from(config, seed, config.start_index or 0)
        asked = takewhile(lambda query: query.index < end, drawn)
        return _bound(config, asked), seed
    _check_overwritten(path)
    return _bound(config, _write_queries(path, application.generate(config, seed))), seed


def stored_file(config: Config) -> Path | None:
    """Return the file with the queries that ``config`` uses; None if new queries are drawn."""
    if config.benchmark_path is None or config.regenerate:
        return None
    path = Path(config.benchmark_path)
    return path if path.exists() else None


def with_size_of_file(application: Application, config: Config) -> Config:
    """Return ``config`` with ``num_queries`` from the query file, if ``config`` lacks this key.

    Raises ConfigError for a malformed file.
    """
    path = stored_file(config)
    if path is None or "num_queries" in config.model_fields_set:
        return config
    last = max((query.index for query in read_queries(path)), default=0)
    number = min(last // len(application.labels(config)) + 1, MOST_QUERIES)
    return config.model_copy(update={"num_queries": number})


def _read_file(
    application: Application, config: Config, path: Path, *, whole: bool
) -> tuple[Generator[Query | None], int]:
    """Like ``choose_queries``, return the queries of ``config`` and their seed, from a file.

    With ``whole``, the file must contain every query that ``config`` selects.
    """
    queries, seed = _open_file(config, path)
    bound = _bound(config, _check_file(application, config, path.name, queries, seed))
    return (_check_whole(application, config, path.name, bound) if whole else bound), seed


def _read_shard(
    application: Application, config: Config, path: Path, shard: Shard
) -> tuple[Generator[Query | None], int]:
    """Like ``choose_queries``, return a shard's queries and their seed, from a file.

    The file must contain every query of the shard, so that all shards agree on the order.
    """
    config = with_size_of_file(application, config)
    queries, seed = _open_file(config, path)
    _check_size(config, application.size(config), shard)
    wanted = sorted(shard.indices(application, config, seed))
    inside = set(wanted)
    own = (query for query in queries if query.index in inside)
    checked = _check_file(application, config, path.name, own, seed, wanted)
    return _check_whole(application, config, path.name, checked, wanted), seed


def _open_file(config: Config, path: Path) -> tuple[Iterator[Query], int]:
    """Return the unchecked queries of a file, and the seed of the first query.

    Raises ConfigError if ``config`` has another seed.
    """
    queries = read_queries(path)
    first = next(queries, None)
    if first is None:
        raise ConfigError(
            "benchmark_path",
            f"{path.name} contains no query; set regenerate_query to draw new ones",
        )
    seed = first.seed
    if config.seed is not None and config.seed != seed:
        raise ConfigError(
            "seed",
            f"{config.seed} differs from {seed}, the seed of {path.name}; "
            "omit seed to use the file's seed",
        )
    return chain([first], queries), seed


def _read_own(
    application: Application, config: Config, path: Path, shard: Shard | None
) -> tuple[Generator[Query | None], int]:
    """Like ``choose_queries``, return the queries of a resumed run and their seed, from its file.

    The file may also contain queries of other seeds, which replace queries of the run's seed.
    """
    queries, seed = _open_file(config, path)
    wanted = None if shard is None else sorted(shard.indices(application, config, seed))
    return _check_file(application, config, path.name, queries, None, wanted), seed


def _check_whole(
    application: Application,
    config: Config,
    name: str,
    queries: Iterator[Query | None],
    wanted: Sequence[int] | None = None,
) -> Generator[Query | None]:
    """Yield ``queries``; raise ConfigError at the end if one of the indices ``wanted`` is missing.

    By default, ``wanted`` contains the indices that ``config`` selects.
    """
    wanted = indices_of(application, config) if wanted is None else wanted
    labels = len(application.labels(config))
    found: set[int] = set()
    for query in queries:
        if query is not None:
            found.add(query.index)
        yield query
    if len(found) < len(wanted):
        missing = next(index for index in wanted if index not in found)
        raise ConfigError(
            "benchmark_path",
            f"{name} has {len(found)} of the {len(wanted)} queries that num_queries="
            f"{config.num_queries} requests: the first missing query is query "
            f"{missing // labels + 1} of a label; lower num_queries, omit it to ask all queries "
            "of the file, or set regenerate_query",
        )


def _extend(
    application: Application, config: Config, seed: int, queries: Iterator[Query | None]
) -> Generator[Query | None]:
    """Yield a run's existing ``queries``, then the other queries that ``config`` selects."""
    _check_size(config, application.size(config))
    found: set[int] = set()
    for query in queries:
        if query is not None:
            found.add(query.index)
        yield query
    wanted = indices_of(application, config)
    missing = (index for index in wanted if index not in found)
    for query in application.generate_from(config, seed, next(missing, wanted.stop)):
        if query.index >= wanted.stop:
            return
        yield query if query.index in wanted and query.index not in found else None


def _replace(
    application: Application,
    config: Config,
    queries: Iterator[Query | None],
    shown: Collection[str],
    seed: int,
) -> Generator[Query | None]:
    """Yield ``queries``, then replacements of the queries whose sealed id is in ``shown``.

    A replacement is a query with the same index and label that is drawn with ``seed``. No
    participant has seen it.
    """
    indices: set[int] = set()
    for query in queries:
        if query is not None and seal_id(query.id, query.seed) in shown:
            indices.add(query.index)
        yield query
    drawn: Iterator[Query] = iter(())
    expected = -1
    for index in sorted(indices):
        if index != expected:
            drawn = application.generate_from(config, seed, index)
        for query in drawn:
            if query.index == index:
                yield query
                break
            yield None
        expected = index + 1


def _check_size(config: Config, size: int, shard: Shard | None = None) -> None:
    """Raise ConfigError if ``config`` selects no query, or more queries than allowed."""
    if not size:
        raise ConfigError(
            "config",
            "no query matches this config: check error_types, complexity_level and start_index",
        )
    start = config.start_index or 0
    end = size if config.end_index is None else min(config.end_index, size)
    if start >= end:
        raise ConfigError(
            "start_index", f"must be below {end} to select any of the {size} queries, not {start}"
        )
    labels = size // config.num_queries
    # A new file contains all queries of the config, even if the run asks only some of them.
    number = end - start if config.benchmark_path is None else size
    if shard is not None:
        if (share := shard.size(end - start)) > MOST_QUERIES:
            raise ConfigError(
                "--shard",
                f"{shard} has {share:,} of the {end - start:,} queries; at most {MOST_QUERIES:,} "
                f"are allowed: N must be at least {-(-(end - start) // MOST_QUERIES):,}",
            )
        _check_repeats(config, max(share, 1))
        return
    if number > MOST_QUERIES:
        raise ConfigError(
            "config.num_queries",
            f"{config.num_queries} of each of {labels} labels make {number:,} queries; at most "
            f"{MOST_QUERIES:,} are allowed: set num_queries to at most {MOST_QUERIES // labels}"
            + ("" if config.benchmark_path else ", or start_index and end_index"),
        )
    _check_repeats(config, end - start)


def _check_repeats(config: Config, queries: int) -> None:
    if queries * config.repeats > MOST_QUERIES:
        raise ConfigError(
            "config.repeats",
            f"{config.repeats} repetitions of {queries:,} queries are more than {MOST_QUERIES:,} "
            f"episodes, the maximum: set repeats to at most {MOST_QUERIES // queries}",
        )


def _bound(config: Config, queries: Iterator[Query | None]) -> Generator[Query | None]:
    """Yield the ``queries`` that ``config`` selects, and None in place of each other query."""
    start = config.start_index or 0
    end = math.inf if config.end_index is None else config.end_index
    number = last = chosen = 0
    for query in queries:
        if query is None:
            yield None
            continue
        number, last = number + 1, max(last, query.index)
        if not start <= query.index < end:
            yield None
            continue
        chosen += 1
        if chosen > MOST_QUERIES:
            raise ConfigError(
                "config.num_queries",
                f"selects more than {MOST_QUERIES:,} queries, which is the maximum",
            )
        _check_repeats(config, chosen)
        yield query
    if not chosen:
        # A file may have only some of the config's queries, so indices may have gaps.
        end = last + 1 if config.end_index is None else config.end_index
        raise ConfigError(
            "start_index",
            f"none of the {number} queries has an index of at least {start} and below {end}",
        )


def _write_queries(path: Path, queries: Iterator[Query]) -> Iterator[Query | None]:
    """Yield all ``queries``, then write them to ``path``; yield None after each part of the file.

    Raises ConfigError if the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with Deck(path.parent) as deck:
            for query in queries:
                deck.add(query)
                yield query
            yield from replacing(path, deck.lines())
    except OSError as error:
        raise ConfigError(
            "benchmark_path", f"{path.name} cannot be written: {error.strerror}"
        ) from None


def _check_overwritten(path: Path) -> None:
    """Raise ConfigError if ``path`` exists and is not a file of queries."""
    problem = None
    in_run = any((path.parent / name).exists() for name in (CONFIG_NAME, JOURNAL_NAME))
    if path.name in OWN_NAMES and (in_run or path.name != QUERIES_NAME):
        problem = "is the name of a run's own file"
    elif path.name.startswith("."):
        problem = "is a hidden file"
    elif path.exists():
        try:
            if line := next(read_lines(path), b""):
                Query.model_validate_json(line)
        except (OSError, ValueError):
            problem = "exists and contains no queries"
    if problem:
        raise ConfigError("benchmark_path", f"{path.name} {problem}; choose another name")


def _check_file(  # noqa: PLR0913, PLR0917 -- the file and the config that it must match
    application: Application,
    config: Config,
    name: str,
    queries: Iterator[Query],
    seed: int | None,
    indices: Sequence[int] | None = None,
) -> Generator[Query | None]:
    """Yield a file's queries after comparing them with the queries that ``seed`` draws.

    If ``seed`` is None, each query's own seed is used. The file may contain only queries with one
    of ``indices`` (by default any index). Yields None for each skipped query, of the file or drawn
    with ``seed``. Ids in the file may be open or sealed. Raises ConfigError for an altered query.
    """
    by_seed: dict[int, _Drawn] = {}
    size = application.size(config)
    drawable = range(size) if indices is None else indices
    seen: set[tuple[int, int]] = set()
    for query in queries:
        if query.index >= size:  # the file has more queries than the config requests
            yield None
            continue
        own = query.seed if seed is None else seed
        drawn = by_seed.setdefault(own, _Drawn(application, config, own, drawable))
        original = yield from drawn.at(query.index, query.id)
        if original is None and (index := _index_of(query.id, own, size)) is not None:
            # if only the index was altered, the id still identifies the query
            original = yield from drawn.at(index, query.id)
        if original is None:
            raise _strange(application, config, name, query.id)
        if query.model_copy(update={"id": original.id}) != original:
            raise ConfigError(
                "benchmark_path",
                f"query {query.id} of {name} was changed by hand: set regenerate_query to draw "
                "new queries",
            )
        if (own, original.index) in seen:
            raise ConfigError("benchmark_path", f"{name} contains query {query.id} twice")
        seen.add((own, original.index))
        yield original


def _strange(application: Application, config: Config, name: str, query_id: str) -> ConfigError:
    """Return an error with the reason why a query in a file is not a query of ``config``."""
    ours = f"{application.recorded_name}-{application.version_of(config)}"
    shape = config.shape_hash()
    told, expected = read_id(query_id), f"{ours}-{shape}"
    name_of_told, _, version = ("" if told is None else told.generator).rpartition("-")
    old = name_of_told == application.recorded_name and version not in application.versions()
    if told is not None and (old or (told.shape_hash == shape and told.generator != ours)):
        lacks = explain_version(application, version)
        why = f"{name} {lacks}; use the release that created it, or set regenerate_query"
    else:
        why = (
            f"{name} was created with other keys, another seed or another version (its id "
            f"{query_id} does not begin with {expected}); use the original keys, or set "
            "regenerate_query"
        )
    return ConfigError("benchmark_path", why)


def _index_of(query_id: str, seed: int, size: int) -> int | None:
    identity = read_id(query_id)
    if identity is None:
        return None
    return find_index(query_id, seed, size) if identity.index is None else identity.index


class _Drawn:
    """Draws queries of one seed by index. Access is fast if the indices are in ascending order."""

    def __init__(
        self, application: Application, config: Config, seed: int, indices: Sequence[int]
    ) -> None:
        """Prepare to draw the queries with these ascending ``indices``."""
        self._draw = partial(application.generate_at, config, seed)
        self._indices = indices
        self._queries: Iterator[Query] = iter(())
        self._last: Query | None = None

    def at(self, index: int, query_id: str) -> Generator[None, None, Query | None]:
        """Return the query with this index if its open or sealed id is ``query_id``, else None.

        Yields once per skipped query. Raises ConfigError.
        """
        if index < 0:
            return None
        if self._last is None or self._last.index > index:
            self._queries = self._draw(self._indices[bisect_left(self._indices, index) :])
            self._last = next(self._queries, None)
        while self._last is not None and self._last.index < index:
            yield
            self._last = next(self._queries, None)
        found = self._last
        if found is None or found.index != index:
            return None
        return found if query_id in {found.id, seal_id(found.id, found.seed)} else None


@dataclass
class _Resumed:
    """State of a resumed run, read from its folder."""

    #: Config of the run, with the values of the new config for keys that may change.
    config: Config
    #: Visibility of the run's seed.
    secrecy: Secrecy
    #: Whether the new config raises ``num_queries``.
    extended: bool
    #: Seeds of the run's queries.
    seeds: Collection[int]
    #: The shard to which the folder belongs; None for a whole run.
    shard: Shard | None

    def fresh_seed(self, preferred: int | None) -> int:
        """Return ``preferred`` or, if a query of the run has this seed, a random other seed."""
        if preferred is None or preferred in self.seeds:
            return secrets.randbits(SEED_BITS)
        return preferred


def _take_up(  # noqa: PLR0913, PLR0917 -- the stored run and the new assessment
    application: Application,
    config: Config,
    participants: Mapping[str, str],
    out: Path,
    secrecy: Secrecy,
    shard: Shard | None,
) -> _Resumed | None:
    """Return the state of the run in ``out``, to continue it with ``config``; None without a run.

    Keys that ``config`` omits keep the run's values. Raises ConfigError if the stored run differs
    from the request, or if its seed must be secret but may already be known.
    """
    path = out / CONFIG_NAME
    try:
        stored = json.loads(read_text(path))
        held = (stored["application"], stored["version"], dict(stored["participants"]))
        worded = int(stored.get("prompt_version", 1))
        values = dict(stored["config"])
        kept = Secrecy(stored.get("secrecy", Secrecy.OPEN))
        seeds = {int(stored["seed"]), *map(int, stored.get("replaced_seeds", ()))}
        part = Shard.parse(str(stored["shard"])) if "shard" in stored else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "resume",
            f"{path.name} is not the config of a run ({reason_of(error)}): start a new run in "
            "another folder",
        ) from None

    def refuse(what: str, old: Any, new: Any) -> NoReturn:
        # a service's run may belong to another client, so its participants and seed are not shown
        if secrecy is not Secrecy.OPEN:
            raise ConfigError("resume", f"the existing run has another {what}")
        raise ConfigError("resume", f"the existing run has {what} {old}, not {new}")

    stands = config
    with suppress(ConfigError):  # keys may be invalid in this version, which is checked below
        stands = type(config).parse(values)
    wanted = (application.recorded_name, application.version_of(stands), dict(participants))
    for what, old, new in zip(
        ("application", "version", "participants"), held, wanted, strict=True
    ):
        if old == new:
            continue
        if what == "version" and secrecy is Secrecy.OPEN:
            raise ConfigError(
                "resume",
                f"the existing run {explain_version(application, str(old))}: continue it with the "
                "release that started it; this release can report and regrade it",
            )
        refuse(what, old, new)
    if worded != application.prompt_version:
        refuse("prompt_version", worded, application.prompt_version)
    if secrecy is Secrecy.SEALED != kept:
        raise ConfigError(
            "resume", "the existing run started without NETARENA_SEED: start a new run"
        )
    given = config.model_dump(mode="json", include=config.model_fields_set)
    for key, value in given.items():
        old = values.get(key)
        if value is None and key == "seed":
            continue
        if key == "num_queries" and max(secrecy, kept) is Secrecy.OPEN:
            if isinstance(old, int) and value < old:
                raise ConfigError(
                    "resume",
                    f"the existing run has num_queries {old}, which can be raised but not lowered",
                )
        elif key not in MAY_DIFFER and value != old:
            refuse(key, old, value)
        values[key] = value
    parsed = type(config).parse(values)
    extended = parsed.num_queries > stands.num_queries
    _check_shard(shard, part, extended=extended)
    return _Resumed(parsed, max(secrecy, kept), extended, seeds, part)


def _check_own(out: Path, own: Mapping[str, dict[str, Any]], secrecy: Secrecy) -> None:
    """Raise ConfigError if the participants' own config keys differ from the stored keys."""
    try:
        kept = json.loads(read_text(out / CONFIG_NAME)).get("participant_config", {})
    except (OSError, ValueError, AttributeError):
        return  # there is no run
    if kept != dict(own):
        told = f": {kept}, not {dict(own)}" if secrecy is Secrecy.OPEN else ""
        raise ConfigError("resume", f"participants of the existing run have another config{told}")


def _check_shard(given: Shard | None, kept: Shard | None, *, extended: bool) -> None:
    """Raise ConfigError if the stored shard is not ``given``, or if a shard gets more queries."""
    if given is not None and given != kept:
        raise ConfigError(
            "--shard", f"must be {kept or 'omitted'}, as in the existing run, not {given}"
        )
    if extended and kept is not None:
        raise ConfigError(
            "resume",
            "num_queries of a shard cannot be raised, because it determines which "
            "queries belong to the shard",
        )


def keep_earlier(out: Path) -> None:
    """Move the files of an earlier run in ``out`` into ``earlier-N/``, to preserve them."""
    try:
        earlier = json.loads(read_text(out / CONFIG_NAME))
        others = [*earlier["participants"], earlier["config"]["output_file"]]
    except (OSError, ValueError, KeyError, TypeError):
        others = []
    names = {name for name in others if isinstance(name, str) and ROLE.fullmatch(name)}
    # the config is moved last, because it names the other files: if moving is interrupted, the next
    # run can move the rest
    left = [
        name
        for name in (*sorted(names), QUERIES_NAME, RESULTS_NAME, JOURNAL_NAME, CONFIG_NAME)
        if (out / name).exists()
    ]
    if not left:
        return
    number = 1
    while (out / f"earlier-{number}").exists():
        number += 1
    target = out / f"earlier-{number}"
    target.mkdir()
    for name in left:
        (out / name).rename(target / name)


class _Pump:
    """Calls the reporter in order, concurrently with the assessment.

    If a call raises an error, the reporter is not called again.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter: Reporter | None = reporter
        self._calls: asyncio.Queue[tuple[str, str, Any] | None] = asyncio.Queue()

    def tell(self, what: str, role: str, value: Any) -> None:
        self._calls.put_nowait((what, role, value))

    def end(self) -> None:
        self._calls.put_nowait(None)

    async def run(self) -> None:
        while (call := await self._calls.get()) is not None:
            if self._reporter is None:
                continue
            what, role, value = call
            try:
                await getattr(self._reporter, what)(role, value)
            except Exception:
                log.exception(
                    "the reporter failed; the assessment continues without progress reports"
                )
                self._reporter = None


@dataclass
class _Part:
    """The part of an assessment's state that belongs to one participant."""

    role: str
    #: The participant's id in ``results.json``.
    name: str
    agent: Agent
    folder: Path
    journal: Journal
    past: Past
    #: Stores the records until the result files are written.
    spool: Spool
    allowance: Allowance
    #: The assessment's config, with the participant's own keys.
    config: Config
    #: Number of workers that were recorded in the journal.
    workers: int = 0

    def record_workers(self, executor: Executor) -> None:
        """Record in the journal the workers that have become ready since the last call."""
        for machine in executor.machines[self.workers :]:
            self.journal.append("worker", **machine)
            self.workers += 1


async def conduct(  # noqa: PLR0913 -- one argument per part of an assessment
    application: Application,
    config: Config,
    agents: Mapping[str, Agent],
    *,
    out: Path,
    slots: Slots | None = None,
    reporter: Reporter | None = None,
    fallback_seed: int | None = None,
    ids: Mapping[str, str] | None = None,
    origin: Mapping[str, Any] | None = None,
    secrecy: Secrecy = Secrecy.OPEN,
    shard: Shard | None = None,
    most_bytes: float = math.inf,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    purse: Purse | None = None,
    executor: Executor | None = None,
) -> dict[str, dict[str, Any]]:
    """Ask each agent every query of ``config``; ``application`` must already be entered.

    ``slots`` limits the number of live worlds; calls with the same ``slots`` share them fairly. The
    agents are closed at the end. ``ids`` are the participants' names in ``results.json``, by role;
    the default is a URL or the agent's own name. ``origin`` describes how to reach the agent when
    the run is resumed; it is stored in ``config.json``. ``secrecy`` is the visibility of the seed
    to readers of records. With ``shard``, only this part of the queries is asked; a resumed run
    keeps its shard. ``most_bytes`` limits the bytes that the assessment writes to disk. ``own``
    contains config keys of individual participants, by role; only keys in ``Config.prompt_keys``
    are allowed. ``purse`` limits the total cost of all replies. ``executor`` plays the episodes, by
    default in this process.

    Returns the summaries by role; records are only in the result files. Raises ConfigError before
    any agent is asked. Raises AssessmentFailed if an agent was never reachable, no query could be
    graded, or the disk limit was exceeded. Even then, graded episodes are in the journal, and the
    results of the other participants are written.
    """
    pump = _Pump(reporter or _Silent())
    pumping = asyncio.create_task(pump.run())
    try:
        return await _conduct(
            application,
            config,
            agents,
            out=out,
            slots=slots or Slots(MAX_EPISODES),
            pump=pump,
            fallback_seed=fallback_seed,
            ids=ids or {},
            origin=origin,
            secrecy=secrecy,
            shard=shard,
            allowance=Allowance(most_bytes),
            own={role: dict(values) for role, values in (own or {}).items() if values},
            purse=purse,
            executor=executor or Local(),
        )
    except asyncio.CancelledError:
        pumping.cancel()
        raise
    finally:
        for agent in agents.values():
            await finish(agent.aclose())
        pump.end()
        await asyncio.wait([pumping])


async def _conduct(  # noqa: PLR0913 -- one argument per part of an assessment
    application: Application,
    config: Config,
    agents: Mapping[str, Agent],
    *,
    out: Path,
    slots: Slots,
    pump: _Pump,
    fallback_seed: int | None,
    ids: Mapping[str, str],
    origin: Mapping[str, Any] | None,
    secrecy: Secrecy,
    shard: Shard | None,
    allowance: Allowance,
    own: Mapping[str, dict[str, Any]],
    purse: Purse | None,
    executor: Executor,
) -> dict[str, dict[str, Any]]:
    deadline = None if config.time_budget_s is None else clock() + config.time_budget_s
    for role in agents:
        if not ROLE.fullmatch(role) or role in OWN_NAMES or role.startswith("earlier-"):
            raise ConfigError("participants", f"the role {role!r} must match {ROLE.pattern}")
    if config.output_file in OWN_NAMES:
        raise ConfigError("config.output_file", f"must not be one of {', '.join(OWN_NAMES)}")
    for role, values in own.items():
        config.with_own(role, values)
    names = {role: ids.get(role) or _name(agent) for role, agent in agents.items()}
    await executor.check(application, config)
    await _announce(application, config, agents, pump)
    fresh = None
    async with AsyncExitStack() as waited:
        held = waited.enter_context(ExitStack())
        try:
            await finish(asyncio.to_thread(held.enter_context, lock_folder(out)))
            resumed = None
            if config.resume:
                resumed = _take_up(application, config, names, out, secrecy, shard)
                _check_own(out, own, secrecy)
            if resumed is None:
                keep_earlier(out)
                queries, seed = await asyncio.to_thread(
                    choose_queries, application, config, fallback_seed, out, shard
                )
            else:
                config, secrecy, shard = resumed.config, resumed.secrecy, resumed.shard
                queries, seed = await asyncio.to_thread(
                    _read_own, application, config, out / QUERIES_NAME, shard
                )
                if resumed.extended:
                    queries = _extend(application, config, seed, queries)
                if secrecy is Secrecy.SEALED and (
                    shown := await asyncio.to_thread(_find_shown, out, agents)
                ):
                    fresh = resumed.fresh_seed(fallback_seed)
                    queries = _replace(application, config, queries, shown, fresh)
            opening = Opening(
                agents,
                partial(pump.tell, "noted"),
                timeout_s=min(config.agent_timeout_s, _left(deadline)),
            )
            waited.push_async_callback(opening.aclose)
            deck = held.enter_context(Deck(out))
            drawing = held.enter_context(
                closing(
                    _draw(
                        queries, deck, partial(application.turns, config), secrecy, out, allowance
                    )
                )
            )
            await _take_steps(
                drawing,
                slots,
                deadline,
                opening,
                DrawingNotes(
                    partial(pump.tell, "noted", next(iter(agents))),
                    lambda: len(deck.cards),
                    partial(_count_to_draw, application, config, shard),
                ),
            )
            number = await asyncio.to_thread(_count_queries, application, config, deck, shard)
            config = config.model_copy(update={"seed": seed, "num_queries": number})
            order = await asyncio.to_thread(_order, application, config, seed, shard)
            # wait for the thread even if cancelled: the files that it opens are closed below
            parts = await finish(
                asyncio.to_thread(
                    _lay_out,
                    application,
                    config,
                    agents=agents,
                    names=names,
                    origin=origin,
                    secrecy=secrecy,
                    out=out,
                    held=held,
                    deck=deck,
                    fresh=fresh,
                    shard=shard,
                    allowance=allowance,
                    own=own,
                )
            )
        except OSError as error:
            raise ConfigError("output_dir", f"cannot be written: {error.strerror}") from None
        telling = _Telling(seed, agents, secrecy)
        scarce = _tell_scarce(deck, agents, pump)
        # all accounts exist before the first request, so that the purse includes all earlier costs
        accounts = {part.role: _account(purse, part) for part in parts}
        share = held.enter_context(slots.join())
        joined = [share.join() for _ in parts]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    _conduct_one(
                        application,
                        part.config,
                        telling,
                        part,
                        executor=executor,
                        deck=deck,
                        places=places,
                        pump=pump,
                        opening=opening,
                        deadline=deadline,
                        account=accounts[part.role],
                        alone=len(agents) == 1,
                        shard=shard,
                        order=order,
                        scarce=scarce,
                    )
                )
                for part, places in zip(parts, joined, strict=True)
            ]
    results = {part.role: task.result() for part, task in zip(parts, tasks, strict=True)}
    for result in results.values():
        if isinstance(result, AssessmentFailed):
            raise result
    return {role: result for role, result in results.items() if isinstance(result, dict)}


async def _announce(
    application: Application, config: Config, roles: Collection[str], pump: _Pump
) -> None:
    """Report where episodes run, and warn about roles whose results no leaderboard shows."""
    venue = await asyncio.to_thread(application.venue, config)
    for role in roles:
        if venue:
            pump.tell("noted", role, f"{role} is graded on {venue}")
        if warning := _warn_of_role(application, role, alone=len(roles) == 1):
            pump.tell("noted", role, f"warning: {warning}")


def make_warnings(
    application: Application, role: str, *, alone: bool, scarce: str = ""
) -> dict[str, list[str]]:
    """Return the item ``warnings`` of a summary, or an empty mapping if there are no warnings.

    ``scarce`` is the warning about labels with too few different queries.
    """
    found = [text for text in (_warn_of_role(application, role, alone=alone), scarce) if text]
    return {"warnings": found} if found else {}


def _warn_of_role(application: Application, role: str, *, alone: bool) -> str:
    """Return a warning if no leaderboard shows results of ``role``, otherwise an empty string.

    In a comparison of several participants, any role name is allowed. However, a name that
    resembles the application's role, or the role of another application, is probably a mistake.
    """
    known = application.role
    if role == known:
        return ""
    alike = role.endswith("_operator") or difflib.get_close_matches(role, [known])
    if not alone and not alike:
        return ""
    return (
        f"role {role!r} is unknown to {application.name}; leaderboards read {known!r} and do not "
        f"show this result: did you mean {known!r}?"
    )


def _tell_scarce(deck: Deck, roles: Collection[str], pump: _Pump) -> str:
    """Report the warning of ``warn_of_variety``, if any, to each role; return the warning."""
    scarce = warn_of_variety(deck.variety)
    if scarce:
        for role in roles:
            pump.tell("noted", role, f"warning: {scarce}")
    return scarce


def warn_of_variety(variety: Variety) -> str:
    """Return a warning if a label has too few different queries, otherwise an empty string."""
    scarce = variety.scarce()
    if not scarce:
        return ""
    label, asked, different = scarce[0]
    more = f" ({len(scarce) - 1} more labels have too few)" if len(scarce) > 1 else ""
    return (
        f"label {label} has only {different:,} different queries, but the run asks "
        f"{asked:,}{more}: intervals treat equal queries as one cluster; lower num_queries"
    )


def _left(deadline: float | None) -> float:
    """Return the seconds until ``deadline``; infinity without a deadline."""
    return math.inf if deadline is None else deadline - clock()


def _order(
    application: Application, config: Config, seed: int, shard: Shard | None
) -> Order | None:
    """Return the function that arranges the queries of a shard; None for a whole run."""
    if shard is None:
        return None
    return partial(arrange, indices=shard.indices(application, config, seed))


def _count_queries(
    application: Application, config: Config, deck: Deck, shard: Shard | None
) -> int:
    """Return the number of queries per label of the whole run.

    A query file may contain more queries than the config requests.
    """
    if shard is not None:  # ``deck`` contains only the queries of the shard
        return with_size_of_file(application, config).num_queries
    return max(config.num_queries, deck.last // len(application.labels(config)) + 1)


def _draw(  # noqa: PLR0913, PLR0917 -- the destinations and limits of the queries
    queries: Generator[Query | None],
    deck: Deck,
    turns: Callable[[Query], int],
    secrecy: Secrecy,
    out: Path,
    allowance: Allowance,
) -> Generator[None]:
    """Add ``queries`` to ``deck`` and write them into a run's folder, as a generator of steps.

    ``turns`` returns the maximum number of turns of a query.
    """
    with closing(queries):
        for query in queries:
            if query is not None:
                deck.add(seal(query) if secrecy is Secrecy.SEALED else query, turns(query))
                allowance.take(
                    2 * deck.cards[-1].size
                )  # the query is stored twice: in the store and in the file
            yield
    yield from replacing(out / QUERIES_NAME, deck.lines())


def _advance(steps: Iterator[None], within_s: float) -> bool:
    """Run ``steps`` for about ``within_s`` seconds; return whether all steps are done."""
    end = clock() + within_s
    return all(clock() < end for _ in steps)


def _count_to_draw(application: Application, config: Config, shard: Shard | None) -> int | None:
    """Return the number of queries that an assessment draws.

    Returns None if the queries are in a file, and for a shard, because the number is then unknown.
    """
    if shard is not None or stored_file(config) is not None:
        return None
    size = application.size(config)
    end = size if config.end_index is None else min(size, config.end_index)
    return end - (config.start_index or 0)


async def _take_steps(
    steps: Iterator[None],
    slots: Slots,
    deadline: float | None,
    opening: Opening,
    notes: DrawingNotes,
) -> None:
    """Run all drawing steps in a thread; concurrent assessments take turns.

    Raises AssessmentFailed if the deadline passes first, or if no agent can be reached. After a
    cancellation, at most the current step is completed.
    """
    used_s = 0.0
    done = False
    while not done:
        if deadline is not None and clock() >= deadline:
            raise AssessmentFailed(
                "no query could be graded: the time ran out before the first prompt was sent"
            )
        async with slots.turn(used_s):
            begin = clock()
            # wait for the thread even if cancelled, because its file must stay open until it ends
            done = await finish(asyncio.to_thread(_advance, steps, _STEP_S))
            step_s = clock() - begin
            used_s += step_s
            if not done:
                notes.tell()
                opening.check()
            if slots.held and not done:
                await asyncio.sleep(_RESTS * step_s)


def _name(agent: Agent) -> str:
    """Return a participant's default id: its URL, or the name of an in-process agent."""
    info = agent.info
    return info.name if info.base_url == "in-process" else info.base_url


class _Telling:
    """Decides when a summary shows the seed. The seed reveals queries that may still be asked."""

    def __init__(self, seed: int, roles: Iterable[str], secrecy: Secrecy) -> None:
        self.seed = seed
        #: Roles of participants that may still get queries drawn with a secret seed.
        self._asked = set(roles) if secrecy is not Secrecy.OPEN else set()

    def tell(self, role: str, *, complete: bool) -> int | None:
        """Return the seed for the summary of ``role``, or None while queries may still be asked."""
        if complete:
            self._asked.discard(role)
        return None if self._asked else self.seed


def folder_of(role: str, agents: Collection[str], out: Path) -> Path:
    """Return the folder of a participant."""
    return out / role if len(agents) > 1 else out


def _find_shown(out: Path, agents: Collection[str]) -> set[str]:
    """Return the ids of ungraded queries whose prompt a participant may have seen."""
    shown: set[str] = set()
    for role in agents:
        path = folder_of(role, agents, out) / JOURNAL_NAME
        if path.exists():
            past = read_journal(path)
            if past.silent:
                past.drop()
            shown |= past.shown()
    return shown


def _record_replaced(journal: Journal, past: Past, deck: Deck, fresh: int) -> None:
    """Record the replacement of each query that was shown and not graded."""
    by_index = {card.query_index: card.id for card in deck.cards if card.seed == fresh}
    shown = past.shown()
    for card in deck.cards:
        if card.id in shown and card.seed != fresh:
            journal.append("replaced", query_id=card.id, by=by_index[card.query_index])
            past.replaced[card.id] = by_index[card.query_index]


def _lay_out(  # noqa: PLR0913 -- the contents of all files
    application: Application,
    config: Config,
    *,
    agents: Mapping[str, Agent],
    names: Mapping[str, str],
    origin: Mapping[str, Any] | None,
    secrecy: Secrecy,
    out: Path,
    held: ExitStack,
    deck: Deck,
    fresh: int | None,
    shard: Shard | None,
    allowance: Allowance,
    own: Mapping[str, dict[str, Any]],
) -> list[_Part]:
    """Write all files of a run before the first request, and open each participant's journal.

    If ``fresh`` is not None, queries that were shown but not graded are replaced with those queries
    of ``deck`` that were drawn with the seed ``fresh``.
    """
    header = make_header(application, config, secrecy)
    # the config is written after the queries, because a run with a config can be resumed
    had: dict[str, Any] = {"agent": dict(origin)} if origin else {}
    if own:
        had["participant_config"] = dict(own)
    if seeds := sorted({card.seed for card in deck.cards} - {config.seed}):
        had["replaced_seeds"] = seeds
    if shard is not None:
        had["shard"] = str(shard)
    told = with_seed_text({**header, "participants": dict(names), **had})
    write_json(out / CONFIG_NAME, told)
    parts = []
    for role, agent in agents.items():
        folder = folder_of(role, agents, out)
        journal = held.enter_context(Journal(folder / JOURNAL_NAME, allowance))
        past = read_journal(journal.path)
        told_to = config.with_own(role, own.get(role, {}))
        settled = told_to.model_dump(mode="json", exclude={"agent_client_configs"})
        head = Header.model_validate({**header, "config": settled, "role": role})
        if past.header is None:
            journal.append("assessment", header=with_seed_text(head.model_dump(mode="json")))
        elif not past.header.same_run(head):
            raise ConfigError("output_dir", f"{JOURNAL_NAME} belongs to another run")
        elif past.header.config.get("num_queries") != config.num_queries:
            journal.append("assessment", header=with_seed_text(head.model_dump(mode="json")))
        if past.silent:
            # the agent has not answered in any episode so far, but may be able to answer now
            journal.append("anew")
            past.drop()
        if fresh is not None:
            _record_replaced(journal, past, deck, fresh)
        spool = held.enter_context(Spool(folder))
        parts.append(
            _Part(role, names[role], agent, folder, journal, past, spool, allowance, told_to)
        )
    return parts


def make_header(application: Application, config: Config, secrecy: Secrecy) -> dict[str, Any]:
    """Return the keys that both ``config.json`` and the header of each journal contain."""
    return {
        "application": application.recorded_name,
        "version": application.version_of(config),
        "prompt_version": application.prompt_version,
        "seed": config.seed,
        "shape": config.shape(),
        "config": config.model_dump(mode="json", exclude={"agent_client_configs"}),
        "secrecy": secrecy,
    }


async def _conduct_one(  # noqa: PLR0913 -- one argument per part of an assessment
    application: Application,
    config: Config,
    telling: _Telling,
    part: _Part,
    *,
    executor: Executor,
    deck: Deck,
    places: Places,
    pump: _Pump,
    opening: Opening,
    deadline: float | None,
    account: Account | None,
    alone: bool,
    shard: Shard | None,
    order: Order | None,
    scarce: str,
) -> dict[str, Any] | AssessmentFailed:
    """Assess one participant and write its results; return the summary or the failure."""
    agent, role = part.agent, part.role
    failed: set[str] = set()

    async def report(verdict: Verdict) -> None:
        part.record_workers(executor)
        try:
            size = part.spool.append(verdict.record)
        except OSError as error:
            raise AssessmentFailed(f"no record can be written: {error.strerror}") from None
        part.allowance.take(2 * size)  # the record is stored twice: in the spool and in the results
        if not failed and verdict.outcome is Outcome.AGENT_FAILED:
            failed.add(role)
            why = f"{verdict.outline.reason}: {verdict.detail}"
            reason = one_line(without_folders(why), WHY_CHARS)
            pump.tell("noted", role, f"first failure of {role}: {reason}")
        pump.tell("graded", role, verdict.record)

    if _left(deadline) <= 0:
        return AssessmentFailed(
            "no query could be graded: the time ran out before the first prompt was sent"
        )
    try:
        asked = part.past.choose(deck.cards, telling.seed)
        pump.tell("planned", role, len(asked) * config.repeats)
        await opening.wait(role)
        player = await executor.join(Party(application, config, role, agent, account))
        part.record_workers(executor)
        run = Run(
            application,
            config,
            telling.seed,
            agent,
            role,
            player=player,
            journal=part.journal,
            past=part.past,
            places=places,
            report=report,
            purse=account,
            order=order,
        )
        with telemetry.assessment(application.name, application.version, role, agent.info) as span:
            graded = await run.grade(deck, deadline)
            span.tell(netarena__graded=len(graded.episodes), netarena__not_run=len(graded.not_run))
        part.record_workers(executor)
        part.journal.append("end", complete=not graded.not_run, **_tell_cost(account))
    except AssessmentFailed as error:
        _record_failure(part, executor, error, account)
        return error
    except asyncio.CancelledError:
        if account is not None:
            with suppress(AssessmentFailed):  # the disk may be full
                part.journal.append("cost", **account.statement())
        raise
    finally:
        places.share.leave(places)
    told = telling.tell(role, complete=not graded.not_run)
    summary = summarise(
        application,
        config,
        told,
        graded.episodes,
        graded.not_run,
        # if the cost limit ended the run, queries that were never asked do not count as failures
        unasked=() if account is not None and account.spent_up else None,
        limit_of=attrgetter("turns"),
        replaced=len(part.past.replaced),
    )
    summary |= make_warnings(application, role, alone=alone, scarce=scarce)
    if shard is not None:
        summary["shard"] = str(shard)
    pump.tell("summarised", role, summary)
    # wait for the thread even if cancelled, because the spool must stay open until it ends
    try:
        names = {role: part.name}
        await finish(
            asyncio.to_thread(
                write_results, part.folder, names, part.spool, summary, config.output_file
            )
        )
    except OSError as error:
        return AssessmentFailed(f"the results of {role} cannot be written: {error.strerror}")
    return summary


def _record_failure(
    part: _Part, executor: Executor, error: AssessmentFailed, account: Account | None
) -> None:
    """Record why an assessment ended without a summary."""
    with suppress(AssessmentFailed):  # the disk may be full
        part.record_workers(executor)
        silent = {"silent": True} if isinstance(error, AgentSilent) else {}
        ended = {"complete": False, "failed": str(error)}
        part.journal.append("end", **ended, **silent, **_tell_cost(account))


def _account(purse: Purse | None, part: _Part) -> Account | None:
    """Return a participant's account, including earlier costs; None without a cost limit."""
    if purse is None:
        return None
    paid = [one.usage for one in part.past.episodes.values() if one.usage]
    past, record = part.past, partial(part.journal.append, "cost")
    return purse.account(part.role, paid, past.cost_usd, past.dearest_usd, record)


def _tell_cost(account: Account | None) -> dict[str, Any]:
    """Return the keys about cost in the event ``end``; empty for a run without a cost limit."""
    if account is None:
        return {}
    return {**account.statement(), "max_cost": account.spent_up}


def write_results(
    folder: Path,
    participants: Mapping[str, str],
    spool: Spool,
    summary: Mapping[str, Any],
    output_file: str | None,
) -> None:
    """Write a participant's result files. Raises OSError."""
    write_document(folder / RESULTS_NAME, participants, chain(spool, [summary]))
    if output_file:
        replace_file(folder / output_file, spool.lines())
