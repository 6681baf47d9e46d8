"""``netarena compose``: a compose file from a scenario file."""

from __future__ import annotations

from pathlib import Path

import click
import yaml

from netarena.cli.option import file_option, write_out
from netarena.scenario import compose, read_scenario


@click.command("compose")
@click.argument("scenario", metavar="SCENARIO.toml", type=click.Path(path_type=Path))
@click.option("--image", metavar="IMAGE", help="For agents that name none.")
@file_option
def command(*, scenario: Path, image: str | None, out: Path | None) -> None:
    """Print a compose file that runs the images of SCENARIO.toml and leaves results in ./output.

    Run it with: docker compose up --abort-on-container-exit --exit-code-from assessment
    """
    content = compose(read_scenario(scenario), image=image)
    text = yaml.safe_dump(content, sort_keys=False, width=1000, allow_unicode=True)
    write_out(text, out)
