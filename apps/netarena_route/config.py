"""Configuration keys of route, in addition to those of every application.

``Route.check`` refuses configurations that a machine cannot run, for example without netem in the
kernel. The same configuration generates the same queries on every machine.
"""

from __future__ import annotations

import random
from typing import Any, ClassVar, Literal

from pydantic import StrictBool, StrictInt, ValidationInfo, field_validator, model_validator

from netarena.sdk import ConfigError, FaultConfig, shapes

#: Maximum number of hosts: names fit 15 characters, and a round of pings fits the memory.
MAX_HOSTS = 1024
#: The paper's plan has host addresses .100 to .254 in each subnet.
MAX_HOSTS_PER_SUBNET = 128
#: The fewest subnets of which one pair can be separated while other traffic still crosses.
MIN_VARIED_SWITCHES = 3
#: Minimum and maximum numbers of subnets, and of hosts on each, if sizes are drawn.
DRAWN_SWITCHES, DRAWN_HOSTS = (4, 6), (4, 8)

#: The world with several routers, and the range of the number of our own routers.
BACKBONE = "backbone"
MIN_ROUTERS, MAX_ROUTERS = 4, 10
#: Keys that only some worlds have.
_OF_SUBNETS, _OF_BACKBONES = ("num_switches", "num_hosts_per_subnet", "netem"), ("routers",)


class RouteConfig(FaultConfig):
    """Configuration keys of route."""

    IN_TICKETS: ClassVar = {
        **FaultConfig.IN_TICKETS,
        "world": "varied",
        "num_switches": None,
        "num_hosts_per_subnet": None,
    }

    #: The paper's network, a network with a random intended state, or several routers with OSPF and
    #: BGP.
    world: Literal["standard", "varied", "backbone"] = shapes(default="standard")
    #: Number of our routers in a backbone; if None, it is drawn for each query.
    routers: StrictInt | None = shapes(added=True, default=None, ge=MIN_ROUTERS, le=MAX_ROUTERS)
    #: Number of subnets, each with a switch (3 by default in ``varied``); if None, drawn for each
    #: query.
    num_switches: StrictInt | None = shapes(default=2, ge=2, le=64)
    num_hosts_per_subnet: StrictInt | None = shapes(default=1, ge=1, le=MAX_HOSTS_PER_SUBNET)
    #: Mininet with LinuxBridge, or the same network built directly with netlink.
    emulator: Literal["mininet", "netns"] = "mininet"
    #: Whether faults may delay or lose packets with the netem queue discipline.
    netem: StrictBool = shapes(default=False)

    @model_validator(mode="before")
    @classmethod
    def _default_size(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        backbone = values.get("world") == "backbone"
        defaults = cls.IN_TICKETS if values.get("briefing") == "ticket" else {}
        for key in _OF_SUBNETS if backbone else _OF_BACKBONES:
            # A key with its default value counts as not given, since whole configurations are read
            # again.
            own = defaults.get(key, cls.model_fields[key].default)
            if values.get(key, own) != own:
                known = _OF_BACKBONES if backbone else _OF_SUBNETS
                raise ConfigError(
                    f"config.{key}",
                    f"world {values.get('world', 'standard')!a} has no such key, but "
                    f"{', '.join(known)}",
                )
        if values.get("world") == "varied":
            return {"num_switches": MIN_VARIED_SWITCHES, **values}
        return values

    @field_validator("num_switches")
    @classmethod
    def _apart(cls, value: int | None, info: ValidationInfo) -> int | None:
        few = value is not None and value < MIN_VARIED_SWITCHES
        if info.data.get("world") == "varied" and few:
            raise ValueError(f"world varied needs at least {MIN_VARIED_SWITCHES} subnets")
        return value

    @field_validator("num_hosts_per_subnet")
    @classmethod
    def _hosts(cls, value: int | None, info: ValidationInfo) -> int | None:
        switches = info.data.get("num_switches", 1) or DRAWN_SWITCHES[1]
        if switches * (value or 1) > MAX_HOSTS:
            raise ValueError(f"at most {MAX_HOSTS} hosts in all, with num_switches {switches}")
        return value

    def size(self, rng: random.Random) -> tuple[int, int]:
        """Return the number of subnets and of hosts on each; None is replaced by a random value."""
        return (
            rng.randint(*DRAWN_SWITCHES) if self.num_switches is None else self.num_switches,
            rng.randint(*DRAWN_HOSTS)
            if self.num_hosts_per_subnet is None
            else self.num_hosts_per_subnet,
        )
