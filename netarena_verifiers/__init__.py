"""Plugin of verifiers with the id ``netarena-verifiers``; plugin ids are top-level packages."""

from netarena.training.verifiers import NetArenaEnv, NetArenaTaskset

__all__ = ["NetArenaEnv", "NetArenaTaskset"]
