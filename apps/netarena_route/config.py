"""Config keys of route, in addition to those of every application.

``Route.check`` refuses what a machine cannot run (a kernel without netem): the same config draws
the same queries everywhere.
"""

from __future__ import annotations

import random
from typing import Any, ClassVar, Literal

from pydantic import StrictBool, StrictInt, ValidationInfo, field_validator, model_validator

from netarena.config import shapes
from netarena.errors import ConfigError
from netarena.task.label import FaultConfig

#: hosts of a network at most: names fit 15 characters, a round of pings fits its memory
MAX_HOSTS = 1024
#: a subnet's host addresses .100 to .254 of the paper's plan
MAX_HOSTS_PER_SUBNET = 128
#: the fewest subnets of which one pair can stay apart while traffic still crosses
MIN_VARIED_SWITCHES = 3
#: subnets, and hosts on each, where sizes are drawn: at least and at most
DRAWN_SWITCHES, DRAWN_HOSTS = (4, 6), (4, 8)

#: the world of several routers, and how many are of its own autonomous system
BACKBONE = "backbone"
MIN_ROUTERS, MAX_ROUTERS = 4, 10
#: keys that some worlds have alone
_OF_SUBNETS, _OF_BACKBONES = ("num_switches", "num_hosts_per_subnet", "netem"), ("routers",)


class RouteConfig(FaultConfig):
    """Keys of route; see the outside contract's table."""

    IN_TICKETS: ClassVar = {
        **FaultConfig.IN_TICKETS,
        "world": "varied",
        "num_switches": None,
        "num_hosts_per_subnet": None,
    }

    #: the paper's network, one whose healthy state is drawn from the seed, or several routers that
    #: speak OSPF and BGP
    world: Literal["standard", "varied", "backbone"] = shapes(default="standard")
    #: of our own, in a backbone; none: drawn for each query
    routers: StrictInt | None = shapes(added=True, default=None, ge=MIN_ROUTERS, le=MAX_ROUTERS)
    #: subnets; a switch each (the default is 3 in ``varied``); null: drawn for each query
    num_switches: StrictInt | None = shapes(default=2, ge=2, le=64)
    num_hosts_per_subnet: StrictInt | None = shapes(default=1, ge=1, le=MAX_HOSTS_PER_SUBNET)
    #: Mininet with LinuxBridge, or the same network made directly by netlink
    emulator: Literal["mininet", "netns"] = "mininet"
    #: whether faults of delay and loss by the netem queue discipline are drawn
    netem: StrictBool = shapes(default=False)

    @model_validator(mode="before")
    @classmethod
    def _default_size(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        backbone = values.get("world") == "backbone"
        defaults = cls.IN_TICKETS if values.get("briefing") == "ticket" else {}
        for key in _OF_SUBNETS if backbone else _OF_BACKBONES:
            # at its default it is as if it were not given: whole configs are read again
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
        """Subnets, and hosts on each; what is null is drawn by ``rng``."""
        return (
            rng.randint(*DRAWN_SWITCHES) if self.num_switches is None else self.num_switches,
            rng.randint(*DRAWN_HOSTS)
            if self.num_hosts_per_subnet is None
            else self.num_hosts_per_subnet,
        )
