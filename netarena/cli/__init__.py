"""``netarena``: the command line.

Each sub-command is a module that is imported on demand, so that ``netarena --help`` is fast.

The exit status is

- 0 on success,
- 1 if the assessment failed, an audit found an invalid query, a machine lacks a requirement, or a
  verdict changed,
- 2 for bad arguments or config, with one line that names the error and the allowed values,
- 129, 130 or 143 if SIGHUP, SIGINT or SIGTERM stopped the command.

Click provides shell completion: ``eval "$(_NETARENA_COMPLETE=bash_source netarena)"`` (or
``zsh_source``, ``fish_source``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from typing import Any

import click

from netarena.cli.terminal import open_streams
from netarena.errors import ConfigError, NetArenaError, suggest

#: Sub-commands in the order of the help text: name, module, description.
COMMANDS = (
    ("serve", "netarena.cli.serve", "Serve a green agent over A2A."),
    ("run", "netarena.cli.run", "Evaluate an agent on this machine."),
    ("search", "netarena.cli.search", "Find the kinds of query that an agent fails."),
    ("merge", "netarena.cli.merge", "Join the shards of a run."),
    ("play", "netarena.cli.play", "Answer one query yourself, as the agent."),
    ("mcp", "netarena.cli.mcp", "Serve tasks to an agent that calls tools (MCP)."),
    ("request", "netarena.cli.request", "Ask a green agent for an assessment."),
    ("compose", "netarena.cli.compose", "Print a compose file for a scenario."),
    ("check-agent", "netarena.cli.check_agent", "Report problems of an agent, each with a remedy."),
    ("queries", "netarena.cli.queries", "Print queries as JSONL, with reference solutions."),
    ("new", "netarena.cli.new", "Write the skeleton of a new application."),
    (
        "audit",
        "netarena.cli.audit",
        "Verify that queries are valid, solvable and not trivial.",
    ),
    ("doctor", "netarena.cli.doctor", "Report what this machine can and cannot run."),
    ("clean", "netarena.cli.clean", "Remove resources that killed services left behind."),
    ("regrade", "netarena.cli.regrade", "Judge a stored run again and print the differences."),
    ("report", "netarena.cli.report", "Report on stored runs, as Markdown, HTML or JSON."),
    ("show", "netarena.cli.show", "Show failed episodes, or the transcript of one episode."),
    (
        "view",
        "netarena.cli.view",
        "Serve or write web pages with the trajectories of runs.",
    ),
    ("export", "netarena.cli.export", "Write a run for Inspect or Harbor, or as tables."),
    ("sft", "netarena.cli.sft", "Write training sets to fine-tune a language model."),
    ("openenv", "netarena.cli.openenv", "Serve training sessions (OpenEnv)."),
    ("leaderboard", "netarena.cli.leaderboard", "Rank result files."),
)


class Stopped(Exception):
    """A signal stopped the command. ``status`` is the exit status; the text is a hint for users."""

    def __init__(self, status: int, hint: str = "") -> None:
        super().__init__(hint)
        self.status = status


class _ReaderLeft(Exception):
    """The program that reads standard output, such as ``head``, has closed the pipe."""


class _Commands(click.Group):
    """A group of sub-commands that are imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return [name for name, _, _ in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for name, module, _ in COMMANDS:
            if name == cmd_name:
                command: click.Command = import_module(module).command
                return command
        names = self.list_commands(ctx)
        raise click.UsageError(f"No such command {cmd_name!r}{suggest(cmd_name, names)}")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, _, text in COMMANDS])

    def invoke(self, ctx: click.Context) -> Any:
        # the handler of click would exit with status 1 after a broken pipe
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderLeft from None


def _show_version(ctx: click.Context, _parameter: click.Parameter, value: object) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("netarena")
    except PackageNotFoundError:
        found = "unknown (not installed)"
    click.echo(f"netarena {found}")
    ctx.exit()


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Evaluate AI agents on network operations, with newly generated queries in live
    environments."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    open_streams()
    try:
        given = sys.argv[1:] if arguments is None else list(arguments)
        _refuse_empty_out(given)
        status = cli.main(args=given, prog_name="netarena", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except (click.ClickException, ConfigError) as error:
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        return _fail(2, text)
    except NetArenaError as error:
        return _fail(1, str(error))
    except Stopped as stop:
        return _fail(stop.status, str(stop), "stopped")
    except (click.Abort, KeyboardInterrupt):
        return _fail(130, "", "stopped")
    except (_ReaderLeft, BrokenPipeError):
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        name = f"{error.filename}: " if error.filename is not None else ""
        return _fail(1, f"{name}{error.strerror or type(error).__name__}")
    return status if isinstance(status, int) else 0


def _refuse_empty_out(given: list[str]) -> None:
    """Raise ConfigError for an empty ``--out``, which click reads as the current folder."""
    if "--out=" in given or ("--out", "") in pairwise(given):
        raise ConfigError("--out", "must not be empty; give a file or folder, or omit the option")


def _drop_output() -> None:
    """Redirect standard output to /dev/null, so that the flush at exit does not fail."""
    with suppress(OSError):
        sys.stdout.flush()
    with suppress(OSError, ValueError):  # the stream has no file descriptor, for example in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(status: int, text: str, kind: str = "error") -> int:
    """Print an error in one line, without control characters; return ``status``."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    click.echo(f"netarena: {kind}: {line}" if line else f"netarena: {kind}", err=True)
    return status
