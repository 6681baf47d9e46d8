"""``netarena queries``: generate queries and print them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from netarena.cli.option import RUNS, config_options, read_pairs
from netarena.cli.run_directory import choose_query
from netarena.cli.terminal import json_text
from netarena.run.assessment import choose_queries
from netarena.task.application import configured, load
from netarena.task.identity import Secrecy, seal


@click.command("queries")
@click.argument("application", metavar="APP")
@config_options
@click.option(
    "--query",
    "query_id",
    metavar="ID",
    help="Print only the query with this id; result records contain the ids.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="With --query: folder of a run that asked this query, or a folder of such runs.  "
    f"[default: {RUNS}]",
)
@click.option("--public", is_flag=True, help="Omit ground truth.")
def command(  # noqa: PLR0913 -- one argument per option
    *,
    application: str,
    num_queries: int | None,
    seed: int | None,
    pairs: tuple[str, ...],
    query_id: str | None,
    out: Path | None,
    public: bool,
) -> None:
    """Print queries of APP as JSONL, each with its reference solution (one reply per turn)."""
    app = load(application)
    values = read_pairs(pairs, num_queries=num_queries, seed=seed)
    if out is not None:
        values |= read_pairs((), output_dir=str(out))
    app, config = configured(app, values)
    secrecy = Secrecy.OPEN
    if query_id is not None:
        app, config, secrecy = choose_query(app, config, query_id)
    drawn, _ = choose_queries(app, config)
    queries = filter(None, drawn)
    sealed = secrecy is Secrecy.SEALED
    #: A sealed id hides the seed and the index, so the output must not contain them either.
    hidden = app.hidden | {"seed", "index"} if sealed else app.hidden
    for query in map(seal, queries) if sealed else queries:
        if public:
            line = query.model_dump(mode="json", exclude=set(hidden))
        else:
            line = query.model_dump(mode="json") | {"reference": list(app.solve(query))}
        sys.stdout.write(json_text(line) + "\n")
