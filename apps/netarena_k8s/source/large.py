"""Large worlds: teams with applications of several roles, and access by team and role.

The intended access consists of random grants between groups (``plan``). The intended policies
implement it (``ruleset``), with decoys among them (``lookalike``). In addition to the tested pairs,
the plan grants access on additional ports, for guests from other namespaces and to outside
addresses. An agent that derives new policies only from the pairs, or that restricts traffic as a
precaution, therefore breaks intended access.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from netarena_k8s.source.lookalike import add_lookalikes
from netarena_k8s.source.ruleset import Leaving, Writer
from netarena_k8s.source.varied import (
    FIRST,
    PORT_NAMES,
    SPACE_LABEL,
    TENANTS,
    deny_all,
    draw_app,
    key_of,
)
from netarena_k8s.world.model import App, ContainerPort, ServicePort, World, with_policies
from netarena_k8s.world.plan import Grant, Group, Guest, Partner, Plan

#: second parts of application names, which reveal neither team nor role
_SECOND = ("core", "hub", "flow", "desk", "line", "kit", "base", "point", "loop", "mill")
_TEAMS = ("checkout", "accounts", "fulfilment", "pricing", "support", "content", "partners")
FRONTEND, WORKER, STORE, JOB, LEGACY = ("frontend", "worker", "store", "job", "legacy")
#: number of applications per team
_TEAM_OF = 9
#: label keys of team and role
_KEYS = (("team", "role"), ("squad", "kind"), ("owner", "component"), ("unit", "duty"))
_LABELS: tuple[Callable[[str], dict[str, str]], ...] = (
    lambda name: {"app": name},
    lambda name: {"app.kubernetes.io/name": name},
    lambda name: {"service": name},
)
#: roles that call other roles
_CALLING = (FRONTEND, WORKER, JOB)
#: (calling role, called role) within each team
_WITHIN = ((FRONTEND, WORKER), (WORKER, STORE), (JOB, STORE))
#: (calling role, called role) between teams
_ACROSS = ((WORKER, WORKER), (JOB, STORE), (FRONTEND, WORKER), (WORKER, STORE))
_METRICS, _ADMIN = 9464, 15020
#: maximum number of attempts to draw decoys that leave all pairs as intended
_TRIES = 40
#: forms in which the egress rules of a group can be written
_LEAVING: Sequence[Leaving] = ("open", "shared", "own")


def estate(rng: random.Random, least: int, most: int) -> World:
    """Return a large world of ``least`` to ``most`` applications.

    Its intended pairs are exactly the pairs that grants of the plan allow.
    """
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
    calls = _calls(grants, apps)
    tenant = rng.choice(TENANTS)
    writer = Writer(apps, plan, tenant, _leaving(apps, keys, further, rng), rng)
    written = [deny_all(), *writer.write()]

    bare = World(
        apps=tuple(apps),
        calls=tuple(calls),
        policies=tuple(written),
        labels={SPACE_LABEL: tenant},
        plan=plan.model_copy(update={"grants": tuple(further)}),
    )
    quiet = [app for app in apps if app.labels[role] == STORE]
    for _ in range(_TRIES):
        found = with_policies(bare, add_lookalikes(bare, quiet, rng))
        # Together, two decoys for one application may allow traffic that neither of them allows.
        if found.intended == bare.intended:
            return found
    raise RuntimeError("found no decoy policies that leave the connections of this world unchanged")


def _leaving(
    apps: Sequence[App], keys: tuple[str, str], further: Sequence[Grant], rng: random.Random
) -> dict[tuple[str, str], Leaving]:
    """Return the form of the egress rules of each (team, role) that calls others.

    Two random groups get unrestricted egress. Each grant in ``further`` must be in some egress
    rule. If all source groups of a grant are unrestricted, one of them is restricted.
    """
    marks = [(app.labels[keys[0]], app.labels[keys[1]]) for app in apps]
    groups = sorted({mark for mark in marks if mark[1] in _CALLING})
    found = {mark: rng.choice(_LEAVING) for mark in groups}
    for mark in rng.sample(groups, 2):
        found[mark] = "open"
    for grant in further:
        if isinstance(grant.source, Group):
            wanted = grant.source.labels.items()
            naming = [
                mark for mark in groups if wanted <= dict(zip(keys, mark, strict=True)).items()
            ]
            if all(found[mark] == "open" for mark in naming):
                found[rng.choice(naming)] = rng.choice(("shared", "own"))
    return found


def _apps(
    number: int, keys: tuple[str, str], label: Callable[[str], dict[str, str]], rng: random.Random
) -> list[App]:
    """Return ``number`` applications with team, role and ports.

    Two of them have the role ``legacy``: they are retired and have no callers. Each team has at
    least one application of each other role if ``number`` is large enough.
    """
    teams = rng.sample(_TEAMS, max(2, number // _TEAM_OF))[: len(_TEAMS)]
    roles = [(team, role) for team in teams for role in (FRONTEND, WORKER, STORE, JOB)]
    roles = roles[: number - 2]
    rest = number - 2 - len(roles)
    more = [(rng.choice(teams), rng.choice((FRONTEND, WORKER, WORKER, STORE))) for _ in range(rest)]
    marks = [*roles, *more, *((rng.choice(teams), LEGACY) for _ in range(2))]
    rng.shuffle(marks)
    names = rng.sample([f"{one}-{two}" for one in FIRST for two in _SECOND], number)
    words = dict(zip((FRONTEND, WORKER, STORE, LEGACY), rng.sample(PORT_NAMES, 4), strict=True))
    found = []
    for name, mark in zip(names, marks, strict=True):
        app = draw_app(name, {**label(name), **dict(zip(keys, mark, strict=True))}, rng)
        app = _with_word(app, words.get(mark[1], ""))
        if mark[1] == JOB:  # Jobs are not called, so they have no service.
            app = app.model_copy(update={"service": (), "ports": ()})
        found.append(app)
    return found


def _grants(apps: Sequence[App], keys: tuple[str, str], rng: random.Random) -> list[Grant]:
    """Return the grants for the ports that tests of pairs use.

    The last grants allow every calling role to reach one application that everyone may call.
    """
    team, role = keys
    marks = sorted({(app.labels[team], app.labels[role]) for app in apps})
    teams = sorted({mark[0] for mark in marks if mark[1] != LEGACY})

    def group(*mark: str) -> Group:
        return Group(labels=dict(zip(keys, mark, strict=True)))

    ends = [((one, source), (one, target)) for one in teams for source, target in _WITHIN]
    for one in teams:
        for source, target in rng.sample(_ACROSS, 2):
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
    """Return grants for connections other than pairs, and the guests (clients in other namespaces)
    and partners (outside addresses) in these grants."""
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


def _with_word(app: App, word: str) -> App:
    """Return ``app`` with a port name common to its role, so that one rule can cover many
    applications."""
    (port,), (service,) = app.ports, app.service
    return app.model_copy(
        update={
            "ports": (port.model_copy(update={"name": word}),),
            "service": (
                service.model_copy(
                    update={
                        "name": word,
                        "target": port.number if service.target == port.number else word,
                    }
                ),
            ),
        }
    )


def _with_ports(app: App, grants: Iterable[Grant]) -> App:
    """Return ``app`` with the additional ports that the grants for this application name."""
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


def _calls(grants: Iterable[Grant], apps: Sequence[App]) -> list[tuple[str, str]]:
    """Return the granted pairs as (source, target), in the order of ``World.pairs``."""
    granted = {
        (source.name, target.name)
        for grant in grants
        for source in apps
        if cast("Group", grant.source).has(source.labels)
        for target in apps
        if cast("Group", grant.target).has(target.labels)
    }
    return [
        (source.name, target.name)
        for source in apps
        for target in apps
        if source is not target and (source.name, target.name) in granted
    ]
