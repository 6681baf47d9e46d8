"""Network under construction: the initial network of a query, before any graph is built.

The generator looks up contents and capacities of nodes very often. Building a graph for each
attempt would be thousands of times slower. A ``Draft`` uses the index of its base, and records its
few differences from the base as edits.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from typing import Any

from netarena_malt.base_network import TOPOLOGY, Base, released_base
from netarena_malt.topology import CAPACITY, EK_PACKET_SWITCH, EK_PORT, NODE_KINDS, SWITCH_LOC

#: Maximum difference between the number in a new name and the highest existing number.
_SPREAD = 48


class Draft:
    """A base network with changes. Each change preserves the structural rules of the model.

    ``edits`` returns the changes in the form of ``netarena_malt.edit``.
    """

    def __init__(self, base: Base | None = None) -> None:
        self.base = released_base() if base is None else base
        self._index = self.base.index
        self._contents: dict[str, list[str]] = {}
        self._parents: dict[str, tuple[str, ...]] = {}
        self._capacities: dict[str, float] = {}
        self._removed_switches: set[str] = set()
        self._added_switches: dict[str, list[str]] = {}
        self._attributes: dict[str, dict[str, Any]] = {}
        #: Container -> its number of ports, minus the number in the base.
        self._more_ports: dict[str, int] = {}
        #: Nodes that were first added and then removed.
        self._dropped: set[str] = set()
        self._removed: list[str] = []
        #: Switches whose ports differ from the base, and the cached total port capacity of such
        #: switches in bps.
        self._touched: set[str] = set()
        self._totals: dict[str, float] = {}

    def copy(self) -> Draft:
        """Return an independent copy."""
        other = copy.copy(self)
        for key, value in vars(self).items():
            if isinstance(value, dict | set | list):
                setattr(other, key, value.copy())
        for name, names in other._added_switches.items():  # noqa: SLF001 -- the same class
            other._added_switches[name] = names.copy()  # noqa: SLF001 -- these lists are changed in place
        return other

    # Look-ups in the draft.

    def names(self, kind: str) -> Sequence[str]:
        """Return the names of the base's nodes of ``kind``."""
        return self._index.names[kind]

    def present_switches(self) -> list[str]:
        """Return the names of all packet switches that exist, including added switches."""
        gone = self._removed_switches
        names = [name for name in self._index.names[EK_PACKET_SWITCH] if name not in gone]
        return names + [name for name in self._attributes if not self._is_port(name)]

    def kind(self, name: str) -> str:
        """Return the kind of a node: the first entry of its ``type`` list."""
        if name in self._attributes:
            return str(self._attributes[name]["type"][0])
        return self._index.kind(name)

    def stage(self, switch: str) -> float:
        """Return the stage of a packet switch."""
        if switch in self._attributes:
            return float(self._attributes[switch][SWITCH_LOC]["stage"])
        return self._index.stage(switch)

    def __contains__(self, name: str) -> bool:
        """Return whether a node of this name exists."""
        if name in self._dropped or name in self._removed or not self.exists(name):
            return False
        # ``_removed`` omits nodes that were removed as contents of a switch.
        return self._is_new(name) or self._removed_switches.isdisjoint(self._index.parents(name))

    def exists(self, name: str) -> bool:
        """Return whether a node of this name exists or existed. These names are not used for new
        nodes."""
        return name in self._index or name in self._attributes or name in self._dropped

    def original(self, name: str) -> bool:
        """Return whether the base has a node of this name."""
        return name in self._index

    def stem(self, parent: str, like: str) -> str:
        """Return the start (before the number) of names for new contents of ``parent``.

        The names follow the pattern of the existing name ``like``.
        """
        home = self.parents(like)[0]
        stem = like.rstrip("0123456789")
        if stem == like:
            stem = f"{like}-"
        if parent == home:
            return stem
        # If "a.b.c1" in "a.b" is the pattern, new names in "x" are like "x.c9". Otherwise a new
        # name starts with the parent's name.
        return f"{parent}{stem[len(home) :] if stem.startswith(f'{home}.') else '.n'}"

    def fresh(self, parent: str, like: str, rng: random.Random, number: int = 1) -> list[str]:
        """Return ``number`` unused names for new contents of ``parent``, in the pattern of the name
        ``like``.

        Their numbers are above all existing numbers, and the names were never used before.
        """
        stem = self.stem(parent, like)
        used = 0
        for name in self.contents(parent) if self.exists(parent) else ():
            digits = name[len(stem) :] if name.startswith(stem) else ""
            if digits.isdecimal() and len(digits) < 9:
                used = max(used, int(digits))
        names: dict[str, None] = {}
        spread = _SPREAD
        while len(names) < number:
            name = f"{stem}{used + rng.randrange(1, spread + 1)}"
            if self.exists(name):
                spread += 1  # another container may have nodes with such names
            else:
                names[name] = None
        return list(names)

    def changed_ports(self, name: str) -> list[str]:
        """Return the names of the ports in ``name`` that were added or got a new capacity."""
        inside, gone = set(self.switches(name)), self._removed_switches
        homes = ((port, self.parents(port)[0]) for port in self._capacities)
        return [
            port
            for port, switch in homes
            if switch in inside or (switch in gone and name in (switch, *self.ancestors(switch)))
        ]

    def contents(self, name: str) -> Sequence[str]:
        """Return the names of the direct contents of ``name``."""
        found = self._contents.get(name)
        return self._index.contents(name) if found is None else found

    def parents(self, name: str) -> Sequence[str]:
        """Return the names of the parents of ``name``. For a switch these are block, rack and
        domain, in this order."""
        found = self._parents.get(name)
        return self._index.parents(name) if found is None else found

    def ancestors(self, name: str) -> Sequence[str]:
        """Return the names of all nodes that contain ``name``, at any depth, nearest first."""
        if not self._is_new(name):
            return self._index.ancestors(name)  # the ancestors of a base node never change
        found: list[str] = []
        level = list(self.parents(name))
        while level:
            found += level
            level = [parent for name in level for parent in self.parents(name)]
        return found

    def switches(self, name: str) -> list[str]:
        """Return the names of the packet switches in ``name``, or ``name`` itself for a switch."""
        if self.kind(name) == EK_PACKET_SWITCH:
            return [name]
        there = [] if self._is_new(name) else self._index.switches(name)
        if self._removed_switches:
            there = [switch for switch in there if switch not in self._removed_switches]
        return [*there, *self._added_switches.get(name, ())]

    @property
    def usual_bps(self) -> float:
        """Return the capacity in bps that most ports of the base have."""
        return self.base.index.usual_bps

    def speeds(self) -> list[float]:
        """Return capacities in bps for changed and added ports.

        The sums and multiples of these capacities are exact as floats.
        """
        return self.base.index.speeds

    def capacity(self, port: str) -> float:
        """Return the capacity of a port in bps."""
        found = self._capacities.get(port)
        return self._index.capacity(port) if found is None else found

    def number_of_ports(self, name: str) -> int:
        """Return the number of ports that ``name`` contains, at any depth."""
        known = 0 if self._is_new(name) else self._index.number_of_ports(name)
        return known + self._more_ports.get(name, 0)

    def number_at_least(self, name: str, bps: float) -> int:
        """Return an upper bound on the number of ports in ``name`` with at least this capacity."""
        known = self._index.capacities(name) if self.original(name) else {}
        there = sum(number for capacity, number in known.items() if capacity >= bps)
        return there + sum(self._capacities[port] >= bps for port in self.changed_ports(name))

    def total(self, name: str) -> float:
        """Return the total capacity in bps of all ports in a node, or the capacity of a port."""
        if self.kind(name) == EK_PORT:
            return self.capacity(name)
        return sum(map(self._total_of_switch, self.switches(name)))

    def _total_of_switch(self, switch: str) -> float:
        if switch not in self._touched:
            return self._index.total_of_switch(switch)
        found = self._totals.get(switch)
        if found is None:
            found = self._totals[switch] = sum(map(self.capacity, self.contents(switch)))
        return found

    # Changes of the draft.

    def set_capacity(self, port: str, bps: float) -> None:
        self._capacities[port] = bps
        self._touch(self.parents(port)[0])

    def add_port(self, switch: str, name: str, bps: float) -> None:
        self._put(name, {"type": list(NODE_KINDS[EK_PORT].types)}, (switch,))
        self._capacities[name] = bps
        self._count(switch, 1)
        self._touch(switch)

    def add_switch(
        self, name: str, stage: float, parents: Sequence[str], ports: Mapping[str, float]
    ) -> None:
        """Add a switch with ports (name -> capacity in bps) to its parents (block, rack,
        domain)."""
        attributes = {
            "type": list(NODE_KINDS[EK_PACKET_SWITCH].types),
            SWITCH_LOC: {"stage": stage},
        }
        self._put(name, attributes, tuple(parents))
        self._contents[name] = []
        self._touch(name)
        for ancestor in self.ancestors(name):
            self._added_switches.setdefault(ancestor, []).append(name)
        for port, bps in ports.items():
            self.add_port(name, port, bps)

    def remove_port(self, port: str) -> None:
        """Remove a port from its switch."""
        (switch,) = self.parents(port)
        self._count(switch, -1)
        self._touch(switch)
        self._take_out(port)
        self._capacities.pop(port, None)

    def remove_switch(self, switch: str) -> None:
        """Remove a switch with its ports."""
        for port in list(self.contents(switch)) if self._is_new(switch) else ():
            self.remove_port(port)
        for ancestor in self.ancestors(switch) if self._is_new(switch) else ():
            self._added_switches[ancestor].remove(switch)
        self._count(switch, -len(self.contents(switch)))
        self._take_out(switch)
        self._removed_switches.add(switch)

    def _touch(self, switch: str) -> None:
        """Discard the cached total capacity of a switch, which has become outdated."""
        self._touched.add(switch)
        self._totals.pop(switch, None)

    def _count(self, switch: str, more: int) -> None:
        for name in (switch, *self.ancestors(switch)):
            self._more_ports[name] = self._more_ports.get(name, 0) + more

    def _take_out(self, name: str) -> None:
        for parent in self.parents(name):
            self._contents[parent] = [other for other in self.contents(parent) if other != name]
        if self._is_new(name):
            del self._attributes[name]
            self._dropped.add(name)
        else:
            self._removed.append(name)

    def edits(self) -> dict[str, Any]:
        """Return the changes as edits in plain JSON that shares no objects with this draft."""
        # A node that is removed as a part of a switch needs no separate entry.
        removed = [
            name
            for name in self._removed
            if self._removed_switches.isdisjoint(self._index.parents(name))
        ]
        gone = self._removed_switches
        removed_names = set(self._removed)
        edits = {
            "remove": removed,
            "add": [
                [
                    name,
                    attributes
                    | ({CAPACITY: self._capacities[name]} if self._is_port(name) else {}),
                    list(self._parents[name]),
                ]
                for name, attributes in self._attributes.items()
                if gone.isdisjoint(self._parents[name])
            ],
            "set": [
                [port, CAPACITY, bps]
                for port, bps in self._capacities.items()
                if port not in self._attributes
                and port not in removed_names
                and gone.isdisjoint(self._index.parents(port))
            ],
        }
        return edits if self.base.key is None else edits | {TOPOLOGY: self.base.key}

    def _is_new(self, name: str) -> bool:
        return name in self._attributes

    def _is_port(self, name: str) -> bool:
        return self.kind(name) == EK_PORT

    def _put(self, name: str, attributes: dict[str, Any], parents: tuple[str, ...]) -> None:
        self._attributes[name] = attributes
        self._parents[name] = parents
        for parent in parents:
            self._contents[parent] = [*self.contents(parent), name]
