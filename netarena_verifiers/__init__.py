"""Plugin for verifiers with the id ``netarena-verifiers``. Verifiers requires a top-level package
for each plugin id."""

from netarena.training.verifiers import NetArenaEnv, NetArenaTaskset

__all__ = ["NetArenaEnv", "NetArenaTaskset"]
