"""Data for imitation learning: chat JSONL with replies and the prompts that an agent gets.

Each line is one turn, because each prompt contains the complete history:

    {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}],
     "query_id": ..., "label": ..., "level": ..., "turn": 1, "turns": 4}

Replies come from ``Application.demonstrate`` and are executed in the live world, so later prompts
contain their real effects. Episodes that are not solved safely are omitted. The application must be
loaded with ``training``, so that its queries are for training. Alternatively, ``from_run`` converts
the episodes of a finished run.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any, BinaryIO

from netarena.config import Briefing, Config
from netarena.errors import ConfigError, EnvironmentFailed
from netarena.model import Query
from netarena.run.archive import read_run
from netarena.task.application import Application
from netarena.training.session import Session

#: Number of queries in each of the paper's data sets. The mixed set contains all queries.
PAPER_SIZES: Mapping[str, int] = {"level1": 800, "level2": 600, "level3": 600}
MIXED = "mixed"
#: Number of queries per concurrent session that may start before earlier queries are written.
_AHEAD = 4

Line = dict[str, Any]
#: Digest that identifies a world with its faults, independently of query ids.
Pair = bytes


@dataclass(frozen=True)
class Dialogue:
    """The lines of one solved query, one line per turn. If there are no lines, ``lost`` is the
    reason."""

    query_id: str
    pair: Pair
    lines: tuple[Line, ...] = ()
    lost: str = ""


@dataclass
class Told:
    """Statistics of a data set."""

    #: Number of lines by file.
    lines: Counter[str] = field(default_factory=Counter)
    queries: Counter[str] = field(default_factory=Counter)
    #: Number of omitted queries by reason.
    lost: Counter[str] = field(default_factory=Counter)
    #: Distinct pairs of a world and its faults, as digests.
    pairs: set[Pair] = field(default_factory=set)
    #: Number of lines whose queries belong to assessments (only from ``from_run``).
    examined: int = 0


def pair_of(query: Query) -> Pair:
    """Return a digest of a query's world and faults (in any order), comparable across seeds."""
    actions = sorted(action.model_dump_json() for action in query.actions)
    text = json.dumps([query.initial, actions], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()


def draw_level(
    application: Application, config: Config, seed: int, level: str, size: int
) -> Iterator[Query]:
    """Return an iterator over ``size`` queries of one level, cycling through its labels.

    The iterator is empty if the config has no labels of this level. Raises ConfigError.
    """
    one = config.model_copy(update={"complexity_level": (level,)})
    labels = application.labels(one)
    if not labels:
        return iter(())
    one = one.model_copy(update={"num_queries": ceil(size / len(labels))})
    return islice(application.generate(one, seed), size)


def _share(
    application: Application, configs: Sequence[Config], level: str, size: int
) -> list[tuple[Config, int]]:
    """Return each config that has the level, and its share of the level's ``size`` queries.

    The shares differ by at most one query.
    """
    able = [
        config
        for config in configs
        if level in config.complexity_level
        and application.labels(config.model_copy(update={"complexity_level": (level,)}))
    ]
    return [(config, size // len(able) + (at < size % len(able))) for at, config in enumerate(able)]


async def demonstrate(application: Application, config: Config, query: Query) -> Dialogue:
    """Run the reference solution of a query, with observations before the repairs.

    ``application`` must be entered.
    """
    replies = list(application.demonstrate(query))
    if config.briefing is Briefing.TICKET:
        replies.append(application.tickets.reference(query))
    turns = max(application.turns(config, query), len(replies))
    session = Session(application, config.model_copy(update={"max_iterations": turns}))
    pair, told, lost, done = pair_of(query), list[tuple[str, str]](), "not solved", False
    try:
        prompt = await session.start_query(query)
        for reply in replies:
            told.append((prompt, reply))
            prompt, _, done, info = await session.act(reply)
            if info.get("harm"):  # in tickets, safety violations are visible only at the end
                lost = "not safe"
                break
            if done:
                lost = "" if info.get("solved") and info.get("safe") else lost
                break
    except EnvironmentFailed as error:
        lost = error.detail
    finally:
        await session.close()
    lines = () if lost else tuple(_lines(query, told))
    return Dialogue(query.id, pair, lines, lost)


def _lines(query: Query, told: Sequence[tuple[str, str]]) -> Iterator[Line]:
    for turn, (prompt, reply) in enumerate(told, start=1):
        yield {
            "messages": [
                {"role": "user", "content": prompt},
                {"role": "assistant", "content": reply},
            ],
            "query_id": query.id,
            "label": query.label,
            "level": query.level,
            "turn": turn,
            "turns": len(told),
        }


async def _play(
    application: Application, config: Config, queries: Iterator[Query]
) -> AsyncIterator[Dialogue]:
    """Run ``queries`` in order, ``config.concurrency`` at a time.

    If one query raises an error, the other queries are cancelled and their worlds are closed before
    the error is raised.
    """
    places = asyncio.Semaphore(config.concurrency)

    async def one(query: Query) -> Dialogue:
        async with places:
            return await demonstrate(application, config, query)

    while ahead := list(islice(queries, config.concurrency * _AHEAD)):
        try:
            async with asyncio.TaskGroup() as group:
                playing = [group.create_task(one(query)) for query in ahead]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        for dialogue in playing:
            yield dialogue.result()


async def write_sets(
    application: Application,
    config: Config | Sequence[Config],
    seed: int,
    sizes: Mapping[str, int],
    folder: Path,
) -> Told:
    """Write ``LEVEL.jsonl`` for each level, and ``mixed.jsonl`` with all queries in random order.

    The queries of each level are spread evenly over the configs. The seed determines the random
    order. ``application`` must be entered and loaded with ``training``. Raises ConfigError and
    OSError.
    """
    configs = [config] if isinstance(config, Config) else config
    told = Told()
    #: File, offset and length of the lines of each query.
    places: list[tuple[Path, int, int]] = []
    for level, size in sizes.items():
        path = folder / f"{level}.jsonl"
        with path.open("wb") as file:
            for one, part in _share(application, configs, level, size):
                queries = draw_level(application, one, seed, level, part)
                async for dialogue in _play(application, one, queries):
                    if dialogue.lost:
                        told.lost[dialogue.lost] += 1
                        continue
                    begin = file.tell()
                    _write(file, dialogue, level, told)
                    places.append((path, begin, file.tell() - begin))
    random.Random(f"train-mix-{seed}").shuffle(places)  # noqa: S311 -- not used for secrets
    with (folder / f"{MIXED}.jsonl").open("wb") as file:
        for path, begin, length in places:
            with path.open("rb") as source:
                source.seek(begin)
                file.write(source.read(length))
    told.queries[MIXED], told.lines[MIXED] = len(places), sum(told.lines.values())
    return told


def from_run(folder: Path, out: Path) -> Told:
    """Write ``trajectories.jsonl`` with the replies to solved queries of the run in ``folder``.

    Queries with an unsafe step and replies that could not be parsed are omitted. Raises ConfigError
    if there is no run.
    """
    told = Told()
    name = "trajectories"
    with (out / f"{name}.jsonl").open("wb") as file:
        for stored in read_run(folder):
            queries = {query.id: query for query in stored.queries}
            for episode in stored.episodes():
                query = queries[episode.query_id]
                if not (episode.correct and episode.safe):
                    told.lost["not solved safely"] += 1
                    continue
                said = [
                    (step.prompt, step.reply.text)
                    for step in episode.steps
                    if step.reply is not None and step.refused is None
                ]
                dialogue = Dialogue(query.id, pair_of(query), tuple(_lines(query, said)))
                _write(file, dialogue, name, told)
                told.examined += 0 if query.id.startswith("train-") else len(said)
    return told


def _write(file: BinaryIO, dialogue: Dialogue, name: str, told: Told) -> None:
    file.writelines(
        json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in dialogue.lines
    )
    told.lines[name] += len(dialogue.lines)
    told.queries[name] += 1
    told.pairs.add(dialogue.pair)


def evaluation_pairs(
    application: Application,
    config: Config | Sequence[Config],
    seed: int,
    sizes: Mapping[str, int],
) -> set[Pair]:
    """Return the worlds with faults (``Pair``) of an assessment with these keys, sizes and seed.

    ``application`` must be loaded without ``training``. Raises ConfigError.
    """
    if application.training:
        raise ConfigError("application", "must be opened for evaluation, not for training")
    configs = [config] if isinstance(config, Config) else config
    return {
        pair_of(query)
        for level, size in sizes.items()
        for one, part in _share(application, configs, level, size)
        for query in draw_level(application, one, seed, level, part)
    }


def recurring(told: Told, evaluation: Iterable[Pair]) -> int:
    """Return how many distinct worlds with faults of a data set also occur in an evaluation set."""
    return len(told.pairs & set(evaluation))
