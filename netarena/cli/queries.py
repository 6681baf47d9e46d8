"""``netarena queries``: draw queries and print them."""

from __future__ import annotations

import json
import sys

import click

from netarena.application import load
from netarena.assessment import choose_queries
from netarena.cli.option import config_options, read_pairs


@click.command("queries")
@click.argument("application", metavar="APP")
@config_options
@click.option("--public", is_flag=True, help="Leave ground truth out.")
def command(
    *,
    application: str,
    num_queries: int | None,
    seed: int | None,
    pairs: tuple[str, ...],
    public: bool,
) -> None:
    """Print queries of APP as JSONL, each with its reference solution: the replies, one a turn."""
    app = load(application)
    values = read_pairs(pairs, num_queries=num_queries, seed=seed)
    queries, _ = choose_queries(app, app.config_type.parse(values))
    for query in queries:
        if public:
            line = query.model_dump(mode="json", exclude=set(app.hidden))
        else:
            line = query.model_dump(mode="json") | {"reference": list(app.solve(query))}
        sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
