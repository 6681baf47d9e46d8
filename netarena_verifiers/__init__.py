"""What verifiers finds by the id ``netarena-verifiers``: ids of its plugins are top-level names."""

from netarena.training.verifiers import NetArenaEnv, NetArenaTaskset

__all__ = ["NetArenaEnv", "NetArenaTaskset"]
