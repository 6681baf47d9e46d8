"""Configuration keys of route, in addition to the keys that all applications have.

``Route.check`` refuses configurations that a machine cannot run, for example if the kernel lacks
netem. The same configuration generates the same queries on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import StrictBool, StrictInt, ValidationInfo, field_validator, model_validator

from netarena.sdk import FaultConfig, JsonValue, shapes

#: Maximum number of hosts: up to this number, names fit into 15 characters, and a round of pings
#: fits into memory.
MAX_HOSTS = 1024
#: The address plan of the paper's networks has host addresses .100 to .254 in each subnet.
MAX_HOSTS_PER_SUBNET = 128
#: Minimum number of subnets in varied networks. With three subnets, two can be separated while
#: other traffic still crosses the router.
MIN_VARIED_SWITCHES = 3
#: Minimum and maximum numbers of subnets, and of hosts on each subnet, if sizes are drawn.
DRAWN_SWITCHES, DRAWN_HOSTS = (4, 6), (4, 8)

#: An integer, a range that includes both ends, or None for the default range.
Size: TypeAlias = StrictInt | tuple[StrictInt, StrictInt] | None
#: Key -> minimum and maximum size.
_LIMITS: dict[str, tuple[int, int]] = {
    "num_switches": (2, 64),
    "num_hosts_per_subnet": (1, MAX_HOSTS_PER_SUBNET),
}


class RouteConfig(FaultConfig):
    """Configuration keys of route."""

    IN_TICKETS: ClassVar = {
        **FaultConfig.IN_TICKETS,
        "world": "varied",
        "num_switches": None,
        "num_hosts_per_subnet": None,
    }

    #: The paper's network, or a network with a random intended state. Configurations with
    #: ``backbone`` are forwarded to the application of that name.
    world: Literal["standard", "varied"] = shapes(default="standard")
    #: Number of subnets, each with a switch (3 by default in ``varied``). If None, the number is
    #: drawn for each query. With ``[low, high]``, the number is drawn from this range, which
    #: includes both ends.
    num_switches: Size = shapes(default=2)
    num_hosts_per_subnet: Size = shapes(default=1)
    #: Mininet with LinuxBridge, or the same network built directly with netlink.
    emulator: Literal["mininet", "netns"] = "mininet"
    #: Whether faults may delay or drop packets with the netem queue discipline.
    netem: StrictBool = shapes(default=False)

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_varied(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("world") == "varied":
            return {"num_switches": MIN_VARIED_SWITCHES, "max_iterations": None, **values}
        return values

    def defaults(self) -> Mapping[str, JsonValue]:
        own: dict[str, JsonValue] = {"max_iterations": None} if self.world == "varied" else {}
        return {**super().defaults(), **own}

    @field_validator(*_LIMITS, mode="before")
    @classmethod
    def _sizes(cls, value: Any, info: ValidationInfo) -> Any:
        least, most = _LIMITS[str(info.field_name)]
        if value is None:
            return value
        ends = list(value) if isinstance(value, list | tuple) else [value, value]
        numbers = all(type(end) is int for end in ends)
        if not numbers or len(ends) != 2 or not least <= ends[0] <= ends[1] <= most:
            raise ValueError(
                f"must be null (random), a number from {least} to {most}, or a range such as "
                f"[{max(2, least)}, 4]"
            )
        # An integer draws the same queries as a range that contains only this number.
        return ends[0] if ends[0] == ends[1] else tuple(ends)

    @field_validator("num_switches")
    @classmethod
    def _apart(cls, value: Size, info: ValidationInfo) -> Size:
        few = value is not None and ends_of(value, DRAWN_SWITCHES)[0] < MIN_VARIED_SWITCHES
        if info.data.get("world") == "varied" and few:
            raise ValueError(f"must be at least {MIN_VARIED_SWITCHES} if world is 'varied'")
        return value

    @field_validator("num_hosts_per_subnet")
    @classmethod
    def _hosts(cls, value: Size, info: ValidationInfo) -> Size:
        _, switches = ends_of(info.data.get("num_switches", 1), DRAWN_SWITCHES)
        hosts = 1 if value is None else ends_of(value, DRAWN_HOSTS)[1]
        if switches * hosts > MAX_HOSTS:
            raise ValueError(
                f"must be at most {MAX_HOSTS // switches} with num_switches {switches} "
                f"({MAX_HOSTS} hosts in total)"
            )
        return value

    def size(self, rng: random.Random) -> tuple[int, int]:
        """Return the number of subnets and the number of hosts per subnet. If a size is a range,
        the number is drawn from it."""
        return (
            _draw(self.num_switches, DRAWN_SWITCHES, rng),
            _draw(self.num_hosts_per_subnet, DRAWN_HOSTS, rng),
        )


def ends_of(size: Size, drawn: tuple[int, int]) -> tuple[int, int]:
    """Return the smallest and largest number that a size allows. ``drawn`` is the range for
    None."""
    if size is None:
        return drawn
    return (size, size) if isinstance(size, int) else size


def _draw(size: Size, drawn: tuple[int, int], rng: random.Random) -> int:
    """Return a number that the size allows, drawn at random from a range. If the size is an
    integer, ``rng`` is not used."""
    return size if isinstance(size, int) else rng.randint(*ends_of(size, drawn))
