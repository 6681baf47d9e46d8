"""Configuration keys of the backbone application, in addition to the keys of all applications."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from pydantic import StrictInt

from netarena.sdk import Briefing, ConfigError, FaultConfig, JsonValue, limits, shapes

#: Minimum and maximum number of our own routers.
MIN_ROUTERS, MAX_ROUTERS = 4, 10
#: Keys that backbone queries had when backbones were a world of the route application, with their
#: values for each briefing. Query ids are hashes over these keys. The keys are kept so that old
#: ids, queries and stored configurations remain valid.
_INHERITED: Mapping[Briefing, Mapping[str, JsonValue]] = MappingProxyType(
    {
        Briefing.FULL: {"num_switches": 2, "num_hosts_per_subnet": 1, "netem": False},
        Briefing.TICKET: {"num_switches": None, "num_hosts_per_subnet": None, "netem": False},
    }
)


class BackboneConfig(FaultConfig):
    """Configuration keys of the backbone application."""

    IN_TICKETS: ClassVar = FaultConfig.IN_TICKETS

    #: Always "backbone". Configurations of route once selected backbones with this key.
    world: Literal["backbone"] = shapes(default="backbone")
    max_iterations: StrictInt | None = limits(default=None, ge=1, le=1000)
    #: Number of our own routers; if None, it is drawn for each query.
    routers: StrictInt | None = shapes(added=True, default=None, ge=MIN_ROUTERS, le=MAX_ROUTERS)
    #: Mininet, or the same network built directly with netlink.
    emulator: Literal["mininet", "netns"] = "mininet"

    @classmethod
    def parse(cls, values: Any) -> Self:
        """Validate the values of a request or a command line; raise ConfigError if a value is
        invalid.

        Inherited keys are accepted only with the values that stored configurations have.
        """
        if isinstance(values, dict):
            ticket = values.get("briefing") == Briefing.TICKET
            inherited = _INHERITED[Briefing.TICKET if ticket else Briefing.FULL]
            for key, value in inherited.items():
                if values.get(key, value) != value:
                    raise ConfigError(
                        f"config.{key}", "is not a key of world 'backbone': set routers instead"
                    )
            values = {key: value for key, value in values.items() if key not in inherited}
        return super().parse(values)

    def shape(self) -> dict[str, JsonValue]:
        return dict(sorted({**_INHERITED[self.briefing], **super().shape()}.items()))
