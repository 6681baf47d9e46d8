"""Entrant of a report: an agent's run, read from its folder or from a result file.

A folder contains the journal with every step. A result file comes from ``run --json``, ``request``,
the standard client or the public leaderboard. It contains one record per episode and a summary,
with rates and failure types but without transcripts.

Runs are ranked together only if their ``terms`` are equal:

- the application and the version of its generator
- the config keys that determine the queries, except their number
- the briefing
- the limits of an episode (turns, seconds per reply)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from netarena.analysis.intervals import wilson
from netarena.analysis.stats import count_unasked, rate_all, summarise, tell_repeats
from netarena.config import Briefing, Config, with_seed_text
from netarena.errors import ConfigError
from netarena.model import Episode, FailureKind, JsonValue, Outcome, Outline, Query, Usage
from netarena.report.file import read_documents
from netarena.run.archive import Stored, read_run
from netarena.run.assessment import RESULTS_NAME
from netarena.run.journal import JOURNAL_NAME, Header
from netarena.task.application import Application, application_names, forwarded, load
from netarena.task.ticket import LEFTOVER

#: Keys that determined the queries themselves in older versions, and now determine only their
#: number.
COUNTS = frozenset({"num_queries"})
#: The role of the green agent, which is not a participant.
GREEN = "green_agent"


#: Keys that are copied from a result file's summary, with their required types. Rates and measures
#: are also copied.
_TAKEN = {
    "version": str,
    "prompt_version": int,
    "seed": int,
    "config": dict,
    "not_run": int,
    "not_run_counted": bool,
    "complete": bool,
    "distinct": int,
    "solved_unseen_by": str,
    "agent_input_tokens": int,
    "agent_output_tokens": int,
}


@dataclass(frozen=True)
class Lost:
    """A graded episode that was not solved safely, with the data from its record."""

    id: str
    repeat: int
    label: str
    level: str
    outcome: str
    safe: bool
    kind: str
    rule: str
    why: str


@dataclass(frozen=True)
class Entrant:
    """One agent's run."""

    #: Unique name in a report.
    name: str
    role: str
    #: The run's folder, or the result file.
    source: str
    application: str
    title: str
    agents: tuple[tuple[str, str], ...]
    #: Settings that must be equal for two runs to be ranked together.
    terms: Mapping[str, JsonValue]
    queries: int
    outlines: Sequence[Outline]
    #: Queries that were never asked and count as failures.
    unasked: Sequence[Query]
    summary: Mapping[str, Any]
    #: Failed episodes of a result file; empty for folders.
    lost: Sequence[Lost] = ()
    #: Runs in folders: one, or several with different seeds; empty for a result file.
    runs: tuple[Stored, ...] = ()
    #: The reason why the run cannot be ranked, if the agent did not answer in any episode.
    failed: str = ""

    @property
    def latency(self) -> str:
        """Return the ``stats.mean_costs`` key of the mean that the paper calls latency.

        This mean is the execution time in applications with one reply per query, and the number of
        turns in other applications.
        """
        known = self.runs[0].application if self.runs else application_of(self.role)
        return "execution_s" if known is not None and known.one_shot else "iterations"

    @property
    def episodes(self) -> list[Episode]:
        """Return the episodes of the runs in folders, without texts and states."""
        return [episode for run in self.runs for episode in run.past.episodes.values()]


def read_entrants(paths: Sequence[Path]) -> list[Entrant]:
    """Return all participants of run folders and result files, each with a unique name.

    Runs of one agent with different seeds are merged into one entrant (``_pool``). Raises
    ConfigError for other paths.
    """
    found: list[Entrant] = []
    for path in paths:
        if path.is_file() or not path.exists():
            found += _from_file(path)
        elif (files := sorted(_results(path))) and not any(path.glob(f"**/{JOURNAL_NAME}")):
            found += [entrant for file in files for entrant in _from_file(file)]
        else:
            found += from_run(read_run(path))
    return _named(_pool(found)) if len(paths) > 1 else found


def _results(folder: Path) -> Iterator[Path]:
    """Return the result files that ``netarena request`` wrote into a folder or its subfolders."""
    for pattern in (RESULTS_NAME, f"*/{RESULTS_NAME}"):
        yield from (path for path in folder.glob(pattern) if "earlier-" not in path.parent.name)


def from_run(run: Sequence[Stored]) -> list[Entrant]:
    """Return one entrant for each participant of a run."""
    return [_from_stored(stored) for stored in run]


def _from_stored(stored: Stored) -> Entrant:
    episodes = list(stored.past.episodes.values())
    outlines = stored.outlines
    not_run = stored.not_run
    unasked = count_unasked(stored.config, outlines, not_run, ended=stored.past.ended)
    header = stored.header
    return Entrant(
        name=header.role,
        role=header.role,
        source=str(stored.folder),
        application=stored.application.name,
        title=stored.application.title,
        agents=tuple(sorted({(one.agent.name, one.agent.base_url) for one in episodes})),
        terms=terms_of_run(stored.application, header, stored.config, complete=not not_run),
        queries=len(stored.queries),
        outlines=outlines,
        unasked=unasked,
        # the run may be from an earlier release with other versions of queries and prompts
        summary=summarise(
            stored.application,
            stored.config,
            stored.seed,
            outlines,
            not_run,
            unasked=unasked,
            replaced=len(stored.past.replaced),
        )
        | header.versions(),
        runs=(stored,),
        failed=stored.past.failed if stored.past.silent else "",
    )


def _pool(entrants: Sequence[Entrant]) -> list[Entrant]:
    """Merge comparable runs of one agent with different seeds into one entrant.

    Only folders are merged, because a result file may not contain its seed. If two runs of an agent
    have the same seed, none of its runs are merged, because the agent may have changed between
    them.
    """
    alike: dict[str, list[int]] = {}
    for place, one in enumerate(entrants):
        # The URL is ignored if the agent listens on any free port, because the URL then differs in
        # each run.
        names = [name for name, _ in one.agents]
        same = [one.role, names, one.terms, *(run.config.repeats for run in one.runs)]
        alone = [] if one.runs and not one.failed else [place]
        alike.setdefault(json.dumps([same, alone], sort_keys=True), []).append(place)
    found: dict[int, Entrant] = {}
    for places in alike.values():
        members = [entrants[place] for place in places]
        seeds = {run.seed for one in members for run in one.runs if run.seed is not None}
        if 1 < len(members) == len(seeds):
            found[places[0]] = _merge(members)
        else:
            found |= dict(zip(places, members, strict=True))
    return [found[place] for place in sorted(found)]


def _merge(members: Sequence[Entrant]) -> Entrant:
    runs = tuple(run for one in members for run in one.runs)
    seeds = sorted(run.seed for run in runs if run.seed is not None)
    outlines = [outline for one in members for outline in one.outlines]
    not_run = [query for run in runs for query in run.not_run]
    unasked = [query for one in members for query in one.unasked]
    summary = summarise(
        runs[0].application,
        runs[0].config,
        None,
        outlines,
        not_run,
        unasked=unasked,
        replaced=sum(len(run.past.replaced) for run in runs),
    )
    return replace(
        members[0],
        source=", ".join(one.source for one in members),
        agents=tuple(sorted({agent for one in members for agent in one.agents})),
        queries=sum(one.queries for one in members),
        outlines=outlines,
        unasked=unasked,
        summary=summary | with_seed_text({**runs[0].header.versions(), "seeds": seeds}),
        runs=runs,
    )


def terms_of_run(
    application: Application, header: Header, config: Config, *, complete: bool
) -> dict[str, JsonValue]:
    """Return the terms of a stored run, which must be equal for two runs to be compared."""
    asked = _terms(
        header.application,
        header.version,
        header.prompt_version,
        config.shape(),
        config.briefing,
    )
    return asked | _limits(application, config, complete=complete)


def _terms(
    application: str,
    version: str | None,
    prompt_version: JsonValue,
    shape: Mapping[str, JsonValue],
    briefing: JsonValue,
) -> dict[str, JsonValue]:
    rest = {key: value for key, value in shape.items() if key not in COUNTS}
    # a missing version means version 1, and a missing briefing means the full briefing
    if type(prompt_version) is int and prompt_version != 1:
        rest["prompt_version"] = prompt_version
    if briefing not in {None, Briefing.FULL.value}:
        rest["briefing"] = str(briefing)
    return {"application": application, "version": version, **rest}


def _limits(
    application: Application, config: Config, *, complete: bool = True
) -> dict[str, JsonValue]:
    """Return the episode limits of a config that differ from their defaults.

    For an incomplete run, the result includes the assessment's time budget, because this budget may
    have ended the run.
    """
    found = config.limits()
    if "max_iterations" in found and found["max_iterations"] is None:
        found["max_iterations"] = "computed"
    if application.one_shot:
        found.pop("max_iterations", None)
    if not complete and config.time_budget_s is not None:
        found["time_budget_s"] = config.time_budget_s
    return found


def limits_of(role: str, summary: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return the episode limits in a result file's summary that differ from their defaults.

    A config that this version cannot read counts as a config without limits.
    """
    application = application_of(role)
    config = summary.get("config")
    if application is None or not isinstance(config, dict):
        return {}
    application = forwarded(application, config)
    known = {key: config[key] for key in config.keys() & application.config_type.model_fields}
    try:
        read = application.config_type.parse(known)
    except ConfigError:
        return {}
    return _limits(application, read, complete=summary.get("complete") is not False)


def terms_of(role: str, summary: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return the terms of a result file: application, versions, shape and briefing, without limits.

    A file of the reference implementation has no terms.
    """
    application = application_of(role)
    version = summary.get("version")
    config = summary.get("config")
    shape: dict[str, JsonValue] = {}
    if application is not None and isinstance(config, dict):
        application = forwarded(application, config)
        known = {key: config[key] for key in config.keys() & application.config_type.model_fields}
        try:
            shape = application.config_type.parse(known).shape()
        except ConfigError:  # the config is of another version
            shape = {key: known[key] for key in application.config_type().shape() if key in known}
    name = application.recorded_name if application else role
    told = config.get("briefing") if isinstance(config, dict) else None
    briefing = told if isinstance(told, str) else None
    return _terms(
        name,
        version if isinstance(version, str) else None,
        summary.get("prompt_version"),
        shape,
        briefing,
    )


@cache
def application_of(role: str) -> Application | None:
    """Return the installed application whose participants have this role, or None.

    Two applications can have the same role if one of them was split off from the other. The result
    is then the older application.
    """
    for name in application_names():
        try:
            application = load(name)
        except ConfigError:
            continue
        if application.role == role and application.recorded_name == application.name:
            return application
    return None


#: Details that may distinguish entrants with the same agent name, in order of preference.
_DETAILS: tuple[Callable[[Entrant], str], ...] = (
    lambda one: one.application,
    lambda one: Path(one.source).name,
    lambda one: f"{Path(one.source).name}, {one.role}",
    lambda one: one.source,
)


def _named(entrants: list[Entrant]) -> list[Entrant]:
    """Return the entrants, named after their agents; a detail or number distinguishes equal
    names."""
    alike: dict[str, list[int]] = {}
    for place, one in enumerate(entrants):
        alike.setdefault(", ".join(name for name, _ in one.agents) or one.role, []).append(place)
    named = list(entrants)
    for name, places in alike.items():
        members = [entrants[place] for place in places]
        told = next(
            (
                [f"{name} ({detail(one)})" for one in members]
                for detail in _DETAILS
                if len(set(map(detail, members))) == len(members)
            ),
            [f"{name} #{number}" for number in range(1, len(members) + 1)],
        )
        for place, whole in zip(places, told if len(members) > 1 else [name], strict=True):
            named[place] = replace(entrants[place], name=whole)
    return named


def _from_file(path: Path) -> list[Entrant]:
    if not path.exists():
        raise ConfigError("DIR|FILE", f"{path} is neither a folder of a run nor a result file")
    entrants = []
    for document in read_documents(path):
        *records, summary = document["results"] or [{}]
        if not isinstance(summary, dict):
            raise ConfigError("file", f"{path}: the last entry of results is not a summary")
        for role, name in document["participants"].items():
            if role != GREEN:
                entrants.append(_from_records(path, role, name, records, summary))
    if not entrants:
        raise ConfigError(
            "file", f"{path} contains no participant to report (green agents are not reported)"
        )
    return entrants


def _from_records(
    path: Path, role: str, name: str, records: Sequence[Any], summary: Mapping[str, Any]
) -> Entrant:
    application = application_of(role)
    if application is not None:
        application = forwarded(application, summary.get("config"))
    outlines, lost = [], []
    for number, record in enumerate(records):
        if not isinstance(record, dict):
            raise ConfigError("file", f"{path}: record {number + 1} of results is not an object")
        outline = _outline(application, record, number)
        outlines.append(outline)
        if outline.outcome is not Outcome.INVALID and not (outline.correct and outline.safe):
            lost.append(_lost(record, outline))
    known = records[0].get("agent_info") if records else None
    info = known if isinstance(known, dict) else {}
    agent = str(info.get("name", name)), str(info.get("base_url", name))
    queries = {outline.query_id for outline in outlines}
    return Entrant(
        name=role,
        role=role,
        source=str(path),
        application=application.name if application else role,
        title=application.title if application else role,
        agents=(agent,),
        terms=terms_of(role, summary) | limits_of(role, summary),
        queries=len(queries),
        outlines=outlines,
        unasked=(),
        summary=_complete(summary, outlines),
        lost=lost,
    )


def _outline(application: Application | None, record: Mapping[str, Any], number: int) -> Outline:
    """Return the outline of the episode in a result file's record.

    For a record of an unknown application, all known keys are tried. ``number`` is the record's
    position, starting at 0.
    """
    correct, safe, label, turns = (
        application.read_record(record) if application else Application.read_record(record)
    )
    try:
        outcome = Outcome(record.get("outcome", "solved" if correct else "unsolved"))
    except ValueError:
        outcome = Outcome.UNSOLVED
    try:
        failure = FailureKind(record["failure_type"])
    except (KeyError, ValueError):
        failure = None
    usage = None
    if "agent_input_tokens" in record:
        with_cost = {
            "replies": 1,
            "input_tokens": record["agent_input_tokens"],
            "output_tokens": record.get("agent_output_tokens", 0),
            "cost_usd": record.get("agent_cost_usd"),
        }
        try:
            usage = Usage.model_validate(with_cost)
        except ValidationError:
            usage = None
    query_id = str(record.get("id", f"record {number + 1}"))
    repeat = record.get("repeat", 1)
    return Outline(
        query_id=query_id,
        repeat=repeat if type(repeat) is int and repeat > 0 else 1,
        label=label,
        level=str(record.get("level", "unknown")),
        outcome=outcome,
        correct=correct,
        safe=safe,
        iterations=turns,
        reason="",
        detail="",
        evidence=(),
        failure=failure,
        unsafe_by="",
        agent_time_s=_number(record.get("agent_time_s")),
        execution_time_s=_number(record.get("execution_time_s")),
        own_time_s=0.0,
        world_s=0.0,
        queue_s=0.0,
        usage=usage,
        noted=_noted(application, record, correct=correct),
    )


def _noted(
    application: Application | None, record: Mapping[str, Any], *, correct: bool
) -> tuple[str, ...]:
    names = (*(application.notes if application else ()), *([LEFTOVER] if correct else ()))
    return tuple(name for name in names if record.get(name))


def _number(value: Any) -> float:
    return float(value) if type(value) in {int, float} and 0 <= value < 1e9 else 0.0


def _lost(record: Mapping[str, Any], outline: Outline) -> Lost:
    words = [record.get(key) for key in ("why", "Verifier-Error", "Error")]
    return Lost(
        id=outline.query_id,
        repeat=outline.repeat,
        label=outline.label,
        level=outline.level,
        outcome=outline.outcome.value,
        safe=outline.safe,
        kind=str(record.get("failure_type", "")),
        rule=str(record.get("failure_rule", "")),
        why=next((word for word in words if isinstance(word, str) and word), ""),
    )


def _complete(summary: Mapping[str, Any], outlines: Sequence[Outline]) -> dict[str, Any]:
    """Return a complete summary; compute the keys that older summaries lack from the records.

    Intervals are always recomputed from the records. If the summary and the records differ in the
    number of graded episodes, intervals are recomputed from the summary's rates instead.
    """
    graded = [one for one in outlines if one.outcome is not Outcome.INVALID]
    outcomes = Counter(one.outcome for one in outlines)
    rates = rate_all(graded)
    whole: dict[str, Any] = {
        **{f"avg_{name}": rate["rate"] for name, rate in rates.items()},
        "version": None,
        "prompt_version": 1,
        "seed": None,
        "config": {},
        "outcomes": {outcome.value: outcomes[outcome] for outcome in Outcome},
        "failure_types": {},
        "invalid": [],
        "not_run": 0,
        "not_run_counted": False,
        "complete": True,
        "graded": len(graded),
        **tell_repeats(max((one.repeat for one in outlines), default=1), graded),
        **{key: value for key, value in summary.items() if _is_taken(key, value)},
    }
    n = whole["graded"]
    whole["intervals"] = {
        name: rate["interval"]
        if n == len(graded)
        else list(wilson(min(n, round((whole[f"avg_{name}"] or 0) * n)), n))
        for name, rate in rates.items()
    }
    return whole


def _is_taken(key: str, value: Any) -> bool:
    """Return whether a value from the summary of an untrusted result file is accepted.

    ``read_documents`` has already checked rates and counts.
    """
    if key.startswith("avg_") or key == "graded":
        return value is not None
    kind = _TAKEN.get(key)
    return kind is not None and type(value) is kind


def text_of(terms: Mapping[str, JsonValue]) -> str:
    """Return ``terms`` as one line: the application and its version, then the other keys."""
    version = terms.get("version")
    rest = list_terms({key: terms[key] for key in terms if key not in {"application", "version"}})
    first = f"{terms['application']} {version or 'of an unknown version'}"
    return f"{first}: {rest}" if rest else first


def list_terms(terms: Mapping[str, JsonValue]) -> str:
    """Return ``terms`` as one line of keys and values. Null values are omitted."""
    return ", ".join(f"{key} {_value(terms[key])}" for key in terms if terms[key] is not None)


def _value(value: JsonValue) -> str:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return " ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)
