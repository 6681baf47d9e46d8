"""``netarena audit``: prove queries valid."""

from __future__ import annotations

import json
import secrets

import click

from netarena.application import load
from netarena.audit import Audit, Flaw, audit
from netarena.cli.interrupt import run_until_stopped
from netarena.cli.option import config_options, json_option, read_pairs
from netarena.cli.screen import Meter, show_table
from netarena.config import SEED_BITS
from netarena.errors import ConfigError
from netarena.model import Query

#: queries when nobody says how many
TOTAL = 100
#: flaws that the table shows; ``--json`` has all
SHOWN = 20


@click.command("audit")
@click.argument("application", metavar="APP")
@config_options
@json_option("the result")
def command(
    *,
    application: str,
    num_queries: int | None,
    seed: int | None,
    pairs: tuple[str, ...],
    as_json: bool,
) -> int:
    """Draw queries of APP over all labels and levels, and prove each valid in its real world.

    Its effect shows, doing nothing does not solve it, the reference solution solves it safely,
    and its record is sound. Exit status 1 if any is not.
    """
    app = load(application)
    values = read_pairs(pairs, seed=seed)
    if "num_queries" in values:
        raise ConfigError("--set", "num_queries is per label; give --num-queries, the total here")
    values.setdefault("complexity_level", list(app.config_type.LEVELS))
    config = app.config_type.parse(values)
    app.check(config)
    chosen = secrets.randbits(SEED_BITS) if config.seed is None else config.seed
    total = TOTAL if num_queries is None else num_queries

    async def prove() -> Audit:
        with Meter(f"audit {app.name}") as meter:
            meter.expect(total)

            def checked(query: Query, flaw: Flaw | None) -> None:
                del query
                meter.advance("valid" if flaw is None else flaw.reason.value)

            async with app:
                return await audit(app, config, chosen, total, checked=checked)

    result = run_until_stopped(prove)
    if as_json:
        click.echo(json.dumps(result.as_json(), ensure_ascii=False))
    else:
        _show(result)
    return 1 if result.invalid else 0


def _show(result: Audit) -> None:
    reasons = list(result.reasons())
    rows = []
    for label, drawn in result.labels.items():
        flaws = [flaw for flaw in result.flaws if flaw.label == label]
        counts = [sum(flaw.reason.value == reason for flaw in flaws) for reason in reasons]
        rows.append((label, drawn, len({flaw.id for flaw in flaws}), *counts))
    show_table(
        ("label", "queries", "invalid", *reasons),
        rows,
        title=f"{result.application} {result.version}, seed {result.seed}: {result.queries} "
        f"queries, {result.invalid} invalid",
    )
    if result.flaws:
        show_table(
            ("query", "reason", "detail"),
            [(flaw.id, flaw.reason.value, flaw.detail) for flaw in result.flaws[:SHOWN]],
        )
    if result.retried:
        click.echo(f"{result.retried} worlds were built a second time")
