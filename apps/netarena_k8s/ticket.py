"""What an agent is told of a ticket: what is intended, by groups, and what people saw.

Each observation is true where the agent begins. Some are symptoms and one at least is not, in the
same words: only what is intended tells them apart. The texts are files in ``prompts``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from string import Template

from netarena.model import Query, Step
from netarena.prompts import CommandLimits, PromptParts, bound, read_examples, read_text, tell_turn
from netarena_k8s.apiserver.bound import POLICY_ENTRIES
from netarena_k8s.claim import WORDS
from netarena_k8s.fault import faulty
from netarena_k8s.plan import Grant, Group, Plan
from netarena_k8s.prompt import PACKAGE, tell_intent
from netarena_k8s.query import faults_of, world_of
from netarena_k8s.world import Net, Pair, World

#: symptoms that are reported at most
MAX_SYMPTOMS = 3
#: draws of a pair that is as intended
_TRIES = 40
#: whether the connection works -> how people say it
_SEEN: Mapping[bool, Sequence[str]] = {
    False: (
        "{source} gets no answer from {target}.",
        "Calls from {source} to {target} run into timeouts.",
        "In the logs of {source}: dial {target}: i/o timeout.",
        "No request of {source} has arrived at {target} for an hour.",
        "{target} looks idle as seen from {source}: each attempt to connect hangs.",
    ),
    True: (
        "{target} answers {source}.",
        "The connection log of {target} shows calls from {source}.",
        "A scan that ran in the pod of {source} found the service of {target} open.",
        "{source} is among the clients that {target} has served today.",
        "From the pod of {source} a connection to {target} is set up at once.",
    ),
}
_VERBS = {
    "store": ("read from and write to", "keep their data in", "query"),
    "": ("call", "send requests to", "depend on", "talk to"),
}


def ticket_parts(
    query: Query,
    namespace: str,
    steps: Sequence[Step],
    limits: CommandLimits,
    rng: random.Random,
) -> PromptParts:
    """The parts of the next prompt; ``rng`` is the same in each turn."""
    world = world_of(query)
    observed = " ".join(_observe(query, world, rng))
    rules = Template(read_text(PACKAGE, "ticket")).substitute(
        num_apps=len(world.apps),
        namespace=namespace,
        intent=tell_intent(world) if world.plan is None else tell_plan(world, world.plan, rng),
        uses=_USES if world.uses else "",
        entries=POLICY_ENTRIES,
        lookups=f"\n{read_text(PACKAGE, 'lookups')}" if world.restricts_egress else "",
        **asdict(limits),
    )
    reply = Template(read_text(PACKAGE, "ticket_reply")).substitute(
        words="\n".join(f"- {word}: {what}" for word, what in WORDS.items())
    )
    turns = [
        tell_turn(number, step, ("command",), "", limits.output_chars)
        for number, step in enumerate(steps, start=1)
    ]
    return PromptParts(
        rules=rules,
        reply_format=reply,
        task=f"A ticket has come in: {observed}",
        history=bound(turns, limits.history_chars),
        examples=read_examples(PACKAGE, ("ticket_look", "ticket_repair")),
    )


_USES = (
    "\n- Further ports, callers of other namespaces and addresses outside: by those that are named "
    "above, also after every command."
)


def _observe(query: Query, world: World, rng: random.Random) -> list[str]:
    """What people saw, in any order."""
    faults = faults_of(query)
    sights = _Sights(Net(world, world.policies), Net(world, faulty(world, faults)))
    found: list[Pair] = []
    shown = rng.sample(faults, len(faults))
    for fault in shown[: rng.randint(1, MAX_SYMPTOMS)]:
        ends = (*fault.broken, *fault.opened)
        wrong = [Pair(source=source, target=target) for source, target in ends]
        wrong = [pair for pair in wrong if sights.is_wrong(pair) and pair not in found]
        if wrong:
            found.append(rng.choice(wrong))
    if faults and not found:
        found.append(rng.choice([pair for pair in world.pairs if sights.is_wrong(pair)]))
    more = 1 if found else rng.randint(2, MAX_SYMPTOMS)
    for pair in _beside(world, found, rng):
        if more and pair not in found and not sights.is_wrong(pair):
            found.append(pair)
            more -= 1
    rng.shuffle(found)
    return [
        rng.choice(_SEEN[sights.works(pair)]).format(source=pair.source, target=pair.target)
        for pair in found
    ]


@dataclass(frozen=True)
class _Sights:
    """The shop as it should be, and as the agent meets it."""

    healthy: Net
    now: Net

    def works(self, pair: Pair) -> bool:
        return self.now.reaches(pair)

    def is_wrong(self, pair: Pair) -> bool:
        return self.works(pair) != self.healthy.reaches(pair)


def _beside(world: World, found: Sequence[Pair], rng: random.Random) -> Iterator[Pair]:
    """Pairs in which somebody may have an interest: about the same applications as those that were
    found, as often blocked as not."""
    near = {name for pair in found for name in (pair.source, pair.target)}
    calls = [Pair(source=source, target=target) for source, target in world.calls]
    close = [pair for pair in calls if {pair.source, pair.target} & near]
    others = [pair for pair in world.pairs if {pair.source, pair.target} & near] or world.pairs
    for _ in range(_TRIES):
        yield rng.choice((close or calls or others) if rng.random() < 0.5 else others)
    yield from world.pairs


def tell_plan(world: World, plan: Plan, rng: random.Random) -> str:
    """The inventory and what is intended, by groups that labels tell."""
    teams, roles = (
        sorted({app.labels[key] for app in world.apps}) for key in (plan.team_key, plan.role_key)
    )
    lines = [f"- {_tell_grant(plan, grant, rng)}" for grant in plan.grants]
    rng.shuffle(lines)
    inventory = (
        f"An application belongs to a team (label {plan.team_key} of its pod: "
        f"{', '.join(teams)}) and has a role (label {plan.role_key}: {', '.join(roles)}). The "
        "labels of its pod say so, its name does not. The service of an application has its "
        "name. All that may connect, by the first port of the service unless another is named:"
    )
    return "\n".join(
        (
            inventory,
            *lines,
            "Whatever is not named here must not connect, not even within a team.",
        )
    )


def _tell_grant(plan: Plan, grant: Grant, rng: random.Random) -> str:
    source, target = (_tell_end(plan, end) for end in (grant.source, grant.target))
    to_stores = isinstance(grant.target, Group) and grant.target.labels.get(plan.role_key)
    verb = rng.choice(_VERBS.get(str(to_stores), _VERBS[""]))
    if isinstance(grant.source, str) or grant.port is not None:
        verb = "may connect to"
    port = "" if grant.port is None else f" on port {grant.port}/{grant.protocol}"
    return f"{source} {verb} {target}{port}."


def _tell_end(plan: Plan, end: Group | str) -> str:
    if isinstance(end, Group):
        team, role = end.labels.get(plan.team_key), end.labels.get(plan.role_key)
        if team is None and role is None:
            return next(iter(end.labels.values()))
        return f"the {role}s" + (f" of {team}" if team else " of all teams")
    for guest in plan.guests:
        if guest.name == end:
            labels, spaces = (
                ", ".join(f"{key}={value}" for key, value in labels.items())
                for labels in (guest.labels, guest.space_labels)
            )
            return f"{end} (pods {labels} in the namespace {guest.space}, labelled {spaces})"
    (cidr,) = (partner.cidr for partner in plan.partners if partner.name == end)
    return f"{end} ({cidr}, outside)"
