"""Contents of a run's page: its config, its rates, and comparisons with other runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from netarena.analysis.intervals import holm
from netarena.analysis.stats import (
    break_down,
    compare,
    failure_types,
    public_config,
    rate_all,
    unsafe_types,
)
from netarena.errors import ConfigError
from netarena.model import JsonValue, Outcome, Outline
from netarena.report.entrant import list_terms
from netarena.task.identity import Secrecy
from netarena.view.index import Run


class Opposed(NamedTuple):
    """Comparison of the page's run with another run."""

    run: Run
    #: ``stats.compare`` with ``p_holm``; empty if the runs are not comparable.
    table: dict[str, Any]
    #: Description of the ``terms`` in which the runs differ; empty if the runs are comparable.
    apart: str


def rates_of(run: Run) -> dict[str, dict[str, Any]]:
    """Return the rates of a run over its graded episodes, without invalid episodes."""
    return rate_all([one for one in _outlines(run) if one.outcome is not Outcome.INVALID])


def breakdowns(run: Run) -> Iterator[tuple[str, str, dict[str, dict[str, Any]]]]:
    """Yield two breakdowns: by ``level`` and by ``label``.

    Each breakdown contains the field's name, its title, and the rates for each value of the field.
    """
    outlines = _outlines(run)
    for by in ("level", "label"):
        yield by, by, break_down(outlines, by)


def outcomes_of(run: Run) -> list[tuple[str, int]]:
    """Return the number of episodes for each outcome, and then for each failure type."""
    outlines = _outlines(run)
    counts = Counter(one.outcome.value.replace("_", " ") for one in outlines)
    kinds = failure_types(outlines)
    return [*sorted(counts.items()), *((kind, count) for kind, count in kinds.items() if count)]


def unsafe_of(run: Run) -> dict[str, int]:
    """Return the number of unsafe episodes by failure type."""
    return unsafe_types(_outlines(run))


def facts(run: Run) -> Iterator[tuple[str, str]]:
    """Yield names and values (as text) of the properties that identify a run."""
    header = run.header
    graded, asked = len(run.entries), run.asked
    yield "application", header.application
    yield "version", header.version
    yield "prompt version", str(header.prompt_version)
    yield "role", header.role
    if run.agent:
        yield "agent", run.agent
    seed = seed_of(run)
    yield "seed", "not shown" if seed is None else str(seed)
    yield "graded", f"{graded} of {asked}"
    if graded < asked:
        yield "state", "running" if run.going else "stopped"


def seed_of(run: Run) -> int | None:
    """Return the run's seed, or None if it must not be shown.

    The seed of a public run is never shown. A secret seed is shown only after the run's last
    episode.
    """
    secret = run.header.secrecy is not Secrecy.OPEN and len(run.entries) < run.asked
    return None if secret or run.public else run.header.seed


def config_text(run: Run) -> str:
    """Return the config as JSON, without API keys and without folders of this machine."""
    try:
        config = public_config(run.config, seed_of(run))
    except ConfigError as error:
        return str(error)
    if run.public:
        config |= {key: None for key in ("output_dir", "benchmark_path") if key in config}
    return json.dumps(config, indent=1, ensure_ascii=False, sort_keys=True)


def oppose(run: Run, runs: Sequence[Run]) -> list[Opposed]:
    """Return a comparison of ``run`` with each other run, including runs with other terms."""
    found = []
    for other in runs:
        if other is run:
            continue
        apart = _apart(run, other)
        table = {} if apart else compare(_outlines(run), _outlines(other))
        found.append(Opposed(other, table, apart))
    told = [one.table for one in found if one.table and one.table["pairs"]]
    for table, p_holm in zip(told, holm([table["p_value"] for table in told]), strict=True):
        table["p_holm"] = p_holm
    return found


def _outlines(run: Run) -> list[Outline]:
    return [entry.outline for entry in run.entries]


def _apart(run: Run, other: Run) -> str:
    try:
        terms, others = run.terms, other.terms
    except ConfigError as error:
        return str(error)
    keys = sorted(key for key in terms.keys() | others.keys() if terms.get(key) != others.get(key))
    texts = []
    for key in keys:
        pair: list[str] = []
        for one in (terms, others):
            value: dict[str, JsonValue] = {key: one.get(key)}
            pair.append(list_terms(value).removeprefix(f"{key} ") or "default")
        texts.append(f"{key} is {pair[0]} in this run and {pair[1]} in the other")
    return "; ".join(texts)
