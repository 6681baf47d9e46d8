"""Pictures of a network: the matrix of pings and the topology."""

from __future__ import annotations

from collections.abc import Iterator

from netarena.sdk import Episode, Link, Mark, Matrix, Node, Picture, State, Topology
from netarena_route.state import fields, misfits
from netarena_route.world.model import World

#: Maximum number of machines in a picture. In a larger network, the picture shows only the router
#: and machines with wrong pings.
MAX_DRAWN = 64


def draw(world: World, episode: Episode, number: int) -> tuple[Picture, ...]:
    """Return the ping matrix and the topology after step ``number``; 0 is the initial state."""
    states = [episode.initial_state, *(step.state for step in episode.steps)]
    state = states[number]
    if state is None:
        return ()
    names = _choose(world, [one for one in states if one is not None])
    return _matrix(world, names, state), _topology(world, names, state)


def _choose(world: World, states: list[State]) -> tuple[str, ...]:
    """Return the machines to draw, in the world's order. They stay the same during an episode."""
    if len(world.endpoints) <= MAX_DRAWN:
        return world.endpoints
    named = {world.router.name: None}
    for state in states:
        for pair in misfits(world, state):
            named.update(dict.fromkeys(pair))
    chosen = set(list(named)[:MAX_DRAWN])
    return tuple(name for name in world.endpoints if name in chosen)


def _matrix(world: World, names: tuple[str, ...], state: State) -> Matrix:
    place = {name: index for index, name in enumerate(world.endpoints)}
    rows = fields(state)["matrix"]

    def mark(source: str, target: str) -> Mark:
        if source == target:
            return Mark.NONE
        row, column = place[source], place[target]
        works = rows[row][column] == "1"
        if world.intended[row][column] == "1":
            return Mark.WORKS if works else Mark.BROKEN
        return Mark.EXPOSED if works else Mark.APART

    cells = tuple(tuple(mark(source, target) for target in names) for source in names)
    return Matrix(title="Pings between machines", rows=names, columns=names, cells=cells)


def _topology(world: World, names: tuple[str, ...], state: State) -> Topology:
    chosen = set(names)
    nodes = [Node(name=world.router.name, role="router", rank=0)]
    links = []
    by_subnet: dict[int, list[Node]] = {}
    for host in world.hosts:
        if host.name in chosen:
            role = "reserve host" if host.name in world.reserve else "host"
            subnet = host.interfaces[0].subnet
            by_subnet.setdefault(subnet, []).append(Node(name=host.name, role=role, rank=2))
            links.append(
                Link(
                    ends=(world.switches[subnet], host.name),
                    label=host.interfaces[0].address,
                )
            )
    for port in world.router.interfaces:
        if port.subnet in by_subnet:
            switch = world.switches[port.subnet]
            nodes.append(Node(name=switch, role="switch", rank=1))
            links.append(Link(ends=(world.router.name, switch), label=port.address))
    # Hosts are drawn below their switch, in the order of the switches.
    order = [port.subnet for port in world.router.interfaces]
    nodes += [node for subnet in order for node in by_subnet.get(subnet, ())]
    return Topology(
        title="Network",
        nodes=tuple(nodes),
        links=tuple(links),
        pairs=tuple(_wrong(world, chosen, state)),
    )


def _wrong(world: World, chosen: set[str], state: State) -> Iterator[tuple[str, str, Mark]]:
    place = {name: index for index, name in enumerate(world.endpoints)}
    for source, target in misfits(world, state):
        if source in chosen and target in chosen:
            meant = world.intended[place[source]][place[target]] == "1"
            yield source, target, Mark.BROKEN if meant else Mark.EXPOSED
