"""Large shops: teams, each with applications of several roles, and who may reach what by these.

What is intended is drawn as grants between groups (``plan``); the healthy policies say it in the
styles of small shops, by groups too. Beside the pairs that are tested, second ports, guests of
other namespaces and addresses outside are in use: who writes policies anew from what pairs need, or
narrows them to be sure, breaks something.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from netarena.model import JsonValue
from netarena_k8s.decoy import decorate
from netarena_k8s.plan import Grant, Group, Guest, Partner, Plan, Use
from netarena_k8s.varied import (
    FIRST,
    SPACE_LABEL,
    TENANTS,
    Draft,
    PeerForm,
    Style,
    deny_all,
    draw_app,
    key_of,
    write_policy,
)
from netarena_k8s.world import App, ContainerPort, Policy, ServicePort, World, count_entries

#: names say nothing of teams and roles
_SECOND = ("core", "hub", "flow", "desk", "line", "kit", "base", "point", "loop", "mill")
_TEAMS = ("checkout", "accounts", "fulfilment", "pricing", "support", "content", "partners")
FRONTEND, WORKER, STORE, JOB, LEGACY = ("frontend", "worker", "store", "job", "legacy")
#: applications for each team
_TEAM_OF = 9
#: labels that tell team and role
_KEYS = (("team", "role"), ("squad", "kind"), ("owner", "component"), ("unit", "duty"))
_LABELS: tuple[Callable[[str], dict[str, str]], ...] = (
    lambda name: {"app": name},
    lambda name: {"app.kubernetes.io/name": name},
    lambda name: {"service": name},
)
#: those that call anybody
_CALLING = (FRONTEND, WORKER, JOB)
#: role that calls -> role that is called, within each team
_WITHIN = ((FRONTEND, WORKER), (WORKER, STORE), (JOB, STORE))
#: the same, from team to team
_ACROSS = ((WORKER, WORKER), (JOB, STORE), (FRONTEND, WORKER), (WORKER, STORE))
_METRICS, _ADMIN = 9464, 15020
#: of one policy; the cluster takes some more
_MOST_ENTRIES = 85
#: of what is drawn anew until it fits
_TRIES = 40
#: callees that an application names one by one, at most
_MOST_NAMED = 12
#: one application that calls in so many names whom, in its egress
_ISOLATING_OF = 3


def estate(rng: random.Random, least: int, most: int) -> World:
    """A large shop of ``least`` to ``most`` applications; its intended pairs are what its plan
    grants, and nothing else."""
    keys, label = rng.choice(_KEYS), rng.choice(_LABELS)
    apps = _apps(rng.randint(least, most), keys, label, rng)
    grants = _grants(apps, keys, rng)
    further, guests, partners = _further(apps, keys, rng)
    apps = [_with_ports(app, further) for app in apps]
    team, role = keys
    plan = Plan(
        team_key=team,
        role_key=role,
        grants=(*grants, *further),
        guests=guests,
        partners=partners,
    )
    public = _only(grants[-1], apps)
    calls = _calls(grants, apps)
    styles = _styles(apps, calls, public, role, rng)
    for grant in further:  # somebody's egress must name each that is used
        if isinstance(grant.source, Group):
            name = rng.choice([app.name for app in apps if grant.source.has(app.labels)])
            styles[name] = replace(styles[name], egress="calls")
    tenant = rng.choice(TENANTS)
    form = _by_group(keys)
    drafts = [Draft(app, apps, calls, tenant, styles[app.name], rng, form) for app in apps]
    bare = World(apps=tuple(apps), policies=(), labels={SPACE_LABEL: tenant}, plan=plan)
    policies = [deny_all(), *(_write(one, bare) for one in drafts)]
    whole = World(apps=bare.apps, policies=tuple(policies), labels=bare.labels, plan=plan)
    retired = [app for app in apps if app.labels[role] == LEGACY]
    quiet = [app for app in apps if app.labels[role] == STORE]
    for _ in range(_TRIES):
        found = World(
            apps=bare.apps,
            calls=tuple(calls),
            policies=tuple(decorate(whole, retired, quiet, rng)),
            labels=bare.labels,
            plan=plan,
        )
        # two decoys upon one application may together allow what neither does
        if sum(found.intended) == len(calls):
            return found
    raise RuntimeError("no decoys leave this shop as it is intended")


def _write(draft: Draft, bare: World) -> Policy:
    """The policy of an application, small enough to be patched with something more in it."""
    style = draft.style
    for _ in range(_TRIES):
        policy = _used(write_policy(draft), draft.app, style, bare, draft.rng)
        if count_entries(policy.spec) <= _MOST_ENTRIES:
            return policy
    if style.plain:
        raise RuntimeError(f"the policy of {draft.app.name} does not become small enough")
    return _write(replace(draft, style=replace(style, ingress="callers", plain=True)), bare)


def _apps(
    number: int, keys: tuple[str, str], label: Callable[[str], dict[str, str]], rng: random.Random
) -> list[App]:
    """Two are retired, and each team has one of each role at least."""
    teams = rng.sample(_TEAMS, max(2, number // _TEAM_OF))[: len(_TEAMS)]
    roles = [(team, role) for team in teams for role in (FRONTEND, WORKER, STORE, JOB)]
    roles = roles[: number - 2]
    rest = number - 2 - len(roles)
    more = [(rng.choice(teams), rng.choice((FRONTEND, WORKER, WORKER, STORE))) for _ in range(rest)]
    marks = [*roles, *more, *((rng.choice(teams), LEGACY) for _ in range(2))]
    rng.shuffle(marks)
    names = rng.sample([f"{one}-{two}" for one in FIRST for two in _SECOND], number)
    found = []
    for name, mark in zip(names, marks, strict=True):
        app = draw_app(name, {**label(name), **dict(zip(keys, mark, strict=True))}, rng)
        if mark[1] == JOB:  # it calls and is not called
            app = app.model_copy(update={"service": (), "ports": ()})
        found.append(app)
    return found


def _grants(apps: Sequence[App], keys: tuple[str, str], rng: random.Random) -> list[Grant]:
    """Who may reach what by the ports that pairs are tested by; the last ones let all that call
    anybody reach one application."""
    team, role = keys
    marks = sorted({(app.labels[team], app.labels[role]) for app in apps})
    teams = sorted({mark[0] for mark in marks if mark[1] != LEGACY})

    def group(*mark: str) -> Group:
        return Group(labels=dict(zip(keys, mark, strict=True)))

    ends = [((one, source), (one, target)) for one in teams for source, target in _WITHIN]
    for one in teams:
        source, target = rng.choice(_ACROSS)
        ends.append(
            ((one, source), (rng.choice([other for other in teams if other != one]), target))
        )
    found = [
        Grant(source=group(*source), target=group(*target))
        for source, target in dict.fromkeys(ends)
        if source in marks and target in marks
    ]
    called = [app for app in apps if app.labels[role] in {WORKER, STORE}]
    public = rng.choice([app for app in called if app.labels[role] == WORKER])
    for one in rng.sample(teams, 2):
        app = rng.choice([app for app in called if app.labels[team] != one and app is not public])
        single = Group(labels={key_of(app): app.name})
        found.append(Grant(source=group(one, rng.choice((FRONTEND, JOB))), target=single))
    single = Group(labels={key_of(public): public.name})
    everyone = [Grant(source=Group(labels={role: one}), target=single) for one in _CALLING]
    return [*found, *everyone]


def _further(
    apps: Sequence[App], keys: tuple[str, str], rng: random.Random
) -> tuple[list[Grant], tuple[Guest, ...], tuple[Partner, ...]]:
    """What is in use beside."""
    team, role = keys
    teams = sorted({app.labels[team] for app in apps if app.labels[role] == STORE})
    watched, copied, tended, paying = (rng.choice(teams) for _ in range(4))
    guests = (
        Guest(
            name="collector",
            labels={"app": "collector"},
            space="telemetry",
            space_labels={"purpose": "observability"},
        ),
        Guest(
            name="ledger-sync",
            labels={"app": "ledger-sync"},
            space="back-office",
            space_labels={"purpose": "bookkeeping"},
        ),
    )
    partners = (
        Partner(name="the card processor", cidr="203.0.113.64/28"),
        Partner(name="the mail relay", cidr="198.51.100.25/32"),
    )
    scraped = rng.choice((Group(labels={role: STORE}), Group(labels={team: watched, role: WORKER})))
    return (
        [
            Grant(source="collector", target=scraped, port=_METRICS),
            Grant(source="ledger-sync", target=Group(labels={team: copied, role: STORE})),
            Grant(
                source=Group(labels={team: tended, role: JOB}),
                target=Group(labels={team: tended, role: WORKER}),
                port=_ADMIN,
            ),
            Grant(
                source=Group(labels={team: paying, role: WORKER}),
                target="the card processor",
                port=443,
            ),
            Grant(
                source=Group(labels={role: FRONTEND}),
                target="the mail relay",
                port=587,
            ),
        ],
        guests,
        partners,
    )


def _with_ports(app: App, grants: Iterable[Grant]) -> App:
    """With the further ports that grants let others reach."""
    names = {_METRICS: "metrics", _ADMIN: "admin"}
    ports = [
        one.port
        for one in grants
        if one.port in names and isinstance(one.target, Group) and one.target.has(app.labels)
    ]
    return app.model_copy(
        update={
            "ports": (
                *app.ports,
                *(ContainerPort(number=port, name=names[port]) for port in ports),
            ),
            "service": (
                *app.service,
                *(ServicePort(port=port, target=port, name=names[port]) for port in ports),
            ),
        }
    )


def _only(grant: Grant, apps: Iterable[App]) -> App:
    (found,) = (app for app in apps if cast("Group", grant.target).has(app.labels))
    return found


def _calls(grants: Iterable[Grant], apps: Sequence[App]) -> list[tuple[str, str]]:
    """The pairs that are granted, in the order of pairs."""
    ends = [(cast("Group", grant.source), cast("Group", grant.target)) for grant in grants]
    return [
        (source.name, target.name)
        for source in apps
        for target in apps
        if source is not target
        and any(one.has(source.labels) and other.has(target.labels) for one, other in ends)
    ]


def _styles(
    apps: Sequence[App],
    calls: Sequence[tuple[str, str]],
    public: App,
    role: str,
    rng: random.Random,
) -> dict[str, Style]:
    sources, targets = ([call[end] for call in calls] for end in (0, 1))
    served = [app.name for app in apps if app.service and app.labels[role] != LEGACY]
    inverted = rng.sample([name for name in served if name != public.name], 2)
    found = {}
    for app in apps:
        egress: Literal["all", "calls", "none"] = "all"
        if app.labels[role] not in _CALLING:
            egress = "none"
        elif rng.randrange(_ISOLATING_OF) == 0:
            egress = "calls"
        ingress: Literal["callers", "not_others", "anyone", "mixed_rules", "mixed_peers"]
        ingress = "callers"
        if app is public:
            ingress = "anyone"
        elif app.name in inverted:
            ingress = "not_others"
        elif targets.count(app.name) > 1 and app.labels[role] != LEGACY and rng.random() < 0.25:
            ingress = rng.choice(("mixed_rules", "mixed_peers"))
        plain = rng.random() < 0.25 or sources.count(app.name) > _MOST_NAMED
        found[app.name] = Style(egress, ingress, plain)
    return found


def _by_group(keys: tuple[str, str]) -> PeerForm:
    """Peers by team and role, where all of a group are peers; the others by name."""

    def form(draft: Draft, apps: Sequence[App]) -> list[Any]:
        peers: list[Any] = []
        names = {app.name for app in apps}
        for mark in dict.fromkeys(tuple(app.labels[key] for key in keys) for app in apps):
            labels = dict(zip(keys, mark, strict=True))
            members = [app for app in draft.apps if labels.items() <= app.labels.items()]
            members = [app for app in members if app is not draft.app]
            if names.issuperset(app.name for app in members):
                peers.append({"podSelector": {"matchLabels": labels}})
            else:
                peers += [
                    {"podSelector": {"matchLabels": {key_of(app): app.name}}}
                    for app in members
                    if app.name in names
                ]
        return peers

    return form


def _used(policy: Policy, app: App, style: Style, world: World, rng: random.Random) -> Policy:
    """With rules for what is used beside the pairs, among the others, a rule for each port."""
    spec = {**policy.spec}
    entering = _gathered(world, [use for use in world.uses if use.target == app.name], "source")
    leaving = _gathered(world, [use for use in world.uses if use.source == app.name], "target")
    for direction, key, rules in (("ingress", "from", entering), ("egress", "to", leaving)):
        if direction == "egress" and style.egress == "all":
            continue
        written = [*cast("list[JsonValue]", spec.get(direction) or [])]
        for (port, protocol), peers in rules.items():
            rule: JsonValue = {key: peers, "ports": [{"port": port, "protocol": protocol}]}
            written.insert(rng.randint(0, len(written)), rule)
        if rules:
            spec[direction] = written
    return policy.model_copy(update={"spec": spec})


def _gathered(
    world: World, uses: Iterable[Use], end: Literal["source", "target"]
) -> dict[tuple[int, str], list[JsonValue]]:
    """The peers of each port."""
    found: dict[tuple[int, str], list[JsonValue]] = {}
    for use in uses:
        peers = found.setdefault((use.port, use.protocol), [])
        peers.append(_peer(world, getattr(use, end)))
    return found


def _peer(world: World, name: str) -> JsonValue:
    assert world.plan is not None
    if name in world.by_name:
        app = world.by_name[name]
        return {"podSelector": {"matchLabels": {key_of(app): app.name}}}
    for guest in world.plan.guests:
        if guest.address == name:
            spaces: dict[str, JsonValue] = {**guest.space_labels}
            pods: dict[str, JsonValue] = {**guest.labels}
            return {
                "namespaceSelector": {"matchLabels": spaces},
                "podSelector": {"matchLabels": pods},
            }
    (cidr,) = (one.cidr for one in world.plan.partners if one.address == name)
    return {"ipBlock": {"cidr": cidr}}
