"""``netarena doctor``: report whether this machine can run the applications, and why not."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType

import click

from netarena.agent.interface import agent_names
from netarena.cli.option import RUNS, json_option
from netarena.cli.screen import show_table
from netarena.cli.terminal import json_text
from netarena.errors import ConfigError
from netarena.model import Check, Severity
from netarena.report.markdown import plain
from netarena.task.application import application_names, describe_versions, load

#: Required free disk space in bytes: enough for the journal of several thousand episodes with all
#: texts.
_ROOM = 2**30
#: Maximum number of characters of a remedy in the table; longer remedies are printed below it.
_LONGEST_REMEDY = 80
#: Extras that no application requires, each with one of its modules and the feature that uses it.
EXTRAS = MappingProxyType(
    {
        "purple": ("litellm", "netarena-purple --model"),
        "view": ("jinja2", "view and report --html"),
        "leaderboard": ("duckdb", "leaderboard"),
        "export": ("duckdb", "export --to parquet"),
        "mcp": ("mcp", "the command mcp"),
        "gymnasium": ("gymnasium", "training"),
        "openenv": ("openenv", "the command openenv"),
        "trl": ("trl", "training"),
        "verifiers": ("verifiers", "training"),
        "otel": ("opentelemetry.exporter.otlp.proto.http", "traces"),
        "audit": ("sklearn", "audit --traces"),
        "ray": ("ray", "run --executor ray"),
    }
)
_WORDS = {
    Severity.SANDBOX: "serving is refused",
    Severity.RUN: "cannot run",
    Severity.NOTE: "note",
}


@click.command("doctor")
@click.argument("application", metavar="[APP]", required=False)
@json_option("the checks")
def command(*, application: str | None, as_json: bool) -> int:
    """Report what this machine can and cannot run, for APP or for every installed application.

    The exit status is 1 if a problem prevents a run.
    """
    if application is not None and application not in application_names():
        load(application)  # raises an error that lists the installed applications
    checks = [("machine", check) for check in examine_machine()]
    if not application_names():
        remedy = 'pip install "netarena[all]"'
        checks.append(("machine", _failed("applications", "none is installed", remedy)))
    for name in [application] if application else application_names():
        checks += [(name, check) for check in _examine(name, asked_for=application is not None)]
    blocked = any(not check.ok and check.severity is not Severity.NOTE for _, check in checks)
    if as_json:
        rows = [{"part": part, **check.model_dump(mode="json")} for part, check in checks]
        click.echo(json_text({"ok": not blocked, "checks": rows}))
    else:
        show_checks(checks)
    return 1 if blocked else 0


def show_checks(
    checks: Sequence[tuple[str, Check]], *, title: str = "", words: str | None = None
) -> None:
    """Print a table of checks, each with the part that it concerns.

    A part is the machine or an application's name. With a ``title``, the table does not contain the
    parts. ``words`` describes the consequence of a failed check.
    """
    said = _WORDS if words is None else {**dict.fromkeys(_WORDS, words), Severity.NOTE: "note"}
    # users may copy a remedy, so a long one must not be wrapped in a column
    remedies = {check.remedy: "" for _, check in checks if len(check.remedy) > _LONGEST_REMEDY}
    remedies.update({remedy: f"[{number}]" for number, remedy in enumerate(remedies, start=1)})
    rows = [
        (
            part,
            check.name,
            "ok" if check.ok else said[check.severity],
            check.detail,
            remedies.get(check.remedy, check.remedy),
        )
        for part, check in checks
    ]
    head = ("part", "check", "", "found", "remedy")
    first = 1 if title else 0
    styles = [_style(check) for _, check in checks]
    show_table(head[first:], [row[first:] for row in rows], title=title, styles=styles)
    for remedy, number in remedies.items():
        click.echo(f"{number} {plain(remedy)}")
    if remedies:
        click.echo()


def examine_machine(runs: Path = Path(RUNS)) -> Iterator[Check]:
    """Yield checks of requirements that all applications share; ``runs`` is the results folder."""
    yield Check(
        name="python",
        ok=True,
        severity=Severity.RUN,
        detail=f"{platform.python_implementation()} {platform.python_version()}, "
        f"{platform.system()} {platform.release()} {platform.machine()}",
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Check(name="cores", ok=True, severity=Severity.NOTE, detail=f"{cores} usable")
    place = runs.absolute()
    while not place.exists():
        place = place.parent
    writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    yield Check(
        name="output",
        ok=writable,
        severity=Severity.NOTE,
        detail=f"{place} is {'' if writable else 'not '}writable",
        remedy="" if writable else "use --out with a writable folder",
    )
    free = shutil.disk_usage(place).free
    roomy = free >= _ROOM
    yield Check(
        name="disk",
        ok=roomy,
        severity=Severity.NOTE,
        detail=f"{free / 2**30:.1f} GiB free for {place}",
        remedy="" if roomy else "long runs with long replies may need more",
    )
    for extra, (module, users) in EXTRAS.items():
        there = _is_there(module)
        yield Check(
            name=extra,
            ok=there,
            severity=Severity.NOTE,
            detail=f"{module} is {'' if there else 'not '}installed, for {users}",
            remedy="" if there else f'pip install "netarena[{extra}]"',
        )
    names = agent_names()
    yield Check(
        name="agents",
        ok=bool(names),
        severity=Severity.NOTE,
        detail=", ".join(names) or "no named agent is installed",
        remedy="" if names else 'pip install "netarena[purple]"',
    )


def _examine(name: str, *, asked_for: bool) -> Iterator[Check]:
    """Yield the application's checks.

    A missing extra is a failure only if the user named the application (``asked_for``).
    """
    try:
        application = load(name)
    except ConfigError as error:
        what, _, remedy = error.problem.partition(": ")
        severity = Severity.RUN if asked_for else Severity.NOTE
        yield _failed("installed", what, remedy, severity)
        return
    told = describe_versions(application)
    yield Check(
        name="installed",
        ok=True,
        severity=Severity.RUN,
        detail=f"{application.title}, generator version {told}",
    )
    yield from application.diagnose()
    yield from application.diagnose_elsewhere()


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the module's parent package is not installed
        return False


def _failed(name: str, detail: str, remedy: str, severity: Severity = Severity.RUN) -> Check:
    return Check(name=name, ok=False, severity=severity, detail=detail, remedy=remedy)


def _style(check: Check) -> str | None:
    if check.ok:
        return None
    return "yellow" if check.severity is Severity.NOTE else "red"
