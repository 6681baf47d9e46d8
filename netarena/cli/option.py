"""Options that several sub-commands share, and the config that results from these options."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from netarena.errors import ConfigError, not_one_of

F = TypeVar("F", bound=Callable[..., Any])

#: Default folder for results, below the current folder; it contains one folder per run.
RUNS = "netarena-runs"
SEED = click.IntRange(0, 2**64 - 1)


class NameChoice(click.Choice[str]):
    """Parameter type: one of several names. The error for another name suggests a similar name."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        del ctx
        return not_one_of(value, self.choices)


def config_options(command: F) -> F:
    """Decorator that adds ``--num-queries``, ``--seed`` and ``--set`` (as ``pairs``)."""
    return _config_options(command, "Number of queries per label or error type.")


def audit_options(default: int) -> Callable[[F], F]:
    """Return ``config_options`` for audits, where ``--num-queries`` is the total number."""

    def add(command: F) -> F:
        return _config_options(command, f"Total number of queries.  [default: {default}]")

    return add


def _config_options(command: F, number: str) -> F:
    options = (
        click.option(
            "--num-queries",
            type=click.IntRange(1),
            metavar="N",
            help=number,
        ),
        click.option(
            "--seed",
            type=SEED,
            metavar="S",
            help="Seed of the queries, up to 64 bits; drawn at random if not given.",
        ),
        click.option(
            "--set",
            "pairs",
            multiple=True,
            metavar="KEY=VALUE",
            help="Any config key; VALUE is read as JSON if it is valid JSON, otherwise as text.",
        ),
    )
    return _with(options, command)


def address_options(command: F) -> F:
    """Decorator that adds the options ``--host``, ``--port`` and ``--card-url`` of servers."""
    options = (
        click.option(
            "--host",
            default="127.0.0.1",
            envvar="NETARENA_HOST",
            show_default=True,
            show_envvar=True,
            help="Address to listen on.",
        ),
        click.option(
            "--port",
            default=9009,
            type=click.IntRange(0, 65_535),
            show_default=True,
            help=(
                "Port to listen on; 0 chooses a free port. The URL is printed when the service is "
                "ready."
            ),
        ),
        click.option(
            "--card-url",
            metavar="URL",
            help="URL in the agent card.  [default: from the request's Host header]",
        ),
    )
    return _with(options, command)


def timeout_option(default_s: float, about: str) -> Callable[[F], F]:
    """Return a decorator that adds the option ``--timeout``, as ``timeout_s``."""
    return click.option(
        "--timeout",
        "timeout_s",
        default=default_s,
        type=click.FloatRange(0, min_open=True),
        metavar="SECONDS",
        show_default=True,
        help=about,
    )


def wait_option(command: F) -> F:
    """Decorator that adds the option ``--wait``, as ``wait_s``; None if it is not given."""
    return click.option(
        "--wait",
        "wait_s",
        type=click.FloatRange(0, min_open=True),
        metavar="SECONDS",
        help="Seconds to wait for the agent to start.  [default: 20 for an agent at a URL, 120 for "
        "one started by a command]",
    )(command)


def json_option(what: str) -> Callable[[F], F]:
    """Return a decorator that adds the option ``--json``, as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print only JSON: {what}.")


def file_option(command: F) -> F:
    """Decorator that adds the option ``--out FILE``, as ``out``, for ``write_out``."""
    return click.option(
        "--out",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write to this file instead of standard output.",
    )(command)


def write_out(text: str, out: Path | None) -> None:
    """Print ``text``, or write it to the file of ``--out``. Raises ConfigError."""
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("--out", f"{out} cannot be written: {error.strerror}") from None


def read_name(called: str) -> str:
    """Return the value of ``--name``. Raises ConfigError for a name that a table cannot show."""
    if not (called.strip() and called.isprintable() and len(called) <= 200):
        raise ConfigError("--name", "must be one line of at most 200 characters, and not empty")
    return called


def read_pairs(pairs: tuple[str, ...], *, option: str = "--set", **flags: Any) -> dict[str, Any]:
    """Return the config values in the KEY=VALUE pairs of ``option``, and in ``flags``.

    A value that is not valid JSON is text. Flags that are not None take precedence.

    Raises ConfigError for a pair that lacks a key or an equals sign, or contains invalid text.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise ConfigError(option, f"must be KEY=VALUE, not {pair!r}")
        try:
            values[key] = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            values[key] = text
    values |= {key: value for key, value in flags.items() if value is not None}
    for key, value in values.items():
        _check_text(f"config.{key}", value)
    return values


def _with(options: tuple[Callable[[F], F], ...], command: F) -> F:
    # click lists options in the order of their decorators
    for option in reversed(options):
        command = option(command)
    return command


def _check_text(field: str, value: Any) -> None:
    """Raise ConfigError for text that a file or file name cannot contain."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for item in value:
            _check_text(field, item)
    elif isinstance(value, str) and any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value):
        raise ConfigError(field, "must not contain NUL or lone surrogates")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
