"""Conducts an adversarial search: draws and plays queries, and compares failure rates.

Each query is a separate assessment (``conduct``), so prompts, sandbox, judge and journal are the
same as in every run. The folder of a search contains ``search.json`` (the request),
``search.jsonl`` (a line for each query) and the folders ``draws/``, ``found/`` and ``uniform/``
with a run for each query. A resumed search reads the results from ``search.jsonl``, and makes the
same draws.

Fresh queries differ in content from all queries of the search, and from each other. Half of them
are drawn from the found strata, half uniformly from all strata.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

from netarena.agent.interface import Agent
from netarena.analysis.intervals import unpaired_interval, wilson
from netarena.analysis.search import Draw, Found, Search
from netarena.analysis.strata import ALL, Cell, words
from netarena.config import Config
from netarena.errors import AgentSilent, AssessmentFailed, ConfigError
from netarena.file import read_lines
from netarena.run.assessment import conduct
from netarena.run.capacity import Slots
from netarena.run.journal import lock_folder
from netarena.run.result import write_json
from netarena.run.scope import Scope, derive_seed

#: Names of the files and folders of a search.
ASKED_NAME, LOG_NAME = "search.json", "search.jsonl"
SEARCHED, FOUND, UNIFORM = "draws", "found", "uniform"
#: Folder of the lock. The search cannot lock its own folder, because its runs lock subfolders.
_LOCK = ".lock"
#: Number of queries whose results the search processes together. The number is constant, so that
#: the draws do not depend on the config key ``concurrency``.
BATCH = 8
#: Maximum number of attempts to draw a query that differs from all earlier queries.
_TRIES = 6
#: Number of consecutive environment failures after which a search ends.
_MOST_INVALID = 10
#: Number of consecutive queries without a usable answer after which a search ends.
_MOST_MUTE = 40

#: Function that creates the agent for one assessment.
MakeAgent = Callable[[Config], Agent]
#: Reason why no query of a cell is played: the cell has no query, or only queries drawn before.
Lacking: TypeAlias = Literal["empty", "used"]
LACKING = get_args(Lacking)
#: Function that is called with ``failed``, ``solved`` or ``invalid`` for each played query.
Told = Callable[[str], None]


class Task(NamedTuple):
    """A query to play: its cell, the seed that draws it, and its content."""

    cell: Cell
    seed: int
    content: str


class Count(NamedTuple):
    """Number of graded queries that the agent failed, and number of all graded queries."""

    failed: int
    graded: int

    def report(self) -> dict[str, Any]:
        """Return the count as JSON, with the 95 % Wilson interval of the rate."""
        rate = self.failed / self.graded if self.graded else None
        return {
            "failed": self.failed,
            "graded": self.graded,
            "failure_rate": rate,
            "interval": list(wilson(self.failed, self.graded)),
        }


@dataclass
class Outcome:
    """The result of a search."""

    found: Sequence[Found]
    #: The cells of the found strata that have queries.
    cells: Sequence[Cell]
    searched: Count
    #: Results on fresh queries of the found strata, and on fresh queries of all strata.
    fresh: Count
    uniform: Count
    invalid: int

    def report(self) -> dict[str, Any]:
        """Return the result as JSON."""
        fresh, uniform = self.fresh.report(), self.uniform.report()
        told: dict[str, Any] = {
            "searched": self.searched.report(),
            "strata": [
                {
                    "words": words(one.stratum),
                    "features": [list(feature) for feature in sorted(one.stratum)],
                    **Count(*one.tally).report(),
                }
                for one in self.found
            ],
            "fresh_found": fresh,
            "fresh_uniform": uniform,
            "invalid": self.invalid,
        }
        if self.fresh.graded and self.uniform.graded:
            told["difference"] = list(
                unpaired_interval(
                    (fresh["failure_rate"], fresh["interval"]),
                    (uniform["failure_rate"], uniform["interval"]),
                )
            )
        return told


class Log:
    """The file ``search.jsonl``: one line per query, appended as soon as its result is known."""

    def __init__(self, path: Path) -> None:
        """Read the lines; remove an incomplete last line. Raises ConfigError and OSError."""
        self._path = path
        #: Whether the log has the result of a query.
        self.has_result = False
        #: Whether an answer of the agent was graded or a world failed. If not, all results only
        #: show that the agent does not answer.
        self.has_answer = False
        self._known: dict[tuple[str, int], dict[str, Any]] = {}
        size = 0
        for number, line in enumerate(read_lines(path) if path.exists() else (), start=1):
            try:
                told = json.loads(line)
                self._known[told["stage"], told["number"]] = told
                self.has_result = self.has_answer = True
            except (ValueError, KeyError, TypeError):
                if line.endswith(b"\n"):
                    raise ConfigError(
                        "--resume", f"{path.name}, line {number} cannot be read: start a new search"
                    ) from None
                os.truncate(path, size)
                return
            size += len(line)
            if not line.endswith(b"\n"):
                with path.open("ab") as file:
                    file.write(b"\n")

    def get(self, stage: str, number: int) -> dict[str, Any] | None:
        """Return the line of a query, or None."""
        return self._known.get((stage, number))

    def put(self, stage: str, number: int, told: Mapping[str, Any]) -> None:
        """Append a line. Raises OSError."""
        line = {"stage": stage, "number": number, **told}
        self._known[stage, number] = line
        self.has_result = self.has_result or told["result"] not in LACKING
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


@contextmanager
def folder_of(folder: Path, asked: Mapping[str, Any]) -> Iterator[Log]:
    """Lock the folder of a search, write ``asked`` to it and yield its log (context manager).

    If the body raises an error before the log has a result, the files and folders that this search
    created are removed. They are also removed if the body raises AgentSilent and the agent has
    never answered, so that a search with a wrong agent leaves no files. Raises ConfigError and
    OSError.
    """
    parts = [folder / name for name in (ASKED_NAME, LOG_NAME, SEARCHED, FOUND, UNIFORM, _LOCK)]
    new = [part for part in parts if not part.exists()]
    parents = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    with lock_folder(folder / _LOCK):
        log = Log(folder / LOG_NAME)
        write_json(folder / ASKED_NAME, asked)
        try:
            yield log
        except BaseException as error:
            is_silent = isinstance(error, AgentSilent) and not log.has_answer
            if is_silent or not log.has_result:
                _remove(new, parents)
            raise


def _remove(parts: Sequence[Path], parents: Sequence[Path]) -> None:
    """Remove the files and folders ``parts``, then the empty folders of ``parents``."""
    for part in parts:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)
    with suppress(OSError):
        for parent in parents:
            parent.rmdir()


@dataclass
class Conduct:
    """A search of one agent in one folder; ``scope.application`` must already be entered."""

    scope: Scope
    make_agent: MakeAgent
    folder: Path
    seed: int
    concurrency: int
    log: Log
    told: Told = field(default=lambda _: None)

    def __post_init__(self) -> None:
        """Create the slots for live worlds."""
        self._slots = Slots(max(BATCH, 2 * self.concurrency))
        self._at_once = asyncio.Semaphore(self.concurrency)
        #: Contents of all queries so far, including fresh queries.
        self._contents: set[str] = set()
        self._invalid = self._in_a_row = self._mute = 0

    async def run(self, budget: int, fresh: int) -> Outcome:
        """Search with ``budget`` queries, then play fresh queries.

        ``fresh`` is the number of fresh queries from the found strata. The same number is drawn
        from all strata.

        Raises AssessmentFailed if the agent does not answer, or if no world can be built.
        """
        search = await self._search(budget)
        strata = search.finish()
        cells = self.scope.spread([one.stratum for one in strata], self._rng(FOUND))
        rng = self._rng(UNIFORM)
        failed, has = await self._play_fresh(FOUND, _in_turn(cells), fresh if cells else 0)
        uniform, _ = await self._play_fresh(UNIFORM, self._evenly(rng), fresh)
        return Outcome(
            strata,
            [cell for cell in cells if await self._has_queries(cell, has)],
            Count(sum(bad for _, bad in search.history), len(search.history)),
            failed,
            uniform,
            self._invalid,
        )

    async def _search(self, budget: int) -> Search:
        search = Search(self.scope.space, self._rng(SEARCHED))
        played = 0
        while played < budget:
            draws: list[Draw] = []
            async with _together() as work:
                while len(draws) < min(BATCH, budget - played):
                    if (draw := search.ask()) is None:
                        break
                    task = await self._draw(SEARCHED, draw.number, draw.cell)
                    if isinstance(task, str):
                        search.skip(draw)
                        continue
                    draws.append(draw)
                    work.append(asyncio.ensure_future(self._play(SEARCHED, draw.number, task)))
                results = await asyncio.gather(*work)
            if not draws:
                break
            for draw, failed in zip(draws, results, strict=True):
                if failed is not None:
                    search.tell(draw, failed=failed)
            played += len(draws)
        return search

    async def _play_fresh(
        self, stage: str, cells: Iterator[Cell], number: int
    ) -> tuple[Count, dict[Cell, bool]]:
        """Play up to ``number`` fresh queries from ``cells``.

        Returns the counts, and for each drawn cell whether it has queries.
        """
        has: dict[Cell, bool] = {}
        vain = at = 0
        results: list[bool | None] = []
        while len(results) < number and vain <= 4 * number + 100:
            async with _together() as work:
                while len(work) < min(BATCH, number - len(results)) and vain <= 4 * number + 100:
                    if (cell := next(cells, None)) is None:
                        break
                    at += 1
                    lacks = has.get(cell) is False
                    task = "empty" if lacks else await self._draw(stage, at, cell)
                    has[cell] = task != "empty"
                    if isinstance(task, str):
                        vain += 1
                        continue
                    work.append(asyncio.ensure_future(self._play(stage, at, task)))
                if not work:
                    break
                results += await asyncio.gather(*work)
        graded = [failed for failed in results if failed is not None]
        return Count(sum(graded), len(graded)), has

    async def _has_queries(self, cell: Cell, known: Mapping[Cell, bool]) -> bool:
        """Return whether ``cell`` has queries, so that a scenario can draw them."""
        if cell in known:
            return known[cell]
        seed = derive_seed(self.seed, FOUND, *cell)
        return await asyncio.to_thread(self.scope.query, cell, seed) is not None

    def _rng(self, part: str) -> random.Random:
        return random.Random(derive_seed(self.seed, part))  # noqa: S311 -- not for secrets

    def _evenly(self, rng: random.Random) -> Iterator[Cell]:
        while (cell := self.scope.space.draw(ALL, rng)) is not None:
            yield cell

    async def _draw(self, stage: str, number: int, cell: Cell) -> Task | Lacking:
        """Return a query of ``cell`` that was not drawn before, or the reason if none was found."""
        if (known := self.log.get(stage, number)) is not None:
            if known["cell"] != list(cell):
                raise ConfigError(
                    "--resume",
                    f"query {number} of {stage} in {LOG_NAME} is not the query that this release "
                    "draws: continue the search with the release that started it",
                )
            self._contents.add(known["content"])
            if known["result"] in LACKING:
                return cast("Lacking", known["result"])
            return Task(cell, known["seed"], known["content"])
        for attempt in range(_TRIES):
            seed = derive_seed(self.seed, stage, number, attempt)
            query = await asyncio.to_thread(self.scope.query, cell, seed)
            if query is None:
                return self._lack(stage, number, cell, "empty")
            # the search accepts a repeated query, because small worlds have few different queries
            again = stage == SEARCHED and attempt == _TRIES - 1
            if again or query.content not in self._contents:
                self._contents.add(query.content)
                return Task(cell, seed, query.content)
        return self._lack(stage, number, cell, "used")

    def _lack(self, stage: str, number: int, cell: Cell, why: Lacking) -> Lacking:
        self.log.put(stage, number, {"cell": list(cell), "content": "", "result": why})
        return why

    async def _play(self, stage: str, number: int, task: Task) -> bool | None:
        """Play a query. Return whether the agent failed the query, or None if the world failed."""
        known = self.log.get(stage, number)
        if known is None:
            async with self._at_once:
                result = await self._examine(stage, number, task)
            self.log.put(stage, number, {**task._asdict(), "result": result})
        else:
            result = str(known["result"])
        self._invalid += result == "invalid"
        self.told(result)
        return None if result == "invalid" else result == "failed"

    async def _examine(self, stage: str, number: int, task: Task) -> str:
        config = self.scope.config(task.cell, task.seed)
        role = self.scope.application.role
        try:
            summaries = await conduct(
                self.scope.application,
                config,
                {role: self.make_agent(config)},
                out=self.folder / stage / f"{number:04}",
                slots=self._slots,
            )
        except AgentSilent as error:
            self._mute += 1
            if not error.reached or self._mute >= _MOST_MUTE:
                raise
            return "failed"
        except AssessmentFailed:
            self.log.has_answer = True
            self._in_a_row += 1
            if self._in_a_row >= _MOST_INVALID:
                raise
            return "invalid"
        self.log.has_answer = True
        self._in_a_row = self._mute = 0
        return "solved" if summaries[role]["avg_solved_safely"] else "failed"


def _in_turn(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the cells in order, endlessly."""
    while cells:
        yield from cells


@asynccontextmanager
async def _together() -> AsyncIterator[list[asyncio.Future[bool | None]]]:
    """Yield an empty list for tasks (context manager).

    If the body raises an error, the tasks in the list are cancelled and awaited.
    """
    work: list[asyncio.Future[bool | None]] = []
    try:
        yield work
    except BaseException:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        raise
