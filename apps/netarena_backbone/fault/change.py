"""Changes that inject one fault: an edit of a world, a description, and the affected settings.

A method yields the changes that are possible in a world. The effect of a change is computed from
the edited world, and the live network is built from the edited world. The commands that inject and
repair the fault are derived from the original and the edited world (``derive``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from netarena_backbone.world.model import Host, Peer, Port, Router, World

Edit: TypeAlias = Callable[[World], World]
#: A function that changes a tuple of items.
Turn: TypeAlias = Callable[[tuple[Any, ...]], tuple[Any, ...]]


@dataclass(frozen=True)
class Change:
    """An edit of one or more machines.

    ``key`` identifies the change among the changes of its method. ``machine`` is the first machine
    that is edited. ``holds`` names the settings that other faults of the query must not affect.

    If a change edits several ``machines``, they may be repaired in any order, and ``parts`` has one
    edit for each machine.
    """

    key: str
    machine: str
    words: str
    edit: Edit
    holds: frozenset[str]
    parts: tuple[Edit, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def machines(self) -> frozenset[str]:
        """Names of the edited machines."""
        return frozenset((self.machine, *self.others))


class MissingSettingError(ValueError):
    """Raised if a change replaces settings that do not exist in a world."""


class Method(NamedTuple):
    """A named rule that yields all changes that are possible in a fault-free world."""

    name: str
    changes: Callable[[World], Iterator[Change]]


def simple(machine: str, words: str, edit: Edit, *holds: str, key: str = "") -> Change:
    """Return a change of one machine; ``holds`` names settings without the machine's name.

    The key defaults to the machine and the settings.
    """
    return Change(
        key=key or f"{machine} {' '.join(holds)}",
        machine=machine,
        words=f"{machine} {words}",
        edit=edit,
        holds=frozenset(f"{machine} {one}" for one in holds),
    )


def on_router(name: str, **update: Any) -> Edit:
    """Return an edit that replaces fields of a router."""
    return lambda world: world.edit(name, lambda one: one.model_copy(update=update))


def on_items(name: str, field: str, change: Turn) -> Edit:
    """Return an edit that changes the items of a tuple field of a router."""
    return lambda world: world.edit(
        name, lambda one: one.model_copy(update={field: change(getattr(one, field))})
    )


def added(item: Any) -> Turn:
    """Return a function that appends an item."""
    return lambda items: (*items, item)


def preceded(item: Any) -> Turn:
    """Return a function that prepends an item."""
    return lambda items: (item, *items)


def dropped(item: Any) -> Turn:
    """Return a function that removes an item."""
    return lambda items: tuple(one for one in items if one != item)


def swapped(old: Any, new: Any) -> Turn:
    """Return a function that replaces an item with another item."""
    return lambda items: tuple(new if one == old else one for one in items)


def on_port(name: str, port: str, **update: Any) -> Edit:
    """Return an edit that replaces fields of a router's port."""
    return lambda world: world.edit(
        name, lambda router: _with_port(router, port, lambda one: one.model_copy(update=update))
    )


def on_ospf_port(name: str, port: str, **update: Any) -> Edit:
    """Return an edit that replaces OSPF settings of a port.

    The edit raises MissingSettingError if OSPF does not run on the port.
    """

    def change(one: Port) -> Port:
        if one.ospf is None:
            raise MissingSettingError(f"{one.name} of {name} has no OSPF settings")
        return one.model_copy(update={"ospf": one.ospf.model_copy(update=update)})

    return lambda world: world.edit(name, lambda router: _with_port(router, port, change))


def on_ospf(name: str, **update: Any) -> Edit:
    """Return an edit that replaces settings of a router's OSPF."""

    def change(router: Router) -> Router:
        assert router.ospf is not None
        return router.model_copy(update={"ospf": router.ospf.model_copy(update=update)})

    return lambda world: world.edit(name, change)


def on_bgp(name: str, **update: Any) -> Edit:
    """Return an edit that replaces settings of a router's BGP."""
    return lambda world: world.edit(
        name,
        lambda one: one.model_copy(update={"bgp": one.bgp.model_copy(update=update)}),
    )


def on_peer(name: str, address: str, **update: Any) -> Edit:
    """Return an edit that replaces settings of one end of a BGP session."""

    def change(router: Router) -> Router:
        peers = tuple(
            peer.model_copy(update=update) if peer.address == address else peer
            for peer in router.bgp.peers
        )
        return router.model_copy(update={"bgp": router.bgp.model_copy(update={"peers": peers})})

    return lambda world: world.edit(name, change)


def on_map(name: str, route_map: str, change: Turn) -> Edit:
    """Return an edit that changes the entries of a route map."""

    def edit(router: Router) -> Router:
        maps = tuple(
            one.model_copy(update={"entries": change(one.entries)})
            if one.name == route_map
            else one
            for one in router.route_maps
        )
        return router.model_copy(update={"route_maps": maps})

    return lambda world: world.edit(name, edit)


def on_map_entry(name: str, route_map: str, seq: int, **update: Any) -> Edit:
    """Return an edit that replaces fields of one entry of a route map."""
    return on_map(
        name,
        route_map,
        lambda entries: tuple(
            one.model_copy(update=update) if one.seq == seq else one for one in entries
        ),
    )


def on_list(name: str, prefix_list: str, change: Turn) -> Edit:
    """Return an edit that changes the entries of a prefix list."""

    def edit(router: Router) -> Router:
        lists = tuple(
            one.model_copy(update={"entries": change(one.entries)})
            if one.name == prefix_list
            else one
            for one in router.prefix_lists
        )
        return router.model_copy(update={"prefix_lists": lists})

    return lambda world: world.edit(name, edit)


def on_host(name: str, change: Callable[[Host], Host]) -> Edit:
    """Return an edit that replaces a host."""
    return lambda world: world.edit_host(name, change)


def both(*edits: Edit) -> Edit:
    """Return an edit that applies several edits in order."""

    def edit(world: World) -> World:
        for one in edits:
            world = one(world)
        return world

    return edit


def transit_ports(world: World) -> Iterator[tuple[Router, Port, Router, Port]]:
    """Yield our routers' ports to each other: router, port, far router, far port."""
    for router in world.routers:
        for port in router.ports:
            far, far_port = world.far[router.name, port.name]
            if port.ospf and not port.ospf.passive and far in world.names:
                other = world.router(far)
                yield router, port, other, other.port(far_port)


def outer_peers(world: World) -> Iterator[tuple[Router, Peer]]:
    """Yield our sessions with other ASes, except sessions that are down by design."""
    for router, peer in _peers(world):
        if peer.asn != world.asn:
            yield router, peer


def inner_peers(world: World) -> Iterator[tuple[Router, Peer]]:
    """Yield both ends of sessions between our routers, except sessions that are down by design."""
    for router, peer in _peers(world):
        if peer.asn == world.asn:
            yield router, peer


def _peers(world: World) -> Iterator[tuple[Router, Peer]]:
    closed = {*world.closed}
    for router in world.routers:
        for peer in router.bgp.peers:
            if (router.name, peer.address) not in closed:
                yield router, peer


def _with_port(router: Router, name: str, change: Callable[[Port], Port]) -> Router:
    ports = tuple(change(one) if one.name == name else one for one in router.ports)
    return router.model_copy(update={"ports": ports})
