"""Filtering, ordering and totals of the episodes in a list.

``asset/view.js`` does the same for static pages, and a test compares the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlencode

from netarena.analysis.stats import VERDICTS, rate_all
from netarena.model import Ask, Outcome
from netarena.view.index import Entry

#: Number of rows on one page.
PAGE_ROWS = 100
#: Maximum number of characters of a search text.
_MOST_CHARS = 200


def _anyone(_: Entry) -> bool:
    return True


def _has_verdict(entry: Entry) -> bool:
    return entry.outline.outcome in {Outcome.SOLVED, Outcome.UNSOLVED}


def tokens_of(entry: Entry) -> int | None:
    """Return an episode's input plus output tokens, or None if they are unknown."""
    usage = entry.outline.usage
    return usage.input_tokens + usage.output_tokens if usage and usage.replies else None


def cost_of(entry: Entry) -> float | None:
    """Return the cost of an episode in US dollars, or None if the agent did not report it."""
    usage = entry.outline.usage
    return usage.cost_usd if usage else None


#: Value of ``show`` -> its label and its condition.
SHOWS: Mapping[str, tuple[str, Callable[[Entry], bool]]] = {
    "": ("all episodes", _anyone),
    "lost": ("not solved safely", lambda entry: entry.lost),
    "solved": ("solved safely", lambda entry: VERDICTS["solved_safely"](entry.outline)),
    "wrong": ("not solved", lambda entry: entry.outline.outcome is Outcome.UNSOLVED),
    "failed": ("agent failed", lambda entry: entry.outline.outcome is Outcome.AGENT_FAILED),
    "invalid": (
        "invalid (environment failure)",
        lambda entry: entry.outline.outcome is Outcome.INVALID,
    ),
}
#: Value of ``safe`` -> its label and its condition.
SAFETIES: Mapping[str, tuple[str, Callable[[Entry], bool]]] = {
    "": ("safe or not", _anyone),
    "yes": ("safe", lambda entry: VERDICTS["safety"](entry.outline)),
    "no": ("not safe", lambda entry: _has_verdict(entry) and not entry.outline.safe),
}
#: Filter -> its label, and the function that returns the value of an entry to compare.
FACETS: Mapping[str, tuple[str, Callable[[Entry], str]]] = {
    "run": ("all runs", lambda entry: entry.run.slug),
    "label": ("all labels", lambda entry: entry.outline.label),
    "level": ("all levels", lambda entry: entry.outline.level),
    "kind": ("all failure types", lambda entry: entry.outline.failure or ""),
}
#: Separator between the two runs in a value of ``pair``. Such a value selects queries that only the
#: first run solved safely.
APART = ","
#: Value of ``sort`` -> sort key of an entry. A minus sign before the value reverses the order.
SORTS: Mapping[str, Callable[[Entry], Any]] = {
    "graded": lambda entry: entry.number,
    "outcome": lambda entry: (not entry.lost, entry.outline.safe, entry.outline.outcome.value),
    "id": lambda entry: entry.outline.ask,
    "run": lambda entry: entry.run.slug,
    "label": lambda entry: entry.outline.label,
    "level": lambda entry: entry.outline.level,
    "turns": lambda entry: entry.outline.iterations,
    "time": lambda entry: entry.outline.agent_time_s,
    "tokens": lambda entry: -1 if (count := tokens_of(entry)) is None else count,
    "cost": lambda entry: -1.0 if (cost := cost_of(entry)) is None else cost,
}
#: Columns that a list shows only if at least one episode has a value for them.
COLUMNS: Mapping[str, Callable[[Entry], bool]] = {
    "turns": lambda entry: entry.outline.iterations > 1,
    "tokens": lambda entry: tokens_of(entry) is not None,
    "cost": lambda entry: cost_of(entry) is not None,
}


@dataclass(frozen=True)
class Selection:
    """A filter, an order and a page number, as in the query string of a list."""

    show: str = ""
    safe: str = ""
    run: str = ""
    label: str = ""
    level: str = ""
    kind: str = ""
    pair: str = ""
    text: str = ""
    sort: str = "graded"
    page: int = 1

    @classmethod
    def read(cls, parameters: Mapping[str, str]) -> Selection:
        """Parse a query string. Invalid values are ignored."""
        values: dict[str, Any] = {name: parameters.get(name, "")[:_MOST_CHARS] for name in FACETS}
        page = parameters.get("page", "")
        return cls(
            **values,
            show=show if (show := parameters.get("show", "")) in SHOWS else "",
            safe=safe if (safe := parameters.get("safe", "")) in SAFETIES else "",
            pair=parameters.get("pair", "")[:_MOST_CHARS],
            text=parameters.get("text", "")[:_MOST_CHARS],
            sort=sort if (sort := parameters.get("sort", "")).lstrip("-") in SORTS else "graded",
            page=int(page) if page.isascii() and page.isdigit() and 0 < len(page) < 9 else 1,
        )

    def search(self, **changes: Any) -> str:
        """Return the query string after ``changes``, with its question mark; "" for the defaults.

        Without ``page`` in ``changes``, the query string is for the first page.
        """
        other = replace(self, **({"page": 1} | changes))
        values = {
            name: value for name, value in asdict(other).items() if value != getattr(_NOTHING, name)
        }
        return "?" + urlencode(values, errors="replace") if values else ""

    @property
    def filters(self) -> bool:
        """Return whether a filter is set, so that the list may omit episodes."""
        return replace(self, sort="graded", page=1) != _NOTHING

    def choose(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries that match the filter, in the selected order.

        For a pair of runs, these are the second run's failed episodes that the first run solved
        safely.
        """
        tests: list[Callable[[Entry], bool]] = []
        if self.show:
            tests.append(SHOWS[self.show][1])
        if self.safe:
            tests.append(SAFETIES[self.safe][1])
        for name, (_, field) in FACETS.items():
            if wanted := getattr(self, name):
                tests.append(partial(_equals, field, wanted))
        if self.pair:
            pairs = discordant(entries)
            tests.append(lambda entry: self.pair in pairs.get(entry.path, ()))
        if self.text:
            runs = {entry.run.slug: entry.run for entry in entries}
            found = {slug: run.search(self.text) for slug, run in runs.items()}
            tests.append(lambda entry: entry.outline.ask in found[entry.run.slug])
        chosen = [entry for entry in entries if all(test(entry) for test in tests)]
        key = SORTS[self.sort.lstrip("-")]
        if self.sort != "graded":
            chosen.sort(key=key, reverse=self.sort.startswith("-"))
        return chosen


_NOTHING = Selection()


def _equals(field: Callable[[Entry], str], wanted: str, entry: Entry) -> bool:
    return field(entry) == wanted


def discordant(entries: Iterable[Entry]) -> dict[str, list[str]]:
    """Map the path of each failed episode to the pairs of runs to which the episode belongs.

    The first run of a pair solved the query safely, and the second run is the run of the episode.
    Episodes whose query no run solved safely are omitted.
    """
    solved: dict[Ask, list[str]] = {}
    failed = []
    for entry in entries:
        if entry.lost:
            failed.append(entry)
        elif VERDICTS["solved_safely"](entry.outline):
            solved.setdefault(entry.outline.ask, []).append(entry.run.slug)
    return {
        entry.path: [
            f"{slug}{APART}{entry.run.slug}"
            for slug in solved[entry.outline.ask]
            if slug != entry.run.slug
        ]
        for entry in failed
        if entry.outline.ask in solved
    }


def tally(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the number of entries, and the graded entries' ``rates`` with intervals."""
    counted = [entry.outline for entry in entries if entry.outline.outcome is not Outcome.INVALID]
    return {
        "episodes": len(entries),
        "lost": sum(entry.lost for entry in entries),
        "rates": rate_all(counted),
    }
