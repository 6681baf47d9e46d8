"""Configuration keys of backbone, in addition to those of every application."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from pydantic import StrictInt

from netarena.sdk import Briefing, ConfigError, FaultConfig, JsonValue, shapes

#: Range of the number of our own routers.
MIN_ROUTERS, MAX_ROUTERS = 4, 10
#: Keys of route that shaped backbones while they were a world of route, with their values there in
#: each briefing. They stay in the hash of ids, so that ids and queries stay as they are. Stored
#: configurations also have them.
_INHERITED: Mapping[Briefing, Mapping[str, JsonValue]] = MappingProxyType(
    {
        Briefing.FULL: {"num_switches": 2, "num_hosts_per_subnet": 1, "netem": False},
        Briefing.TICKET: {"num_switches": None, "num_hosts_per_subnet": None, "netem": False},
    }
)


class BackboneConfig(FaultConfig):
    """Configuration keys of backbone."""

    IN_TICKETS: ClassVar = FaultConfig.IN_TICKETS

    #: Always the same: the key with which a configuration of route asks for a backbone.
    world: Literal["backbone"] = shapes(default="backbone")
    #: Number of our routers; if None, it is drawn for each query.
    routers: StrictInt | None = shapes(added=True, default=None, ge=MIN_ROUTERS, le=MAX_ROUTERS)
    #: Mininet, or the same network built directly with netlink.
    emulator: Literal["mininet", "netns"] = "mininet"

    @classmethod
    def parse(cls, values: Any) -> Self:
        """Validate a request's or a command line's values; raises ConfigError.

        Inherited keys are accepted with the values that stored configurations have.
        """
        if isinstance(values, dict):
            ticket = values.get("briefing") == Briefing.TICKET
            inherited = _INHERITED[Briefing.TICKET if ticket else Briefing.FULL]
            for key, value in inherited.items():
                if values.get(key, value) != value:
                    raise ConfigError(
                        f"config.{key}", "world 'backbone' has no such key, but routers"
                    )
            values = {key: value for key, value in values.items() if key not in inherited}
        return super().parse(values)

    def shape(self) -> dict[str, JsonValue]:
        return dict(sorted({**_INHERITED[self.briefing], **super().shape()}.items()))
