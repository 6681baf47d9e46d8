"""Prompts: the rules, the intended connections and the wrong connections.

The texts are files in ``prompts``. The examples use application names that no query contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from string import Template

from netarena.sdk import (
    CommandLimits,
    Finding,
    Kept,
    PromptParts,
    Query,
    State,
    Step,
    clip,
    read_examples,
    read_text,
    tell_harm,
    tell_turns,
)
from netarena_k8s.embedded.apiserver.bound import POLICY_ENTRIES
from netarena_k8s.harm import KINDS
from netarena_k8s.state import count_wrong, report
from netarena_k8s.world.model import App, World, target_port

PACKAGE = "netarena_k8s"
#: keys of a command, in the order in which the history shows them
KEYS = ("command",)
#: Maximum numbers of characters of the output of one command, of the history, and of the report of
#: wrong connections. The output of one command can contain all policies of a world as YAML.
MAX_OUTPUT_CHARS = 16_000
MAX_HISTORY_CHARS = 48_000
MAX_REPORT_CHARS = 12_000
#: maximum number of applications that one line about newly allowed traffic names
MAX_ENDS = 8


def prompt_parts(  # noqa: PLR0913, PLR0917 -- the parts of a prompt
    query: Query,
    world: World,
    namespace: str,
    state: State,
    steps: Sequence[Step],
    limits: CommandLimits,
) -> PromptParts:
    """Return the parts of the next prompt. ``state`` is the last settled state, and ``steps`` are
    the turns so far."""
    rules = Template(read_text(PACKAGE, "rules")).substitute(
        num_apps=len(world.apps),
        namespace=namespace,
        intent=tell_intent(world),
        entries=POLICY_ENTRIES,
        egress=tell_egress(world),
        **asdict(limits),
    )
    number = count_wrong(world, state)
    found = clip(report(world, state), MAX_REPORT_CHARS)
    return PromptParts(
        rules=rules,
        reply_format=read_text(PACKAGE, "reply"),
        task=query.text,
        situation=f"Connections that differ from the intended state ({number}):\n{found}",
        history=tell_turns(steps, KEYS, limits, _tell_change),
        examples=read_examples(PACKAGE),
    )


def tell_egress(world: World) -> str:
    """Return a newline and the rules about newly allowed egress traffic, or "" if the world has no
    such rules."""
    if world.restricts_egress:
        return f"\n{read_text(PACKAGE, 'lookups')}"
    return f"\n{read_text(PACKAGE, 'open_egress')}" if world.opens_egress else ""


def tell_intent(world: World) -> str:
    """Return the text about the intended connections (one line per service) and the pods."""
    return _INTENTS.get(world, lambda: _tell_intent(world))


#: Cached, because each prompt of an episode contains it.
_INTENTS: Kept[str] = Kept(16)


_CALLERS = (
    "Each line names a service and the applications that must reach it. All other applications "
    "must be blocked from it:"
)


def _tell_intent(world: World) -> str:
    callers: dict[str, list[str]] = {app.name: [] for app in world.apps if app.service}
    for pair, wanted in zip(world.pairs, world.intended, strict=True):
        if wanted:
            callers[pair.target].append(pair.source)
    lines = [
        f"- {name}: {_tell_callers(found, len(world.apps) - 1)}" for name, found in callers.items()
    ]
    pods = [f"- {_tell_app(app)}" for app in world.apps]
    uses = [f"- {use}" for use in world.uses]
    return "\n".join(
        (
            _CALLERS,
            *lines,
            *(["Further connections that must work:"] if uses else []),
            *uses,
            f"Applications, with the labels of their pods{_tell_key(world)}:",
            *pods,
        )
    )


def _tell_key(world: World) -> str:
    """Return a clause that names the label key that identifies applications, or "" if they use
    different keys."""
    keys = set.intersection(
        *({key for key, value in app.labels.items() if value == app.name} for app in world.apps)
    )
    return f" (the label {min(keys)} identifies an application)" if keys else ""


def _tell_callers(names: Sequence[str], most: int) -> str:
    if len(names) == most:
        return "every other application"
    return ", ".join(names) if names else "none"


def _tell_app(app: App) -> str:
    labels = ", ".join(f"{key}={value}" for key, value in app.labels.items())
    if not app.service:
        return f"{app.name} ({labels}): no service"
    port = app.service[0]
    pod = target_port(app, port)
    named = f" (named {pod.name})" if pod is not None and pod.name else ""
    leads = ", which leads to no pod port" if pod is None else f" to pod port {pod.number}{named}"
    name = f" {app.service_name}" if app.service_name else ""
    service = f"service{name} port {port.port}/{port.protocol}"
    return f"{app.name} ({labels}): {service}{leads}"


def _tell_change(step: Step) -> str:
    """Return text about the connections that a step changed and the harm that it did, or "" if the
    step was not judged."""
    if step.judgement is None or not isinstance(step.judgement.detail, dict):
        return ""
    detail: Mapping[str, object] = step.judgement.detail
    words = {"broke": "broke", "healed": "repaired", "opened": "wrongly opened"}
    changes = []
    for key, word in words.items():
        pairs = detail[key]
        if isinstance(pairs, list) and pairs:
            named = ", ".join(f"{source} -> {target}" for source, target in pairs)
            changes.append(f"{word}: {named}")
    harm = tell_harm(list(_tell_harm(step.judgement.findings, detail)))
    same = "no tested connection changed" if harm else "unchanged"
    told = f"Connections after the command: {'; '.join(changes) or same}."
    return f"{told}\n{harm}" if harm else told


def _tell_harm(findings: Sequence[Finding], detail: Mapping[str, object]) -> Iterator[str]:
    """Yield texts about newly exposed traffic, effects that lasted only during the step, and
    changes of other objects."""
    exposed, midway = detail["exposed"], detail.get("midway", [])
    if isinstance(exposed, list):
        yield from (f"{KINDS['exposed']}: {group}" for group in _group(exposed))
    yield from (
        one.detail for one in findings if one.rule == "exposed" and " -> " not in one.element
    )
    if isinstance(midway, list):
        yield from map(str, midway)
    yield from (one.detail for one in findings if one.rule in {"use_broken", "object_touched"})


def _group(exposed: Sequence[str]) -> Iterator[str]:
    """Yield texts about newly allowed traffic (``SOURCE -> TARGET: PORTS``), grouped by source or
    by target.

    The grouping with fewer groups is used.
    """
    openings = [re.fullmatch(r"(.*?) -> (.*?): (.*)", one, re.DOTALL) for one in exposed]
    groups = []
    for shared, other in ((1, 2), (2, 1)):
        table: dict[tuple[str, str], list[str]] = {}
        for one in filter(None, openings):
            table.setdefault((one[shared], one[3]), []).append(one[other])
        groups.append(table)
    by_source, by_target = groups
    if len(by_source) < len(by_target):
        yield from (f"{end} -> {_few(ends)}: {ports}" for (end, ports), ends in by_source.items())
    else:
        yield from (f"{_few(ends)} -> {end}: {ports}" for (end, ports), ends in by_target.items())


def _few(names: Sequence[str]) -> str:
    rest = len(names) - MAX_ENDS
    return ", ".join(names[:MAX_ENDS]) + (f" and {rest} more" if rest > 0 else "")
