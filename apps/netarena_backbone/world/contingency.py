"""Contingencies of a world: planned disturbances that the final network must withstand.

The links of ``World.contingencies`` fail one after the other, with a loss of carrier at both ends.
Finally, the daemons of all our routers restart at the same time. All functions are pure.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from netarena_backbone.world.fib import is_on
from netarena_backbone.world.model import Link, Router, Static, World

#: Time limit for convergence in one contingency, in s. The failure and the restoration of a link
#: share it. The time that daemons waited for a processor is not counted.
CONVERGE_S = 20.0


class Contingency(NamedTuple):
    """A link failure, or the restart of the daemons of all our routers if ``cable`` is None."""

    #: Name of the contingency in prompts and records.
    name: str
    #: Names of the two machines that the link connects.
    cable: tuple[str, str] | None

    @property
    def link(self) -> str:
        """The name of the link that fails; "" for the restart."""
        return " - ".join(self.cable or ())


RESTART = Contingency("the restart of the daemons of all our routers", None)


def contingencies(world: World) -> tuple[Contingency, ...]:
    """Return the contingencies of a world in the order in which they are tried.

    The restart is the last one. Worlds without cuttable links have no contingencies.
    """
    return (*failures(world), RESTART) if world.contingencies else ()


def failures(world: World) -> tuple[Contingency, ...]:
    """Return the link failures of a world, without the restart, in the order in which they are
    tried."""
    return tuple(
        Contingency(f"the failure of link {' - '.join(one)}", one) for one in world.contingencies
    )


def during(world: World, contingency: Contingency) -> World:
    """Return the world as it is during a contingency; a restart does not change the world.

    When a link loses its carrier, FRR removes the networks and routes of both ports. The kernel
    keeps routes that no daemon manages, and drops the packets that use them. Raises ValueError if
    there is not exactly one link between the two machines.
    """
    if contingency.cable is None:
        return world
    link = link_between(world, contingency.cable)
    if link is None:
        raise ValueError(f"{' - '.join(contingency.cable)}: these machines need exactly one link")
    for machine, port in (link.one, link.other):
        world = world.edit(machine, partial(_without_port, name=port))
    return world.model_copy(update={"links": tuple(one for one in world.links if one != link)})


def link_between(world: World, machines: tuple[str, str]) -> Link | None:
    """Return the only link between two machines, or None if there are none or several."""
    links = [link for link in world.links if {link.one[0], link.other[0]} == {*machines}]
    return links[0] if len(links) == 1 else None


def _without_port(router: Router, name: str) -> Router:
    address = router.port(name).address
    kept = tuple(
        Static(prefix=one.prefix, via="blackhole")
        if one.via != "blackhole" and is_on(one.via, address)
        else one
        for one in router.kernel_routes
    )
    ports = tuple(port for port in router.ports if port.name != name)
    return router.model_copy(update={"ports": ports, "kernel_routes": kept})
