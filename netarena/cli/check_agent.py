"""``netarena check-agent``: find problems of an agent, each with a remedy."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from netarena.agent.interface import STRANGE, Agent
from netarena.cli.agent_spec import connect
from netarena.cli.doctor import show_checks
from netarena.cli.executor import LOCAL, RAY, Placement, make_source
from netarena.cli.interrupt import run_until_stopped
from netarena.cli.option import json_option, timeout_option
from netarena.cli.screen import tell
from netarena.cli.terminal import json_text
from netarena.config import SEED_BITS
from netarena.errors import (
    AgentFailed,
    AssessmentFailed,
    ConfigError,
    FailureReason,
    ReplyRefused,
)
from netarena.model import Check, Reply, Severity, Usage
from netarena.run.executor import Party
from netarena.task.application import Application, application_names, load
from netarena.task.prompt import render

if TYPE_CHECKING:
    from netarena.a2a.client import Card

#: Duration of a turn, in s, above which an agent counts as slow. With slower turns, an assessment
#: of usual size takes more than 28 minutes.
SLOW_S = 60.0
#: Number of concurrent conversations.
AT_ONCE = 3
#: Maximum number of workers that are started by default.
MAX_WORKERS = 64
#: Time limit for the agent's card, in s.
_CARD_S = 30.0
_REMEDIES = {
    FailureReason.ENDPOINT: "start the agent and let it listen at the URL (in a container on "
    "0.0.0.0, with its port published)",
    FailureReason.TIMEOUT: "answer sooner, or allow more time: --timeout here, --set "
    "agent_timeout_s=S in a run",
    FailureReason.TOO_LARGE: "send only the answer: a reply may have at most 1 MiB of text",
    FailureReason.MALFORMED: "answer message/send with a message or a task that contains text, as "
    "a2a-sdk does; serve a card with name, version, url and skills",
    FailureReason.TASK_FAILED: "the agent reported that its task failed: see the agent's log",
}
_GREETING = "Hello. This is a check of the connection; any text will do as a reply."


@click.command("check-agent")
@click.argument("url", metavar="URL")
@click.option(
    "--application",
    metavar="APP",
    help="Send a fresh query of APP to the agent and report whether its reply is usable.",
)
@click.option(
    "--from-workers",
    is_flag=True,
    help="Also start workers on Ray, and report those that cannot reach the agent. Needs "
    "--application.",
)
@click.option(
    "--ray-address",
    metavar="ADDR",
    help="With --from-workers: address of a Ray cluster that this machine belongs to.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help=f"With --from-workers: number of workers.  [default: one per core, at most {MAX_WORKERS}]",
)
@timeout_option(280.0, "Time limit for one reply, like agent_timeout_s in a run.")
@json_option("the checks")
def command(  # noqa: PLR0913 -- one argument per option
    *,
    url: str,
    application: str | None,
    from_workers: bool,
    ray_address: str | None,
    workers: int | None,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Check the card, protocol, replies and timing of the agent at URL with a few real messages.

    The exit status is 1 if an assessment would fail.
    """
    if application is not None and application not in application_names():
        load(application)  # raises an error that lists the installed applications
    app = None if application is None else load(application)
    placement = Placement(RAY if from_workers else LOCAL, ray_address, workers)
    if from_workers:
        if app is None:
            raise ConfigError("--from-workers", "needs --application")
        placement.check(verbose=False, limits_cost=False, url=url, url_option="URL")
        from netarena.run.ray_pool import check_ray

        check_ray(ray_address, "--from-workers")
    for option, value in (("--ray-address", ray_address), ("--workers", workers)):
        if value is not None and not from_workers:
            raise ConfigError(option, "needs --from-workers")

    async def examine() -> list[Check]:
        async with aclosing(examine_agent(url, app, timeout_s)) as checks:
            found = [check async for check in checks]
        # A run needs the card in this process too, so workers are tested only if it has arrived.
        has_card = any(check.name == "card" and check.ok for check in found)
        if from_workers and app is not None and has_card:
            found += await _ask_workers(url, app, placement)
        return found

    checks = run_until_stopped(examine)
    failed = any(not check.ok and check.severity is not Severity.NOTE for check in checks)
    if as_json:
        rows = [check.model_dump(mode="json") for check in checks]
        click.echo(json_text({"ok": not failed, "checks": rows}))
    else:
        show_checks([("", check) for check in checks], title=url, words="would fail")
    return 1 if failed else 0


async def examine_agent(
    url: str, application: Application | None, timeout_s: float
) -> AsyncGenerator[Check, None]:
    """Send prompts to the agent and yield the checks. Stop after the first failed check."""
    agent = connect(url, application.role if application else "agent", os.environ)
    try:
        try:
            await agent.open(timeout_s=min(timeout_s, _CARD_S))
        except AgentFailed as error:
            yield _failed("card", error)
            return
        for check in _judge_card(agent.card, url):
            yield check
        prompt, why = await _prompt(application)
        begin = time.monotonic()
        try:
            reply = await agent.ask(prompt, context_id=str(uuid.uuid4()), timeout_s=timeout_s)
        except AgentFailed as error:
            yield _judge_stranger() if STRANGE in error.detail else _failed("reply", error)
            return
        took_s = time.monotonic() - begin
        # ``asked_url`` is the URL that accepted the message, which may have the path from the card
        came = f"{len(reply.text)} characters from {agent.asked_url}"
        yield _told("reply", ok=True, detail=f"{came}: {reply.text!r:.60}")
        yield _told(
            "timing",
            ok=took_s <= SLOW_S,
            detail=f"{took_s:.1f} s for one reply",
            remedy=f"with {SLOW_S:g} s per turn, few episodes finish within an assessment's 28 "
            "minutes",
        )
        if application is not None:
            yield _judge_form(application, reply, why)
        async with aclosing(_converse(agent, prompt, timeout_s)) as checks:
            async for check in checks:
                yield check
        yield _judge_usage(reply)
    finally:
        await agent.aclose()


async def _ask_workers(url: str, application: Application, placement: Placement) -> list[Check]:
    """Return checks that show whether workers can reach the agent, one per node and error."""
    from netarena.run.remote import Remote

    role = application.role
    agent = connect(url, role, os.environ)
    config = application.config_type.parse({})
    try:
        await agent.open(timeout_s=_CARD_S)
        sources = {role: lambda: make_source(agent, url, None)}
        async with placement.open(sources, MAX_WORKERS, tell) as executor:
            assert isinstance(executor, Remote)
            await executor.check(application, config)
            problem = ""
            try:
                await executor.join(Party(application, config, role, agent))
            except AssessmentFailed as error:  # no worker can run the agent
                problem = str(error)
            reports = Counter(executor.reports(role))
    except AgentFailed as error:
        return [_failed("workers", error)]
    except ConfigError as error:  # the error may name an option that this command does not have
        return [_judge_workers(error.problem, "start the workers as docs/scale.md describes")]
    finally:
        await agent.aclose()
    if problem and not reports:  # all workers died
        return [_judge_workers(problem, "see the log of Ray's workers")]
    return [_judge_node(node, number, problem) for (node, problem), number in reports.items()]


def _judge_node(node: str, number: int, problem: str) -> Check:
    detail = f"{number} on {node}: {problem or 'connected to the agent'}"
    remedy = (
        "let this node connect to the agent's URL, or use another cluster; workers on this node "
        "run no episodes"
    )
    return _judge_workers(detail, remedy if problem else "")


def _judge_workers(detail: str, remedy: str = "") -> Check:
    """Return a check called "workers", which failed if there is a ``remedy``."""
    return Check(name="workers", ok=not remedy, severity=Severity.RUN, detail=detail, remedy=remedy)


def _judge_card(card: Card, url: str) -> list[Check]:
    rpc = [one for one in card.interfaces if one.binding == "JSONRPC"]
    lines = ", ".join(sorted({one.version for one in rpc})) or "none"
    urls = {one.url for one in card.interfaces}
    elsewhere = sorted(other for other in urls if other.rstrip("/") != url.rstrip("/"))
    return [
        _told("card", ok=True, detail=f"{card.name!r}, served at {card.path}"),
        _told(
            "protocol",
            ok=bool(rpc),
            detail=f"JSON-RPC, A2A version {lines}",
            remedy="list an interface with JSONRPC in the card: NetArena uses only JSON-RPC",
        ),
        _told(
            "streaming",
            ok=card.streaming,
            detail="the card declares streaming"
            if card.streaming
            else "the card does not declare streaming",
            remedy="replies that take minutes need streaming, because gateways end a silent "
            "request after 300 s",
        ),
        _told(
            "address",
            ok=not elsewhere,
            detail=f"the card names {elsewhere[0]}" if elsewhere else "the card names this URL",
            remedy="NetArena uses the given URL; other clients use the URL in the card "
            "(--card-url)",
        ),
    ]


async def _prompt(application: Application | None) -> tuple[str, str]:
    """Return the first prompt of a fresh query and "", or a greeting and the reason why no prompt
    is available."""
    if application is None:
        return _GREETING, "no application was given"
    config = application.config_type.parse({})
    query = next(iter(application.generate(config, secrets.randbits(SEED_BITS))))
    async with application:
        environment = None
        try:
            await asyncio.to_thread(application.check, config)
            environment = application.environment(query, config)
            state = await environment.open()
            return render(config.prompt_type, application.brief(config, query, state, ())), ""
        except ConfigError as error:
            return _GREETING, str(error)
        finally:
            if environment is not None:
                await environment.close()


def _judge_stranger() -> Check:
    """Return the check of a scripted agent that does not reply, because it was started for another
    assessment."""
    return Check(
        name="reply",
        ok=False,
        severity=Severity.NOTE,
        detail="a scripted agent replies only in the assessment that it was started for",
        remedy="its card and protocol are correct; to evaluate it, use the seed, role and config "
        "keys with which it was started",
    )


def _judge_form(application: Application, reply: Reply, why: str) -> Check:
    if why:
        detail = f"not checked: this machine cannot run {application.name}"
        return _told("form", ok=False, detail=detail, remedy=why)
    try:
        application.parse(reply.text)
    except ReplyRefused as error:
        return Check(
            name="form",
            ok=False,
            severity=Severity.RUN,
            detail=f"{application.title} could not read a command from the reply",
            remedy=str(error),
        )
    return _told("form", ok=True, detail=f"{application.title} could read a command from the reply")


async def _converse(agent: Agent, prompt: str, timeout_s: float) -> AsyncGenerator[Check, None]:
    """Yield the checks of a second turn, and of several concurrent conversations."""
    context = str(uuid.uuid4())
    try:
        for _ in range(2):
            await agent.ask(prompt, context_id=context, timeout_s=timeout_s)
    except AgentFailed as error:
        yield _failed("second turn", error)
        return
    yield _told(
        "second turn", ok=True, detail="the agent answers a second message with the same context id"
    )
    begin = time.monotonic()
    asks = [
        agent.ask(prompt, context_id=str(uuid.uuid4()), timeout_s=timeout_s) for _ in range(AT_ONCE)
    ]
    results = await asyncio.gather(*asks, return_exceptions=True)
    broken = [error for error in results if isinstance(error, BaseException)]
    detail = f"{AT_ONCE} concurrent conversations in {time.monotonic() - begin:.1f} s"
    yield _told(
        "concurrency",
        ok=not broken,
        detail=f"{detail}: {broken[0]}" if broken else detail,
        remedy="separate conversations by their context id, or run with --concurrency 1",
    )


def _judge_usage(reply: Reply) -> Check:
    usage = Usage.read(reply)
    if usage.replies:
        detail = f"{usage.input_tokens} input + {usage.output_tokens} output tokens"
        return _told("tokens", ok=True, detail=detail)
    remedy = 'optional: metadata {"usage": {"input_tokens": N, "output_tokens": N}} of the reply'
    return _told(
        "tokens",
        ok=False,
        detail="the agent does not report the tokens or cost of a reply",
        remedy=remedy,
    )


def _told(name: str, *, ok: bool, detail: str, remedy: str = "") -> Check:
    severity = Severity.RUN if name == "protocol" else Severity.NOTE
    return Check(name=name, ok=ok, severity=severity, detail=detail, remedy="" if ok else remedy)


def _failed(name: str, error: AgentFailed) -> Check:
    remedy = _REMEDIES.get(error.reason, "see its log")
    if "connection lost" in error.detail:
        remedy = "the agent closed the connection before its reply was complete: see its log"
    if re.search(r"\bHTTP 40[13]\b", error.detail):
        remedy = (
            'send a key to the agent: NETARENA_HEADERS_<ROLE> = {"url": prefix, "headers": {...}}, '
            "as in docs/wire-agent.md"
        )
    elif name == "card" and "HTTP" in error.detail:
        remedy = (
            "give the base URL of the agent, so that URL/.well-known/agent-card.json is its card"
        )
    return Check(
        name=name,
        ok=False,
        severity=Severity.RUN,
        detail=f"{error.reason}: {error.detail}",
        remedy=remedy,
    )
