"""``netarena request``: request an assessment from a green agent and store its results."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import click

from netarena.a2a.green import TAKES_GREEN, Assessed, request_assessment
from netarena.a2a.request import EvalRequest, check_url
from netarena.cli.interrupt import run_until_stopped
from netarena.cli.option import RUNS, json_option
from netarena.cli.screen import Meter, bounded, show_table
from netarena.cli.terminal import json_text
from netarena.errors import AssessmentFailed, ConfigError
from netarena.report.markdown import number, percent
from netarena.run.assessment import RESULTS_NAME
from netarena.run.result import write_json

#: Name of the file with the records of an incomplete assessment. It has no summary, and
#: leaderboards do not read it.
PARTIAL_NAME = "results.partial.json"
#: Maximum number of displayed characters of a status message.
MOST_SAID = 300


@click.command("request")
@click.argument("url", metavar="URL")
@click.argument("text", metavar="REQUEST")
@click.option(
    "--out",
    default=Path(RUNS) / "request",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    show_default=True,
    help="Folder for results.json; with several participants, each has its own folder below it.",
)
@click.option(
    "--id",
    "ids",
    multiple=True,
    metavar="ROLE=ID",
    help="Name of a participant in results.json, instead of its URL.",
)
@json_option("the content of results.json")
def command(*, url: str, text: str, out: Path, ids: tuple[str, ...], as_json: bool) -> None:
    """Ask the green agent at URL for the assessment that REQUEST describes.

    REQUEST is JSON: {"participants": {"<role>": "<url>"}, "config": {...}}.
    """
    check_url(url, "URL")
    request = EvalRequest.parse(text)
    named = request.participants | _read_ids(ids, request.participants)
    arrived = Arrived(named, out)
    documents = run_until_stopped(lambda: assess(url, text, arrived), hint=lambda: arrived.kept)
    if as_json:
        print_documents(documents)
        return
    show_documents(documents)
    click.echo(f"{out}")


def _read_ids(pairs: tuple[str, ...], roles: Collection[str]) -> dict[str, str]:
    """Return the ids in the pairs ROLE=ID, by role. Raises ConfigError."""
    ids = {}
    for pair in pairs:
        role, _, known = pair.partition("=")
        if role not in roles or not known:
            told = ", ".join(roles)
            raise ConfigError("--id", f"must be ROLE=ID, with {told} as ROLE, not {pair!r}")
        ids[role] = known
    return ids


class Arrived:
    """Results of an assessment that have arrived so far, to be written to the folder ``out``.

    ``participants`` maps roles to the participants' names in ``results.json``.
    """

    def __init__(self, participants: Mapping[str, str], out: Path) -> None:
        self.participants = participants
        self.out = out
        self.results: dict[str, list[Any]] = {}
        #: Message that names the file with the records of an incomplete assessment; empty if no
        #: records have been written.
        self.kept = ""

    def keep(self) -> None:
        """Write the records of an incomplete assessment to ``PARTIAL_NAME``."""
        records = {role: found for role, found in self.results.items() if any(map(_is_json, found))}
        for folder, document in _documents(records, self.participants, self.out):
            _keep_earlier(folder)
            write_json(folder / PARTIAL_NAME, document)
        if records:
            number = sum(map(len, records.values()))
            self.kept = f"the {number} records received so far are in {PARTIAL_NAME} in {self.out}"


class _NoResults(AssessmentFailed):
    """The reply does not contain an assessment, so nothing is stored."""


async def assess(url: str, text: str, arrived: Arrived) -> list[dict[str, Any]]:
    """Request an assessment, show its progress, and write ``results.json`` for each participant.

    Return the contents of these files. Records of an incomplete assessment are written to
    ``PARTIAL_NAME``. Raises AssessmentFailed.
    """
    try:
        with Meter("the assessment") as meter:

            def tell(role: str, record: Any) -> None:
                arrived.results.setdefault(role, []).append(record)
                # the summary is the last record and has no outcome
                if isinstance(record, dict) and "outcome" in record:
                    meter.advance(str(record["outcome"]))

            def hear(said: str, known: Mapping[str, Any]) -> None:
                total = known.get("total")
                if isinstance(total, int | float):
                    meter.expect(int(total))
                # the meter shows its own estimate of the remaining time, not the service's
                if total is not None or "eta_s" not in known:
                    meter.tell(said[:MOST_SAID])

            assessed = await request_assessment(url, text, told=tell, heard=hear)
        return keep(assessed, arrived.participants, arrived.out)
    except _NoResults:
        raise
    except AssessmentFailed as error:
        arrived.keep()
        if arrived.kept:
            raise AssessmentFailed(f"{error}; {arrived.kept}") from None
        raise
    except asyncio.CancelledError:
        arrived.keep()
        raise


def keep(assessed: Assessed, participants: Mapping[str, str], out: Path) -> list[dict[str, Any]]:
    """Write a file ``results.json`` for each participant; return the contents of these files.

    Existing files are moved to ``earlier-N/``. Raises AssessmentFailed if the task did not
    complete, or has no results.
    """
    if assessed.state != "completed":
        raise AssessmentFailed(f"the assessment ended with state {assessed.state}: {assessed.said}")
    found = assessed.results or {"": []}
    if not all(_has_summary(each, known=name in participants) for name, each in found.items()):
        said = assessed.said or str(next(chain.from_iterable(found.values()), ""))
        raise _NoResults(f"the agent replied without results: {said:.200}: {TAKES_GREEN}")
    documents = []
    for folder, document in _documents(assessed.results, participants, out):
        _keep_earlier(folder)
        write_json(folder / RESULTS_NAME, document)
        documents.append(document)
    return documents


def _has_summary(results: list[Any], *, known: bool) -> bool:
    """Return whether the parts of an artifact are records and a summary.

    A single JSON object is treated as the reply of an agent under test. Exceptions are an artifact
    with the name of a participant (``known``), and an object with averages like a summary.
    """
    if not results or not _is_json(results[-1]):
        return False
    return known or len(results) > 1 or any(key.startswith("avg_") for key in results[-1])


def _is_json(value: Any) -> bool:
    """Return whether ``value`` is a JSON object, as records and summaries are."""
    return isinstance(value, dict)


def _documents(
    results: Mapping[str, list[Any]], participants: Mapping[str, str], out: Path
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the folder and the content of each participant's file."""
    # if there is only one participant and only one artifact, they belong together, even if the
    # artifact has another name
    alone = len(participants) == len(results) == 1
    for name, found in results.items():
        role = next(iter(participants)) if alone else name
        document = {"participants": {role: participants.get(role, role)}, "results": found}
        yield out if len(results) == 1 else out / role, document


def _keep_earlier(folder: Path) -> None:
    left = [name for name in (RESULTS_NAME, PARTIAL_NAME) if (folder / name).exists()]
    if not left:
        return
    number = 1
    while (folder / f"earlier-{number}").exists():
        number += 1
    earlier = folder / f"earlier-{number}"
    earlier.mkdir()
    for name in left:
        (folder / name).rename(earlier / name)


def print_documents(documents: list[dict[str, Any]]) -> None:
    """Print the content of the only ``results.json``, or a list of the contents, as JSON."""
    shown = documents if len(documents) > 1 else documents[0]
    click.echo(json_text(shown, indent=2))


def show_documents(documents: list[dict[str, Any]]) -> None:
    """Print a table of participants from their summaries."""
    rows = []
    for document in documents:
        summary = document["results"][-1]
        interval = summary.get("intervals", {}).get("solved_safely", (0.0, 1.0))
        rest = [
            f"{key.removeprefix('avg_')} {number(value)}"
            for key, value in summary.items()
            if key in {"avg_iterations", "avg_latency_s"}
        ]
        rows.append(
            (
                ", ".join(f"{role}: {url}" for role, url in document["participants"].items()),
                bounded(summary.get("avg_solved_safely"), interval),
                percent(summary.get("avg_correctness")),
                percent(summary.get("avg_safety")),
                ", ".join(rest),
                summary.get("graded", len(document["results"]) - 1),
            )
        )
    show_table(("participant", "solved safely", "correct", "safe", "", "graded"), rows)
