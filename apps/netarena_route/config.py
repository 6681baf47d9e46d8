"""The keys of route beside those that every application has.

What a machine cannot run (a kernel without netem, a neighbour table too small) is refused by
``Route.check``: the same config draws the same queries everywhere.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import StrictBool, StrictInt, ValidationInfo, field_validator, model_validator

from netarena.config import Config, shapes
from netarena.label import read_labels

#: hosts of a network at most: names fit 15 characters, a round of pings fits its memory
MAX_HOSTS = 1024
#: a subnet's host addresses .100 to .254 of the paper's plan
MAX_HOSTS_PER_SUBNET = 128
#: the fewest subnets of which one pair can stay apart while traffic still crosses
MIN_VARIED_SWITCHES = 3


class RouteConfig(Config):
    """Keys of route; see the outside contract's table."""

    #: kinds of fault, ``+`` joins a combination; none: the paper's kinds and their pairs
    error_types: tuple[str, ...] | None = shapes(default=None)
    #: the paper's network, or one whose healthy state is drawn from the seed
    world: Literal["standard", "varied"] = shapes(default="standard")
    #: subnets; a switch each (the default is 3 in ``varied``)
    num_switches: StrictInt = shapes(default=2, ge=2, le=64)
    num_hosts_per_subnet: StrictInt = shapes(default=1, ge=1, le=MAX_HOSTS_PER_SUBNET)
    #: Mininet with LinuxBridge, or the same network made directly by netlink
    emulator: Literal["mininet", "netns"] = "mininet"
    #: whether faults of delay and loss by the netem queue discipline are drawn
    netem: StrictBool = shapes(default=False)

    @model_validator(mode="before")
    @classmethod
    def _default_size(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("world") == "varied":
            return {"num_switches": MIN_VARIED_SWITCHES, **values}
        return values

    @field_validator("error_types", mode="before")
    @classmethod
    def _error_types(cls, value: Any) -> Any:
        return read_labels(value)

    @field_validator("num_switches")
    @classmethod
    def _apart(cls, value: int, info: ValidationInfo) -> int:
        if info.data.get("world") == "varied" and value < MIN_VARIED_SWITCHES:
            raise ValueError(f"world varied needs at least {MIN_VARIED_SWITCHES} subnets")
        return value

    @field_validator("num_hosts_per_subnet")
    @classmethod
    def _hosts(cls, value: int, info: ValidationInfo) -> int:
        switches = info.data.get("num_switches", 1)
        if switches * value > MAX_HOSTS:
            raise ValueError(f"at most {MAX_HOSTS} hosts in all, with num_switches {switches}")
        return value

    @property
    def num_endpoints(self) -> int:
        """Of the matrix: all hosts and the router."""
        return self.num_switches * self.num_hosts_per_subnet + 1
