"""``netarena request``: ask a green agent for an assessment and keep its results."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

from netarena.a2a.green import Assessed, request_assessment
from netarena.a2a.request import EvalRequest, check_url
from netarena.assessment import RESULTS_NAME
from netarena.cli.interrupt import run_until_stopped
from netarena.cli.option import RUNS, json_option
from netarena.cli.screen import Meter, bounded, show_table
from netarena.cli.text import json_text
from netarena.errors import AssessmentFailed, ConfigError
from netarena.report.markdown import number, percent
from netarena.result import write_json


@click.command("request")
@click.argument("url", metavar="URL")
@click.argument("text", metavar="REQUEST")
@click.option(
    "--out",
    default=Path(RUNS) / "request",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    show_default=True,
    help="Where results.json goes; with several participants a folder for each below it.",
)
@click.option(
    "--id",
    "ids",
    multiple=True,
    metavar="ROLE=ID",
    help="What results.json calls a participant instead of its URL.",
)
@json_option("the content of results.json")
def command(*, url: str, text: str, out: Path, ids: tuple[str, ...], as_json: bool) -> None:
    """Ask the green agent at URL for the assessment that REQUEST describes.

    REQUEST is the message's JSON: {"participants": {"<role>": "<url>"}, "config": {...}}.
    """
    check_url(url, "URL")
    request = EvalRequest.parse(text)
    named = request.participants | _read_ids(ids, request.participants)
    assessed = run_until_stopped(lambda: ask(url, text))
    documents = keep(assessed, named, out)
    if as_json:
        print_documents(documents)
        return
    show_documents(documents)
    click.echo(f"{out}")


def _read_ids(pairs: tuple[str, ...], roles: Collection[str]) -> dict[str, str]:
    """Ids by role. Raises ConfigError."""
    ids = {}
    for pair in pairs:
        role, _, known = pair.partition("=")
        if role not in roles or not known:
            told = ", ".join(roles)
            raise ConfigError("--id", f"must be ROLE=ID with a ROLE of {told}, not {pair!r}")
        ids[role] = known
    return ids


async def ask(url: str, text: str) -> Assessed:
    """Ask, and show progress. Raises AssessmentFailed."""
    with Meter("the assessment") as meter:

        def tell(_role: str, record: Any) -> None:
            # the summary, which comes last, has no outcome
            if isinstance(record, dict) and "outcome" in record:
                meter.advance(str(record["outcome"]))

        return await request_assessment(url, text, told=tell)


def keep(assessed: Assessed, participants: dict[str, str], out: Path) -> list[dict[str, Any]]:
    """Write a ``results.json`` per participant; returns their contents.

    One that is there is kept below ``earlier-N/`` beside it.
    Raises AssessmentFailed when the task did not complete.
    """
    if assessed.state != "completed" or not assessed.results:
        raise AssessmentFailed(f"the assessment ended {assessed.state}: {assessed.said}")
    documents = []
    # an artifact of another name is that of the only participant, or one more
    alone = len(participants) == len(assessed.results) == 1
    for name, results in assessed.results.items():
        role = next(iter(participants)) if alone else name
        document = {"participants": {role: participants.get(role, role)}, "results": results}
        folder = out if len(assessed.results) == 1 else out / role
        _keep_earlier(folder)
        write_json(folder / RESULTS_NAME, document)
        documents.append(document)
    return documents


def _keep_earlier(folder: Path) -> None:
    path = folder / RESULTS_NAME
    if not path.exists():
        return
    number = 1
    while (folder / f"earlier-{number}").exists():
        number += 1
    earlier = folder / f"earlier-{number}"
    earlier.mkdir()
    path.rename(earlier / RESULTS_NAME)


def print_documents(documents: list[dict[str, Any]]) -> None:
    """As JSON: the content of the only ``results.json``, or a list of them."""
    shown = documents if len(documents) > 1 else documents[0]
    click.echo(json_text(shown, indent=2))


def show_documents(documents: list[dict[str, Any]]) -> None:
    """A table of participants, by their summaries."""
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
