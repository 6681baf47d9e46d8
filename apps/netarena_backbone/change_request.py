"""Prompt of a change request: the current documentation, the documentation after the changes, and
the request.

The documentation after the changes lists only differences from the current documentation. It
assumes that all changes are made except changes that must be refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from string import Template

from netarena.sdk import CommandLimits, PromptParts, Step, read_examples, read_text, tell_turns
from netarena_backbone.declaration import REFUSALS
from netarena_backbone.planned.host import moved
from netarena_backbone.planned.plan import Plan
from netarena_backbone.prompt import PACKAGE, document, exceptions, list_pairs
from netarena_backbone.query import Case
from netarena_backbone.state import FAILS, STANDS, WORKS, Fact, Facts, misfits, only_small
from netarena_backbone.ticket import tell_lasting, tell_saving
from netarena_backbone.world.forwarding import SMALL_BYTES
from netarena_network.bounds import tell_bounds
from netarena_network.prompt import KEYS


def change_parts(
    case: Case, plan: Plan, steps: Sequence[Step], limits: CommandLimits
) -> PromptParts:
    """Return the parts of the next prompt of a change request."""
    world = case.world
    rules = Template(read_text(PACKAGE, "change")).substitute(
        asn=world.asn,
        num_routers=len(world.routers),
        num_others=len(world.outsiders),
        **tell_bounds(len(world.machines)),
        documentation="\n".join(document(case.of_today)),
        afterwards="\n".join(_afterwards(case)),
        lasting=tell_lasting(world, "result"),
        saving=tell_saving(world, "changes"),
        **asdict(limits),
    )
    listed = "\n".join(f"- {word}: {meaning}" for word, meaning in REFUSALS.items())
    return PromptParts(
        rules=rules,
        reply_format=Template(read_text(PACKAGE, "change_reply")).substitute(words=listed),
        task="The change request:\n" + "\n".join(requests(plan)),
        history=tell_turns(steps, KEYS, limits),
        examples=read_examples(PACKAGE, ("example_change_look", "example_change_done")),
    )


def requests(plan: Plan) -> Iterator[str]:
    """Yield one numbered sentence for each requested change."""
    for number, one in enumerate(plan.requests, start=1):
        yield f"{number}. {one.change.words}."


def _afterwards(case: Case) -> Iterator[str]:
    """Yield the documentation lines about the network after the changes."""
    yield "Today's documentation still applies, with these exceptions:"
    lines = [
        *differences(case.of_today.wanted, case.wanted, case.world.packet_bytes),
        *moved(case.world, case.goal),
        *_backups(case),
    ]
    yield from (f"- {line}" for line in lines or ["None. Only settings change."])
    if case.contingencies:
        yield (
            "Contingencies after the changes: a failing link loses its carrier at both ends, so "
            "that its adjacency or session is down. During each contingency, the documentation "
            "after the changes still applies, with these exceptions:"
        )
        for one in case.contingencies:
            yield f"- {one.name}: {'; '.join(exceptions(case.wanted, case.wanted_in(one)))}."


def differences(before: Facts, after: Facts, packet_bytes: int) -> Iterator[str]:
    """Yield sentences that describe how the documentation ``after`` differs from ``before``.

    ``packet_bytes`` is the size of the larger pings.
    """
    wrong = misfits(before, after)
    narrow = {fact._replace(sort="ping") for fact in only_small(after)}
    gained = [fact for fact in wrong if after.get(fact) in {WORKS, STANDS} and fact not in narrow]
    lost = [fact for fact in wrong if after.get(fact, FAILS) == FAILS]
    for sort, noun in (
        ("ping", "pings (both sizes)"),
        ("service", "services"),
    ):
        yield from _tell(f"Additional {noun}: ", sort, gained, " -> ")
        yield from _tell(f"{noun[0].upper()}{noun[1:]} that no longer work: ", sort, lost, " -> ")
    yield from _tell_by_size(before, after, packet_bytes)
    for sort, noun in (("adjacency", "OSPF adjacencies"), ("session", "BGP sessions")):
        yield from _tell(f"New {noun}: ", sort, gained, " - ")
        yield from _tell(f"{noun} that no longer exist: ", sort, lost, " - ")
    for fact in wrong:
        if fact.sort == "way":
            yield f"Expected path {fact.source} -> {fact.target}: {after[fact] or 'direct'}"
    heard: dict[tuple[str, str], list[str]] = {}
    for fact in wrong:
        if fact.sort == "route":
            verb = "receives" if fact in after else "no longer receives"
            told = f"{fact.target} {after[fact]}" if fact in after else fact.target
            heard.setdefault((fact.source, verb), []).append(told)
    for (router, verb), routes in heard.items():
        yield f"{router} {verb} {'; '.join(routes)}"


def _tell_by_size(before: Facts, after: Facts, packet_bytes: int) -> Iterator[str]:
    """Yield a line for each list of pairs for which only the small pings or only the large pings
    change."""
    fail_before, fail_after = only_small(before), only_small(after)
    small = [fact for fact in fail_after if before.get(fact._replace(sort="ping")) != WORKS]
    gained = [fact for fact in fail_before if after.get(fact) == WORKS]
    lost = [fact for fact in fail_after if before.get(fact) == WORKS]
    for words, facts in (
        (f"Additional pings of {SMALL_BYTES} bytes only: ", small),
        (f"Additional pings of {packet_bytes} bytes: ", gained),
        (f"Pings of {packet_bytes} bytes that no longer work: ", lost),
    ):
        yield from _tell(words, "full", facts, " -> ")


def _tell(words: str, sort: str, facts: Iterable[Fact], between: str) -> Iterator[str]:
    found = [fact for fact in facts if fact.sort == sort]
    if found:
        yield f"{words}{list_pairs(found, between)}"


def _backups(case: Case) -> Iterator[str]:
    """Yield a line for each backup path that differs from the current backup path."""
    today = case.of_today.backups
    for pair in today:
        if pair not in case.backups:
            yield f"Path {' -> '.join(pair)}: today's path after 'without' no longer applies"
    for pair, backup in case.backups.items():
        if today.get(pair) != backup:
            way = " ".join(backup.way) or "direct"
            yield f"Path {' -> '.join(pair)} without {' - '.join(backup.cable)}: {way}"
