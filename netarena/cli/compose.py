"""``netarena compose``: write a compose file from a scenario file."""

from __future__ import annotations

from pathlib import Path

import click
import yaml

from netarena.a2a.scenario import compose, read_scenario
from netarena.cli.option import file_option, write_out
from netarena.errors import ConfigError


@click.command("compose")
@click.argument("scenario", metavar="SCENARIO.toml", type=click.Path(path_type=Path))
@click.option(
    "--image",
    "given",
    metavar="[ROLE=]IMAGE",
    multiple=True,
    help=(
        "Image of ROLE (green_agent for the green agent), or of all agents that have no image in "
        "the file; repeatable."
    ),
)
@file_option
def command(*, scenario: Path, given: tuple[str, ...], out: Path | None) -> None:
    """Print a compose file that runs the images of SCENARIO.toml and leaves results in ./output.

    Run it with: docker compose up --abort-on-container-exit --exit-code-from assessment
    """
    image, images = _read_images(given)
    content = compose(read_scenario(scenario), image=image, images=images)
    text = yaml.safe_dump(content, sort_keys=False, width=1000, allow_unicode=True)
    write_out(text, out)


def _read_images(given: tuple[str, ...]) -> tuple[str | None, dict[str, str]]:
    """Return the default image, and the images by role. Raises ConfigError."""
    image: str | None = None
    images: dict[str, str] = {}
    for text in given:
        role, equals, name = text.rpartition("=")
        if not name or (equals and not role):
            raise ConfigError("--image", f"must be IMAGE or ROLE=IMAGE, not {text!r}")
        known = images.get(role) if equals else image
        if known is not None:
            about = f"the role {role!r} has" if equals else "agents without an image have"
            raise ConfigError("--image", f"{about} two images: {known!r} and {name!r}")
        if equals:
            images[role] = name
        else:
            image = name
    return image, images
