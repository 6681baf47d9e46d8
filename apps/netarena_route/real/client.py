"""Client of the warm process from which route's network processes are forked."""

from __future__ import annotations

from netarena_network.real import client
from netarena_network.real.client import Net
from netarena_route.world.model import World

WORKER = "netarena_route.real.worker:RouteWorker"


class Warm(client.Warm):
    """Warm process from which the processes of route's networks are forked."""

    def __init__(self) -> None:
        super().__init__(WORKER)

    async def begin_world(self, world: World, emulator: str) -> Net:
        """Return a process for a network of ``world``, whose ``build`` creates the network."""
        made_of = {"world": world.model_dump(mode="json"), "emulator": emulator}
        return await self.begin(made_of, len(world.endpoints))
