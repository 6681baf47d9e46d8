"""Latent faults, which have no effect in today's network but break the requested target.

Most latent faults affect settings that only the target uses: a path that traffic moves to, or a
link or session that is put into service. Others take effect only in a contingency of the target.
Candidates are checked by computing worlds: a latent fault changes no fact of today, but changes
facts of the target or of one of its contingencies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from netarena_backbone.fault.change import Change, Edit, Method, simple
from netarena_backbone.fault.lasting import LASTING
from netarena_backbone.fault.table import KINDS
from netarena_backbone.planned.requested import pick
from netarena_backbone.world.model import OspfPort, Port, Router, World
from netarena_backbone.world.odd import key_of

_HELLOS, _DEADS, _COST = (2, 3), (7, 9), 1200


def _idle_ports(world: World) -> Iterator[tuple[str, Port, OspfPort]]:
    """Yield ports between our routers on which OSPF is configured but not enabled yet."""
    for router in world.routers:
        for port in router.ports:
            if port.idle is not None and world.far[router.name, port.name][0] in world.names:
                yield router.name, port, port.idle


def _on_idle(name: str, port: str, **update: object) -> Edit:
    """Return an edit of a port's OSPF settings, whether or not OSPF runs on the port."""

    def turn(one: Port) -> Port:
        field = "idle" if one.idle is not None else "ospf"
        settings = getattr(one, field)
        return one.model_copy(update={field: settings.model_copy(update=update)})

    def edit(router: Router) -> Router:
        ports = tuple(turn(one) if one.name == port else one for one in router.ports)
        return router.model_copy(update={"ports": ports})

    return lambda world: world.edit(name, edit)


def _idle(name: str, words: str, port: Port, **update: object) -> Change:
    """Return a fault in the OSPF settings of a port on which OSPF does not run yet."""
    setting = " ".join(sorted(update))
    return simple(
        name,
        f"has {words} at {port.name}, where OSPF does not run yet",
        _on_idle(name, port.name, **update),
        f"idle {port.name}",
        key=f"idle {name} {port.name} {setting}",
    )


def _hello(world: World) -> Iterator[Change]:
    for name, port, has in _idle_ports(world):
        value = pick(f"hello {port.name}", _HELLOS, has.hello)
        yield _idle(name, f"an OSPF hello interval of {value} s", port, hello=value)


def _dead(world: World) -> Iterator[Change]:
    for name, port, has in _idle_ports(world):
        value = pick(f"dead {port.name}", _DEADS, has.dead)
        yield _idle(name, f"an OSPF dead interval of {value} s", port, dead=value)


def _cost(world: World) -> Iterator[Change]:
    for name, port, _ in _idle_ports(world):
        yield _idle(name, f"OSPF cost {_COST}", port, cost=_COST)


def _key(world: World) -> Iterator[Change]:
    for name, port, has in _idle_ports(world):
        if has.key:
            key = key_of(pick(f"wrong {port.name}", range(1 << 16)))
            yield _idle(name, "an OSPF key that differs from its neighbour's", port, key=key)


#: Kind of fault -> its methods for ports on which OSPF does not run yet
IDLE: Mapping[str, tuple[Method, ...]] = MappingProxyType(
    {
        "ospf_timers": (Method("hello", _hello), Method("dead", _dead)),
        "ospf_cost": (Method("high", _cost),),
        "ospf_authentication": (Method("wrong_key", _key),),
    }
)


def candidates(today: World, target: World, near: Collection[str]) -> list[tuple[str, str, Change]]:
    """Return the possible latent faults as (kind, method, change).

    ``near`` contains names of ports and route maps, and addresses of peers, that only the target
    uses. The result contains only faults that affect at least one of them.
    """
    tables = ((IDLE, today), (KINDS, target), (LASTING, target))
    return [
        (kind, method.name, change)
        for table, world in tables
        for kind, some in table.items()
        for method in some
        for change in method.changes(world)
        if not _settings(change).isdisjoint(near)
    ]


def lasting(target: World) -> list[tuple[str, str, Change]]:
    """Return possible faults that may take effect only in a contingency, as (kind,
    method, change)."""
    return [
        (kind, method.name, change)
        for kind, some in LASTING.items()
        for method in some
        for change in method.changes(target)
    ]


def find(today: World, target: World, kind: str, method: str, key: str) -> Change:
    """Return the fault with this kind, method and key.

    Raises StopIteration if neither today's network nor the target has such a fault.
    """
    tables = ((IDLE, today), (KINDS, target), (LASTING, target))
    return next(
        change
        for table, world in tables
        for one in table.get(kind, ())
        if one.name == method
        for change in one.changes(world)
        if change.key == key
    )


def _settings(change: Change) -> set[str]:
    """Return the names of the ports, addresses and route maps that a change affects."""
    return {word for one in change.holds for word in one.split()[1:]}
