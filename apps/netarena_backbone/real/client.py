"""Client of the warm process, which forks one process per backbone."""

from __future__ import annotations

from collections.abc import Iterable

from netarena_backbone.world.lab_spec import Neighbour, Setup
from netarena_network.real import client

WORKER = "netarena_backbone.real.lab:Lab"


class Net(client.Net):
    """One backbone network; ``observe`` returns an ``Observation``.

    ``cut``, ``restore`` and ``restart`` return when the change is done. The next observation waits
    until the network has converged.
    """

    async def connect(self, neighbours: Iterable[Neighbour]) -> None:
        """Let the routers exchange packets, and start BGP when OSPF has converged.

        ``neighbours`` are the expected neighbours of the converged network. Without this call, the
        first other request connects the network, and waits longer for OSPF.
        """
        await self.ask("connect", neighbours=sorted(neighbours))

    async def cut(self, cable: tuple[str, str]) -> None:
        """Cut the link between two machines; both ends lose their carrier.

        The link must be one of ``Setup.cuttable``.
        """
        await self.ask("cut", cable=cable)

    async def restore(self, cable: tuple[str, str]) -> None:
        """Restore the link between two machines."""
        await self.ask("restore", cable=cable)

    async def restart(self, *, from_saved: bool = False) -> None:
        """Restart the daemons of all routers with a login at the same time.

        The daemons load the saved configurations if ``from_saved``, and otherwise the running
        configurations.
        """
        await self.ask("restart", from_saved=from_saved)


class Warm(client.Warm):
    """A warm process that forks the processes of backbones."""

    def __init__(self) -> None:
        super().__init__(WORKER)

    async def begin_backbone(self, setup: Setup, emulator: str) -> Net:
        """Return a process for one backbone."""
        made_of = {"setup": setup.model_dump(mode="json"), "emulator": emulator}
        return await self._begin(Net, made_of, len(setup.endpoints))
