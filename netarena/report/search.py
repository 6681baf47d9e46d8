"""Documents of an adversarial search: its report, and scenarios for the strata that it found."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from netarena.model import JsonValue
from netarena.report.markdown import percent, table
from netarena.run.scope import Scope
from netarena.run.search import Outcome

#: Default port of the agent in a scenario file.
PORT = 9040
#: Number of queries of a scenario that consists of several files; each label has at least one
#: query.
QUERIES = 100


def write_report(told: Mapping[str, Any]) -> str:
    """Return the report as Markdown, from the content of ``report.json``."""
    searched = told["searched"]
    failed = f"the agent failed {searched['failed']} of {searched['graded']} queries"
    lines = [f"# Search: {told['application']}, {told['agent']}", ""]
    lines += [f"Seed {told['seed']}: {failed}.", "", _compare(told), ""]
    if not told["strata"]:
        lines += ["No kind of query was found in which the agent fails often.", ""]
    else:
        rows = [
            [one["words"], _rate(one), f"{one['failed']} of {one['graded']}"]
            for one in told["strata"]
        ]
        note = (
            "The search chose these kinds because their rates were high. The new queries below "
            "give unbiased rates."
        )
        lines += ["## Kinds of query", "", note, ""]
        lines += [*table(["kind of query", "failure rate", "failed"], rows)]
    rows = [
        [name, _rate(told[key]), f"{told[key]['failed']} of {told[key]['graded']}"]
        for key, name in (
            ("fresh_found", "the kinds found"),
            ("fresh_uniform", "all kinds, uniformly"),
        )
    ]
    lines += ["## New queries", "", *table(["drawn from", "failure rate", "failed"], rows)]
    if told["invalid"]:
        lines += [f"{told['invalid']} queries were invalid and are left out of all rates.", ""]
    if told["scenario"]:
        lines += [f"`netarena run {told['scenario']}` draws queries of these kinds.", ""]
    return "\n".join(lines)


def _compare(told: Mapping[str, Any]) -> str:
    found, uniform = told["fresh_found"], told["fresh_uniform"]
    if not found["graded"] or not uniform["graded"]:
        return ""
    low, high = told["difference"]
    return (
        f"The agent failed {percent(found['failure_rate'])} of the new queries of the kinds found "
        f"and {percent(uniform['failure_rate'])} of those drawn uniformly from all kinds. "
        f"The 95 % interval of the difference is {100 * low:.0f} to {100 * high:.0f} points."
    )


def _rate(count: Mapping[str, Any]) -> str:
    low, high = count["interval"]
    return f"{percent(count['failure_rate'])} [{100 * low:.0f}–{100 * high:.0f}]"


def write_scenarios(
    scope: Scope, outcome: Outcome, participant: Mapping[str, str], seed: int | None
) -> dict[str, str]:
    """Return the scenario files by name.

    Each setting has its own file, and ``scenario.toml`` lists these files. If there is only one
    setting, its file is ``scenario.toml``.

    ``participant`` has the key ``role`` and one of ``endpoint``, ``cmd`` and ``exec``. In a
    command, ``{settings}`` is replaced with the options with which ``netarena-purple`` uses the
    same config as the scenario file. ``seed`` is the seed of the queries; without ``seed``, each
    run draws new queries. The result is empty if no stratum was found.
    """
    by_setting: dict[int, list[str]] = {}
    for cell in outcome.cells:
        by_setting.setdefault(cell.setting, []).append(scope.space.labels[cell.label].name)
    number = max(1, -(-QUERIES // max(1, len(outcome.cells))))
    texts = []
    for setting, labels in by_setting.items():
        values = {**scope.values(setting, labels), "num_queries": number}
        if seed is not None:
            values["seed"] = seed
        texts.append(_scenario(scope.application.name, participant, values))
    if len(texts) < 2:
        return dict.fromkeys(["scenario.toml"], texts[0]) if texts else {}
    files = {f"strata/{at}.toml": text for at, text in enumerate(texts, start=1)}
    return {**files, "scenario.toml": f"scenarios = {_toml([*files])}\n"}


def _scenario(
    application: str, participant: Mapping[str, str], values: Mapping[str, JsonValue]
) -> str:
    words = [
        word
        for key, value in values.items()
        for word in (
            ("--seed", str(value)) if key == "seed" else ("--set", f"{key}={json.dumps(value)}")
        )
    ]
    told = {
        key: value.replace("{settings}", shlex.join(words)) for key, value in participant.items()
    }
    return "\n".join(
        [
            "# Kinds of query that 'netarena search' found to be hard for this agent.",
            "",
            "[green_agent]",
            f"application = {_toml(application)}",
            "",
            "[[participants]]",
            *(f"{key} = {_toml(value)}" for key, value in told.items()),
            "",
            "[config]",
            *(f"{key} = {_toml(value)}" for key, value in values.items()),
            "",
        ]
    )


def _toml(value: JsonValue | Sequence[str]) -> str:
    """Return a text, number, boolean, list or table as TOML.

    All values except tables look the same as in JSON.
    """
    if isinstance(value, dict):
        inside = ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items())
        return f"{{ {inside} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
