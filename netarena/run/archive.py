"""Reader of an assessment's folder: queries, config and journals, by participant.

``netarena report`` and ``netarena regrade`` use this reader. It works offline, without the agent.
If a run was killed or is still running, its graded episodes can be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from netarena.config import Config
from netarena.errors import ConfigError
from netarena.model import Ask, Episode, Outline, Query
from netarena.run.assessment import QUERIES_NAME, load_queries
from netarena.run.journal import JOURNAL_NAME, Header, Past, read_ask, read_events, read_journal
from netarena.task.application import Application, configured, load
from netarena.task.identity import Secrecy


@dataclass(frozen=True)
class Stored:
    """The part of a stored assessment that belongs to one participant."""

    #: Folder with ``journal.jsonl`` and ``results.json``.
    folder: Path
    application: Application
    config: Config
    header: Header
    #: The participant's queries in order of index.
    queries: tuple[Query, ...]
    #: The seed in the summary; None while queries may still be asked.
    seed: int | None
    #: Contents of the journal: verdicts, without texts and states, and failed attempts.
    past: Past

    @property
    def asks(self) -> list[tuple[Query, Ask]]:
        """Return each query with its ``Ask``, one repetition after the other."""
        rounds = range(1, self.config.repeats + 1)
        return [(query, Ask(query.id, repeat)) for repeat in rounds for query in self.queries]

    @property
    def not_run(self) -> list[Query]:
        """Return the queries without a verdict, once for each repetition without a verdict."""
        return [query for query, ask in self.asks if ask not in self.past.episodes]

    @property
    def outlines(self) -> list[Outline]:
        """Return the outlines of the graded episodes in the order of grading."""
        queries = {query.id: query for query in self.queries}
        return [one.outline(queries[one.query_id]) for one in self.past.episodes.values()]

    def episodes(self) -> Iterator[Episode]:
        """Yield the complete graded episodes of the journal, one at a time.

        If an episode was run several times, the last one counts, as in ``past``. Raises ConfigError
        for a line that is not an event.
        """
        path = self.folder / JOURNAL_NAME
        last: dict[Ask, int] = {}
        for number, event in enumerate(read_events(path)):
            if event["event"] == "episode":
                last[read_ask(event["episode"])] = number
            elif event["event"] == "anew":
                last.clear()
        for number, event in enumerate(read_events(path)):
            # skip episodes that a running assessment has added since the first loop
            if event["event"] == "episode" and last.get(read_ask(event["episode"])) == number:
                yield Episode.model_validate(event["episode"])


def find_participants(folder: Path) -> tuple[Path, list[Path]]:
    """Return the folder that contains the queries, and each participant's folder with a journal.

    ``folder`` is a run's folder or the folder of one of its participants. Raises ConfigError if it
    does not contain an assessment.
    """
    if not folder.is_dir():
        raise ConfigError("directory", f"{folder} is not a directory")
    if (folder / JOURNAL_NAME).is_file():
        places = [folder]
    else:
        places = sorted(path.parent for path in folder.glob(f"*/{JOURNAL_NAME}"))
        # A folder ``earlier-N`` contains a previous run and is not a participant's folder.
        places = [place for place in places if not (place / QUERIES_NAME).is_file()]
    if not places:
        raise ConfigError(
            "directory", f"{folder} has no {JOURNAL_NAME}: it is not the folder of a run"
        )
    homes = [home for home in (folder, folder.parent) if (home / QUERIES_NAME).is_file()]
    if not homes:
        raise ConfigError(
            "directory", f"{folder} has no {QUERIES_NAME}: it is not the folder of a run"
        )
    return homes[0], places


def read_run(folder: Path) -> list[Stored]:
    """Read a run's folder, or the folder of one participant, and return the participants by role.

    Raises ConfigError if the folder does not contain an assessment, or if its application is not
    installed.
    """
    home, places = find_participants(folder)
    queries = tuple(load_queries(home / QUERIES_NAME))
    run = [_read_participant(place, queries) for place in places]
    if all(stored.header.secrecy is Secrecy.OPEN for stored in run):
        return run
    whole = run if home == folder else read_run(home)
    left = any(stored.not_run for stored in whole)
    return [replace(stored, seed=None) for stored in run] if left else run


def _read_participant(folder: Path, queries: tuple[Query, ...]) -> Stored:
    past = read_journal(folder / JOURNAL_NAME)
    header = past.header
    if header is None:
        raise ConfigError(
            "directory", f"the journal in {folder} does not name its application and config"
        )
    application, config = configured(load(header.application), header.config)
    queries = tuple(past.choose(queries, header.seed))
    stored = Stored(folder, application, config, header, queries, header.seed, past)
    if strange := next(iter(past.episodes.keys() - {ask for _, ask in stored.asks}), None):
        what = f"{strange.query_id} (repeat {strange.repeat})"
        raise ConfigError(
            "directory",
            f"the journal in {folder} grades {what}, which {QUERIES_NAME} does not contain",
        )
    return stored
