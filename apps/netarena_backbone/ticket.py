"""Prompt of a backbone ticket: the documentation and some observations.

All observations are true at the beginning of the episode. Some are symptoms, and at least one shows
documented behaviour. Both have the same wording, so that only the documentation distinguishes them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from string import Template
from types import MappingProxyType

from netarena.sdk import CommandLimits, PromptParts, Step, read_examples, read_text, tell_turns
from netarena_backbone.declaration import WORDS
from netarena_backbone.fault.table import broken, read
from netarena_backbone.prompt import PACKAGE, document
from netarena_backbone.query import Case
from netarena_backbone.state import (
    FAILS,
    STANDS,
    WORKS,
    Fact,
    Facts,
    intended,
    misfits,
    predicted,
)
from netarena_backbone.world.contingency import CONVERGE_S, during, failures
from netarena_backbone.world.model import World
from netarena_network.action import Fault
from netarena_network.bounds import tell_bounds
from netarena_network.prompt import KEYS, ticket_reply_format

#: Maximum number of reported symptoms.
MAX_SYMPTOMS = 3
#: If no symptom occurred during last night's maintenance: probability that a ticket reports a
#: documented result of the maintenance. Its other results may differ from the documentation.
_MAINTAINED = 0.5
#: (sort, value) of a fact -> sentences with which users report it
_SEEN: Mapping[tuple[str, str], Sequence[str]] = MappingProxyType(
    {
        ("ping", FAILS): (
            "{source} gets no answer from {target}.",
            "{target} does not answer {source}.",
            "The monitoring on {source} shows {target} as down.",
        ),
        ("ping", WORKS): (
            "{source} gets answers from {target}.",
            "The monitoring on {source} shows {target} as up.",
            "A user on {source} can ping {target}.",
        ),
        ("full", FAILS): (
            "Pings of the larger documented size from {source} to {target} get no answer.",
            "The monitoring on {source} reports that large packets do not reach {target}.",
        ),
        ("full", WORKS): (
            "Pings of the larger documented size from {source} to {target} are answered.",
        ),
        ("service", FAILS): (
            "{source} gets no answer from the service {target}.",
            "Users of {source} cannot use the service {target}.",
        ),
        ("service", WORKS): (
            "{source} gets answers from the service {target}.",
            "Users of {source} can use the service {target}.",
        ),
        ("way", ""): (
            "A traceroute from {source} to {target} shows {value}.",
            "Packets from {source} to {target} take the path {value}.",
        ),
        ("route", ""): (
            "The operator of {source} reports the route {target} with {value}.",
            "The looking glass of {source} shows the route {target} with {value}.",
        ),
        ("route", FAILS): (
            "The operator of {source} reports no route to {target}.",
            "The looking glass of {source} shows no route to {target}.",
        ),
        ("adjacency", FAILS): (
            "The monitoring shows at least one missing or unusable OSPF adjacency, but not which.",
            "According to the monitoring, at least one OSPF adjacency is missing or unusable.",
        ),
        ("session", FAILS): (
            "The monitoring shows that at least one BGP session is down, but not which.",
            "According to the monitoring, at least one BGP session is down.",
        ),
    }
)


def ticket_parts(
    case: Case,
    faults: Sequence[Fault],
    steps: Sequence[Step],
    limits: CommandLimits,
    rng: random.Random,
) -> PromptParts:
    """Return the parts of the next prompt of a ticket.

    ``rng`` must have the same seed in each turn.
    """
    world = case.world
    rules = Template(read_text(PACKAGE, "ticket")).substitute(
        asn=world.asn,
        num_routers=len(world.routers),
        num_others=len(world.outsiders),
        **tell_bounds(len(world.machines)),
        documentation="\n".join(document(case)),
        lasting=tell_lasting(world),
        saving=tell_saving(world),
        **asdict(limits),
    )
    return PromptParts(
        rules=rules,
        reply_format=ticket_reply_format(WORDS),
        task=f"A ticket has come in: {' '.join(observe(case, faults, rng))}",
        history=tell_turns(steps, KEYS, limits),
        examples=read_examples(PACKAGE, ("example_ticket_look", "example_done")),
    )


def tell_lasting(world: World, result: str = "repair") -> str:
    """Return the rule that the ``result`` of a task must also withstand the contingencies."""
    if not world.contingencies:
        return ""
    links = ", ".join(" - ".join(one) for one in world.contingencies)
    return (
        f"The {result} must last. If everything is as documented at the end of the task, each "
        f"contingency is tried. The links {links} fail one at a time: each is restored before the "
        "next one fails. Finally, the daemons of all your routers restart at the same time. In "
        f"each contingency, convergence may take {CONVERGE_S:g} s in total, for failure and "
        "restoration together. After each failure and after the restart, the network is compared "
        "with the documentation of that contingency; after each restoration, with the "
        "documentation without failures. The task is solved only if all are equal. No contingency "
        "happens before the task has ended, and contingencies do not count for safety."
    )


def tell_saving(world: World, results: str = "repairs") -> str:
    """Return the rule about saving configurations; ``results`` names the changes that must be
    saved."""
    if world.only_saved_survives:
        return (
            "The restart loads the saved configuration of each router, /etc/frr/frr.conf. FRR "
            f"{results} that were not saved with vtysh -c 'write memory' are lost. Kernel settings "
            "and files survive the restart. Saving is always allowed."
        )
    if world.contingencies:
        return (
            "Configurations need not be saved: the running configuration is saved for you before "
            "the restart. Saving is always allowed."
        )
    return "Configurations need not be saved."


def observe(case: Case, faults: Sequence[Fault], rng: random.Random) -> tuple[str, ...]:
    """Return observations in random order: symptoms of some faults, and facts that are as intended.

    Each of a few random faults contributes a fact that is wrong because of it. A fault that takes
    effect only in a contingency contributes an observation from last night's maintenance. Some
    other tickets also report maintenance, with a documented result.

    ``case`` caches the observations for the later turns of the ticket, because their computation
    takes up to a second. Only one number is drawn from ``rng``, as the seed of all choices.
    """
    seed = rng.getrandbits(64)
    key = (repr(faults), seed)
    if key not in case.observed:
        seeded = random.Random(seed)  # noqa: S311 -- not for secrets
        case.observed[key] = tuple(_observe(case, faults, seeded))
    return case.observed[key]


def _observe(case: Case, faults: Sequence[Fault], rng: random.Random) -> list[str]:
    changes = [read(case.world, fault) for fault in faults]
    faulty = broken(case.world, changes)
    now = intended(faulty) if changes else case.wanted
    wrong = misfits(case.wanted, now)
    found: list[Fact] = []
    said: list[str] = []
    for change in rng.sample(changes, len(changes))[: rng.randint(1, MAX_SYMPTOMS)]:
        alone = {*misfits(case.wanted, intended(change.edit(case.world)))}
        here = [fact for fact in wrong if fact in alone and fact not in found]
        found += [_one(here, rng)] if here else []
        if not alone and not said:
            said = _tell_maintenance(case, rng, faulty, change.edit(case.world))
    if case.contingencies and not said and rng.random() < _MAINTAINED:
        said = _tell_maintenance(case, rng, faulty)
    if wrong and not found:
        found.append(_one(wrong, rng))
    hidden = {*wrong}
    right = [
        fact
        for fact, value in case.wanted.items()
        if value != STANDS and fact in now and fact not in hidden
    ]
    for _ in range(1 if found else rng.randint(2, MAX_SYMPTOMS)):
        found.append(_one([fact for fact in right if fact not in found], rng))
    told = [*(_tell(fact, now, rng) for fact in found), *said]
    rng.shuffle(told)
    return [*dict.fromkeys(told)]


def _tell_maintenance(
    case: Case, rng: random.Random, faulty: World, alone: World | None = None
) -> list[str]:
    """Return an observation from last night, while a link was down, or an empty list.

    The observation is true in the world ``faulty``. If the world ``alone`` is given, it has only
    one of the faults. The observation then differs from the documentation of the contingency
    because of this fault. Otherwise the observation is a documented effect of the link failure.
    """
    cuts = failures(case.world)
    for one in rng.sample(cuts, len(cuts)):
        wanted, seen = case.wanted_in(one), predicted(during(faulty, one))
        by_fault = None if alone is None else predicted(during(alone, one))
        if seen is None or (alone is not None and by_fault is None):
            continue
        if by_fault is None:
            facts = [
                fact for fact in misfits(case.wanted, wanted) if seen.get(fact) == wanted.get(fact)
            ]
        else:
            caused = {*misfits(wanted, by_fault)}
            facts = [fact for fact in misfits(wanted, seen) if fact in caused]
        facts = [fact for fact in facts if fact.sort not in {"adjacency", "session"}]
        if facts:
            told = _tell(_one(facts, rng), seen, rng)
            return [
                f"Report from last night, while link {one.link} was down for maintenance: {told}"
            ]
    return []


def _one(facts: Sequence[Fact], rng: random.Random) -> Fact:
    """Return a random fact; all sorts are equally likely."""
    sort = rng.choice(sorted({fact.sort for fact in facts}))
    return rng.choice([fact for fact in facts if fact.sort == sort])


def _tell(fact: Fact, now: Facts, rng: random.Random) -> str:
    value = now.get(fact, FAILS)
    known = fact.sort == "way" or (fact.sort == "route" and fact in now)
    words = rng.choice(_SEEN[fact.sort, "" if known else value])
    target = fact.target
    if fact.sort == "service":
        protocol, name, port = target.split()
        target = f"{name} ({protocol} port {port})"
    return words.format(source=fact.source, target=target, value=value)
