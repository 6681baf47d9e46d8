"""``netarena serve``: the green agent of an application, over A2A."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from netarena.cli.executor import Placement, conduct_on, executor_options
from netarena.cli.option import RUNS, address_options
from netarena.cli.terminal import open_log, tell_more
from netarena.run.assessment import MAX_EPISODES
from netarena.task.application import load


@click.command("serve")
@click.argument("application", metavar="APP")
@address_options
@click.option(
    "--out",
    default=RUNS,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="ROOT",
    show_default=True,
    help="Folder below which every task writes its files.",
)
@click.option(
    "--data",
    default="/data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    show_default=True,
    help="Folder whose files tasks may read, in addition to ROOT.",
)
@click.option(
    "--max-episodes",
    default=MAX_EPISODES,
    type=click.IntRange(1),
    metavar="N",
    show_default=True,
    help="Maximum number of concurrent episodes over all tasks.",
)
@executor_options
@click.option(
    "--allow-unsandboxed",
    is_flag=True,
    help="Serve even if the sandbox for agents' code is incomplete on this machine.",
)
@click.option(
    "--allow-link-local",
    is_flag=True,
    help="Allow participants at link-local and cloud metadata addresses.",
)
def command(  # noqa: PLR0913 -- one argument per option
    *,
    application: str,
    host: str,
    port: int,
    card_url: str | None,
    out: Path,
    data: Path,
    max_episodes: int,
    executor: str,
    ray_address: str | None,
    workers: int | None,
    allow_unsandboxed: bool,
    allow_link_local: bool,
) -> None:
    """Serve the green agent of APP until SIGTERM or Ctrl-C.

    The seed of every task is derived from NETARENA_SEED (a secret string) or, without it, from
    netarena_seed in GREEN_SECRETS_JSON. NETARENA_HEADERS_<ROLE> is JSON with the HTTP headers to
    send to that participant and the URL prefix that they are valid for.
    """
    open_log("%(asctime)s %(levelname)s %(name)s: %(message)s")
    tell_more("netarena")
    app = load(application, unsandboxed=allow_unsandboxed)
    tell_more(type(app).__module__)

    from netarena.a2a.server import serve

    placement = Placement(executor, ray_address, workers)
    placement.check(verbose=False, limits_cost=False)
    how: dict[str, Any] = {}
    if not placement.is_local:
        from netarena.run.ray_pool import check_ray

        check_ray(ray_address)
        how["conduct"] = conduct_on(placement, allow_link_local=allow_link_local)
    serve(
        app,
        host=host,
        port=port,
        card_url=card_url,
        out=out,
        data=data,
        max_episodes=max_episodes,
        allow_link_local=allow_link_local,
        environ=os.environ,
        **how,
        ready=lambda url: click.echo(f"netarena: {app.name} listens at {url}", err=True),
    )
