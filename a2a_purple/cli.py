"""``netarena-purple``: serve a baseline agent over A2A.

Exit status 0 means that the agent was stopped. Exit status 2 means that an argument is wrong; one
line names the argument and the allowed values.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from netarena.cli.option import SEED, address_options, read_pairs, timeout_option
from netarena.cli.terminal import open_streams
from netarena.errors import ConfigError, not_one_of

if TYPE_CHECKING:
    from netarena.agent.interface import Agent

#: Names of scripted agents; each agent is a class of ``a2a_purple.scripted``.
SCRIPTED = ("oracle", "noop", "random", "hostile", "blanket", "parser", "heuristic")
#: Names of strategies for language models, as in ``a2a_purple.llm.STRATEGIES``.
LANGUAGE = ("plain", "react")
STRATEGIES = (*LANGUAGE, *SCRIPTED)


def _end_with_stdin() -> None:
    """Wait until standard input is closed, then send SIGTERM to this process."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _choose_application(name: str | None) -> str:
    from netarena.task.application import application_names

    if name is not None:
        return name
    installed = application_names()
    if len(installed) != 1:
        raise ConfigError("--application", f"must be one of {', '.join(installed) or 'none'}")
    return installed[0]


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@address_options
@click.option(
    "--model",
    envvar="MODEL_NAME",
    metavar="M",
    show_envvar=True,
    help=(
        "A language model in LiteLLM's form PROVIDER/MODEL. API keys come from the provider's "
        "own variables (OPENAI_API_KEY, …)."
    ),
)
@click.option(
    "--strategy",
    metavar="S",
    help=f"With a model: {', '.join(LANGUAGE)} [default: {LANGUAGE[0]}]; scripted: "
    f"{', '.join(SCRIPTED)}.",
)
@click.option(
    "--api-base",
    envvar="MODEL_API_BASE",
    metavar="URL",
    show_envvar=True,
    help="Base URL of the model's API, for your own servers.",
)
@click.option(
    "--parameter",
    "parameters",
    metavar="KEY=VALUE",
    multiple=True,
    help="Parameter of each call to the model, such as temperature=0; repeatable.",
)
@click.option(
    "--no-stream",
    "streaming",
    flag_value=False,
    type=bool,
    default=True,
    help="Request complete answers instead of streams.",
)
@timeout_option(
    270.0,
    "Time limit for one reply of a model, including retries; green agents wait 280 s by default.",
)
@click.option(
    "--application",
    metavar="APP",
    help="Application that a scripted agent plays; required if several are installed.",
)
@click.option("--role", help="The participant's role, if not the application's own.")
@click.option(
    "--seed",
    type=SEED,
    metavar="S",
    help="The assessment's seed: a scripted agent draws the same queries from it.",
)
@click.option(
    "--set",
    "pairs",
    metavar="KEY=VALUE",
    multiple=True,
    help="A key of the assessment's config; repeatable.",
)
@click.option(
    "--until-stdin-closes",
    is_flag=True,
    hidden=True,
    help="Exit when standard input is closed.",
)
def command(**options: Any) -> None:
    """Serve a baseline agent over A2A, for NetArena's green agents to examine."""
    _serve(**options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    open_streams()
    given = None if arguments is None else list(arguments)
    try:
        command.main(args=given, prog_name="netarena-purple", standalone_mode=False)
    except (click.ClickException, ConfigError) as error:
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        click.echo(f"netarena-purple: error: {text}", err=True)
        return 2
    except (click.Abort, KeyboardInterrupt):
        return 130
    return 0


def _serve(  # noqa: PLR0913 -- one argument per option
    *,
    host: str,
    port: int,
    card_url: str | None,
    model: str | None,
    strategy: str | None,
    api_base: str | None,
    parameters: tuple[str, ...],
    streaming: bool,
    timeout_s: float,
    application: str | None,
    role: str | None,
    seed: int | None,
    pairs: tuple[str, ...],
    until_stdin_closes: bool,
) -> None:
    if strategy is None and model is not None:
        strategy = LANGUAGE[0]
    if strategy is None:
        raise ConfigError(
            "--model",
            "must be given (or MODEL_NAME set) for a language model; for a scripted agent, "
            f"--strategy must be one of {', '.join(SCRIPTED)}",
        )
    if strategy not in STRATEGIES:
        raise ConfigError("--strategy", not_one_of(strategy, STRATEGIES))
    if until_stdin_closes:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    if strategy in LANGUAGE:
        if model is None:
            raise ConfigError(
                "--model", f"{strategy} needs a model: give --model or set MODEL_NAME"
            )
        if seed is not None or pairs:
            raise ConfigError(
                "",
                "--seed and --set apply only to scripted agents, not to "
                f"--strategy {strategy}: omit them",
            )
        agent, description = _language_model(
            model,
            strategy,
            api_base=api_base,
            parameters=read_pairs(parameters, option="--parameter"),
            streaming=streaming,
            timeout_s=timeout_s,
        )
    else:
        agent, description = _scripted(
            strategy, application=application, role=role, seed=seed, config=read_pairs(pairs)
        )

    from netarena.a2a.purple import serve_agent

    serve_agent(
        agent,
        host=host,
        port=port,
        card_url=card_url,
        name=f"netarena-{strategy}",
        description=description,
        ready=click.echo,
    )


# These functions import modules late, so that --help and argument errors are printed at once.


def _language_model(  # noqa: PLR0913 -- one argument per option
    model: str,
    strategy: str,
    *,
    api_base: str | None,
    parameters: dict[str, Any],
    streaming: bool,
    timeout_s: float,
) -> tuple[Agent, str]:
    """Return an agent that uses a language model, and its description. Raises ConfigError."""
    from a2a_purple.llm import STRATEGIES as KINDS
    from a2a_purple.llm import LanguageModel
    from a2a_purple.provider import Provider

    provider = Provider(model, api_base=api_base, parameters=parameters, streaming=streaming)
    agent = LanguageModel(
        provider, KINDS[strategy](), name=f"netarena-{strategy}", timeout_s=timeout_s
    )
    return agent, f"The language model {model} with the strategy {strategy}."


def _scripted(
    strategy: str,
    *,
    application: str | None,
    role: str | None,
    seed: int | None,
    config: dict[str, Any],
) -> tuple[Agent, str]:
    """Return a scripted agent and its description. Raises ConfigError."""
    # The other agents generate the assessment's queries, so they need its seed.
    if seed is None and strategy not in {"noop", "hostile", "parser", "heuristic"}:
        raise ConfigError(
            "--seed",
            f"{strategy} needs the assessment's seed, which its summary shows",
        )

    from netarena.agent.interface import Brief, load_agent
    from netarena.task.application import configured, load

    app, read = configured(load(_choose_application(application)), config)
    brief = Brief(application=app, config=read, seed=seed or 0, role=role or app.role)
    return load_agent(strategy, brief), f"The scripted {strategy} agent for {app.title}."


if __name__ == "__main__":
    sys.exit(main())
