"""``netarena clean``: remove leftover resources of killed services."""

from __future__ import annotations

import os

import click

from netarena.task.application import load


@click.command("clean")
@click.argument("application", metavar="APP")
def command(*, application: str) -> None:
    """Remove resources on other machines that killed services of APP left behind.

    Examples are namespaces on the cluster in KUBECONFIG. Resources of running services are kept.
    """
    app = load(application)
    done = app.clean(os.environ)
    for line in done.removed:
        click.echo(line)
    for line in done.kept:
        click.echo(f"netarena: not removed: {line}", err=True)
    click.echo(f"netarena: {len(done.removed)} removed", err=True)
