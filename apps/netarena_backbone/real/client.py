"""Client of the warm process from which backbones' processes are forked."""

from __future__ import annotations

from netarena_backbone.world.lab_spec import Setup
from netarena_network.real import client
from netarena_network.real.client import Net

WORKER = "netarena_backbone.real.lab:Lab"


class Warm(client.Warm):
    """Warm process from which processes of backbones are forked."""

    def __init__(self) -> None:
        super().__init__(WORKER)

    async def begin_backbone(self, setup: Setup, emulator: str) -> Net:
        """Return a process for one backbone, whose ``observe`` returns an ``Observation``."""
        made_of = {"setup": setup.model_dump(mode="json"), "emulator": emulator}
        return await self.begin(made_of, len(setup.endpoints))
