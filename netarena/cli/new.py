"""``netarena new``: write the skeleton of an application."""

from __future__ import annotations

import builtins
import re
import shutil
import typing
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import click

from netarena import sdk
from netarena.errors import ConfigError
from netarena.task.application import application_names

_NAME = re.compile(r"[a-z]([a-z0-9_]{0,29}[a-z0-9])?")
#: Maps the name of a written file to its template; {} stands for the application's name.
_FILES = {"netarena_{}.py": "", "pyproject.toml": "pyproject", "test_{}.py": "test"}


EXAMPLES = """\b
Examples:
  netarena new vlan
  netarena new plan --kind constructive --out plan
"""


@click.command("new", epilog=EXAMPLES)
@click.argument("name", metavar="NAME")
@click.option(
    "--kind",
    type=click.Choice(["reactive", "constructive"]),
    default="reactive",
    show_default=True,
    help="reactive: the agent repairs faults with shell commands, turn by turn; queries can also "
    "be asked as tickets. "
    "constructive: the agent sends one reply, which is judged as a whole.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder to write; it must not exist.  [default: netarena-NAME]",
)
def command(*, name: str, kind: str, out: Path | None) -> None:
    """Write the skeleton of an application called NAME, with its contract test.

    The skeleton is complete: its test passes, and every command of netarena works with it.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "NAME",
            "must be lower-case letters, digits and inner underscores, such as vlan_2, "
            f"not {name!r}",
        )
    if name in application_names():
        raise ConfigError("NAME", f"{name!r} is an installed application: choose another name")
    if _title(name) in {*sdk.__all__, *typing.__all__, *dir(builtins)}:
        raise ConfigError(
            "NAME",
            f"{name!r} needs a class {_title(name)!r}, but netarena.sdk or Python already uses "
            "this name: choose another name",
        )
    if find_spec(f"netarena_{name}") is not None:
        raise ConfigError(
            "NAME",
            f"{name!r} would create the module 'netarena_{name}', but a module with this name is "
            "already installed: choose another name",
        )
    folder = out or Path(f"netarena-{name}")
    texts = {file.format(name): _fill(template or kind, name) for file, template in _FILES.items()}
    try:
        folder.mkdir(parents=True)
        try:
            for file, text in texts.items():
                (folder / file).write_text(text, encoding="utf-8")
        except OSError:  # otherwise the next attempt would fail, because the folder exists
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except OSError as error:
        raise ConfigError("--out", f"{folder} cannot be written: {error.strerror}") from None
    for file in texts:
        click.echo(folder / file)
    click.echo(f"netarena: next: cd {folder} && pip install -e . && pytest", err=True)


def _fill(template: str, name: str) -> str:
    """Return a template with the application's name in place of ``example``."""
    text = (files("netarena") / "template" / f"{template}.txt").read_text(encoding="utf-8")
    return text.replace("example", name).replace("Example", _title(name))


def _title(name: str) -> str:
    """Return the name of the application's class, such as ``MyApp`` for ``my_app``."""
    return "".join(word.capitalize() for word in name.split("_"))
