"""``netarena queries``: draw queries and print them."""

from __future__ import annotations

import sys

import click

from netarena.application import load
from netarena.assessment import choose_queries
from netarena.cli.option import config_options, read_pairs
from netarena.cli.run import choose_query
from netarena.cli.text import json_text
from netarena.identity import Secrecy, seal


@click.command("queries")
@click.argument("application", metavar="APP")
@config_options
@click.option(
    "--query", "query_id", metavar="ID", help="This one query alone, by the id of a record."
)
@click.option("--public", is_flag=True, help="Leave ground truth out.")
def command(  # noqa: PLR0913 -- one argument per option
    *,
    application: str,
    num_queries: int | None,
    seed: int | None,
    pairs: tuple[str, ...],
    query_id: str | None,
    public: bool,
) -> None:
    """Print queries of APP as JSONL, each with its reference solution: the replies, one a turn."""
    app = load(application)
    values = read_pairs(pairs, num_queries=num_queries, seed=seed)
    config, secrecy = app.config_type.parse(values), Secrecy.OPEN
    if query_id is not None:
        config, secrecy = choose_query(app, config, query_id)
    drawn, _ = choose_queries(app, config)
    queries = filter(None, drawn)
    for query in map(seal, queries) if secrecy is Secrecy.SEALED else queries:
        if public:
            line = query.model_dump(mode="json", exclude=set(app.hidden))
        else:
            line = query.model_dump(mode="json") | {"reference": list(app.solve(query))}
        sys.stdout.write(json_text(line) + "\n")
