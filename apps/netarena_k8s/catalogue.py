"""Documentation of a large world, which lists permitted callers as groups with exceptions.

Groups are identified by the team and the role in pod labels. A list of applications is written as
groups with exceptions (members of the group that are not in the list) and single names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from netarena_k8s.world.model import App, World
from netarena_k8s.world.plan import Group, Plan

#: A list names a group if it contains at least ``_LEAST`` of the group's members. The number of
#: missing members may be at most ``_LACKING`` times the number of contained members.
_LEAST, _LACKING = 2, 0.5
#: separator between the parts of a list
SEPARATOR = "; "


class _Part(NamedTuple):
    """A group of applications in a list: ``members`` are in the list, ``lacking`` are not."""

    group: Group
    members: frozenset[str]
    lacking: tuple[str, ...]


def tell_catalogue(world: World, plan: Plan) -> str:
    """Return the documentation: the inventory, the callers of each service, and other
    connections."""
    teams, roles = (
        sorted({app.labels[key] for app in world.apps}) for key in (plan.team_key, plan.role_key)
    )
    callers: dict[str, set[str]] = {app.name: set() for app in world.apps if app.service}
    for pair, wanted in zip(world.pairs, world.intended, strict=True):
        if wanted:
            callers[pair.target].add(pair.source)
    lines = [
        f"- {name}: {tell_names(world, plan, some, {name})}"
        for name, some in callers.items()
        if some
    ]
    uncalled = ", ".join(name for name, some in callers.items() if not some)
    inventory = (
        f"Each application belongs to a team (label {plan.team_key} of its pod: "
        f"{', '.join(teams)}) and has a role (label {plan.role_key}: {', '.join(roles)}). Only the "
        f"labels show team and role; the name does not.{_tell_key(world)} The service of an "
        f"application has the application's name. The namespace is labelled "
        f"{_labels(world.labels)}. Each service is listed below with the applications that must "
        "be able to connect to its first port. Semicolons separate the items of a list, and "
        "'except' applies only to its own item:"
    )
    return "\n".join(
        (
            inventory,
            *lines,
            *([f"Services without callers: {uncalled}."] if uncalled else []),
            "Further connections:",
            *(f"- {line}" for line in _further(world, plan)),
            _REST,
        )
    )


_REST = (
    "Every connection between applications that these lists do not name must be blocked, even "
    "within a team. Some policies are prepared for later: they name pods, labels, ports or "
    "namespaces that do not exist yet, or contain rules that match no traffic. Leave these "
    "policies, and such rules in other policies, unchanged. A further connection that is listed "
    "without a port uses the first port of the service."
)


def _tell_key(world: World) -> str:
    """Return a sentence that names the label key that identifies applications, if all applications
    use the same key.
    """
    keys = set.intersection(
        *({key for key, value in app.labels.items() if value == app.name} for app in world.apps)
    )
    return (
        f" The label {min(keys)} of a pod holds the name of its application, which is unique."
        if keys
        else ""
    )


def tell_names(
    world: World, plan: Plan, names: Collection[str], without: Collection[str] = ()
) -> str:
    """Return a list of applications as text, with groups where possible.

    Applications in ``without`` are not named as exceptions of a group.
    """
    left, parts = set(names), []
    for part in sorted(_parts(world, plan, names, without), key=_weigh):
        if len(part.members & left) < max(_LEAST, len(part.lacking) + 1):
            continue
        left -= part.members
        told = _tell_group(plan, part.group)
        parts.append(f"{told} except {', '.join(part.lacking)}" if part.lacking else told)
    parts += [app.name for app in world.apps if app.name in left]
    return SEPARATOR.join(parts)


def _weigh(part: _Part) -> tuple[int, tuple[tuple[str, str], ...]]:
    """Return a sort key that puts groups with many members and few exceptions first."""
    return 2 * len(part.lacking) - len(part.members), tuple(sorted(part.group.labels.items()))


def _parts(
    world: World, plan: Plan, names: Collection[str], without: Collection[str]
) -> Iterator[_Part]:
    """Yield the groups that can stand for applications in the list ``names``, because most of their
    members are in the list."""
    marks = {(app.labels[plan.team_key], app.labels[plan.role_key]) for app in world.apps}
    groups = [{plan.team_key: team, plan.role_key: role} for team, role in sorted(marks)]
    groups += [{plan.role_key: role} for role in sorted({role for _, role in marks})]
    for labels in groups:
        group = Group(labels=labels)
        every = [app.name for app in world.apps if group.has(app.labels)]
        members = frozenset(name for name in every if name in names)
        lacking = tuple(name for name in every if name not in names and name not in without)
        if len(members) >= _LEAST and len(lacking) <= _LACKING * len(members):
            yield _Part(group, members, lacking)


def _tell_group(plan: Plan, group: Group) -> str:
    team, role = group.labels.get(plan.team_key), group.labels[plan.role_key]
    return f"the {role}s of {team or 'all teams'}"


def _further(world: World, plan: Plan) -> Iterator[str]:
    """Yield one line for each grant and each set of its sources. The line names all targets to
    which these sources may connect."""
    for grant, uses in zip(plan.grants, world.granted, strict=True):
        sources: dict[str, list[str]] = {}
        for use in uses:
            sources.setdefault(use.target, []).append(use.source)
        targets: dict[tuple[str, ...], list[str]] = {}
        for target, some in sources.items():
            targets.setdefault(tuple(some), []).append(target)
        on = "" if grant.port is None else f" on port {grant.port}/{grant.protocol}"
        for ends, some in targets.items():
            source, target = (_tell_ends(world, plan, one) for one in (ends, some))
            yield f"{source} must be able to connect{on} to: {target}."


def _tell_ends(world: World, plan: Plan, ends: Sequence[str]) -> str:
    """Return the text for a list of applications, or for one guest (pods of another namespace) or
    partner (an address block)."""
    for guest in plan.guests:
        if guest.address in ends:
            labels, spaces = map(_labels, (guest.labels, guest.space_labels))
            return f"{guest.name} (pods {labels} in the namespace {guest.space}, labelled {spaces})"
    for partner in plan.partners:
        if partner.address in ends:
            return f"{partner.name} ({partner.cidr}, outside the cluster)"
    return tell_names(world, plan, ends)


def read_names(told: str, plan: Plan, apps: Sequence[App]) -> list[str]:
    """Return the applications in a list of the documentation. Raises ValueError if ``told`` is not
    such a list.
    """
    known = {app.name for app in apps}
    found: list[str] = []
    for part in told.split(SEPARATOR):
        whole, _, exceptions = part.partition(" except ")
        lacking = exceptions.split(", ") if exceptions else []
        if whole in known:
            found.append(whole)
            continue
        role, _, team = whole.removeprefix("the ").partition("s of ")
        if not team or not whole.startswith("the "):
            raise ValueError(
                f"the documentation names {whole!r}, which is not an application or a group of them"
            )
        labels = {plan.role_key: role}
        group = Group(labels=labels if team == "all teams" else {plan.team_key: team, **labels})
        found += [app.name for app in apps if group.has(app.labels) and app.name not in lacking]
    return found


def _labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())
