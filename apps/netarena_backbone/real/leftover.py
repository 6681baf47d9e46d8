"""Finds the remains of faults with which a network was built, and requested changes not yet made.

Each part of a fault is given as a machine's recipes without and with that part (``lab_spec.Edit``).
A part of a requested change is given as the recipes with and without the change.
Texts of FRR and of services are compared directly. Kernel settings are applied in scratch
namespaces by the code that builds networks, and read back, because only the kernel determines how
settings are listed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from netarena.sdk import entered
from netarena_backbone.real.build import build_netns, configure
from netarena_backbone.real.frr import Terminals
from netarena_backbone.real.setting import FRR, Setting, Settings
from netarena_backbone.world.lab_spec import Cable, Edit, End, Recipe, Setup
from netarena_network.real.netlink import GETROUTE, Netlink
from netarena_network.real.reading import unfold

#: Name of the scratch machine that has the far ends of all links.
_FAR = "far"
_NO_FILES = Path("/nonexistent")
#: Lines of FRR that a requested change need not set: they have no effect on what is requested, or
#: FRR never lists them because they are the default values.
_FREE = re.compile(
    r" / neighbor \S+ (?:description .*|timers connect \d+)$"
    r"| / ip ospf (?:hello-interval 10|dead-interval 40|retransmit-interval 5|network broadcast)$"
)
#: Lines of the kernel's routes, which follow from addresses in requested changes.
_ROUTES = f"{GETROUTE} "
#: An OSPF area in the form of an address. FRR lists the form that was entered.
_AREA = re.compile(r"\barea (\d+)\.(\d+)\.(\d+)\.(\d+)\b")
#: An interface's address: its name, its prefix length and the address itself (IFA_LOCAL). The other
#: attributes depend on the program that sets the address.
_ADDRESS = re.compile(r"^(address \S+ \d+) .*(\(2, b(['\"]).*?\3\)).*$")


class Trace(NamedTuple):
    """Settings that one part of a fault adds to a machine, and settings that it removes."""

    machine: str
    new: frozenset[str]
    gone: frozenset[str]
    strict: bool = False

    def is_left(self, now: Setting) -> bool:
        """Return whether some part still exists in ``now``.

        A part that replaces a setting exists as long as the new setting exists. A part that only
        removes settings exists as long as any of them is missing. A ``strict`` part exists as long
        as any of its new settings exists, or any of the removed settings is missing.
        """
        if self.strict:
            lines = {*map(_plain, now.lines)}
            return not (self.new.isdisjoint(lines) and self.gone <= lines)
        return not self.new.isdisjoint(now.lines) if self.new else not self.gone <= now.lines

    def shown_in(self, now: Setting) -> Trace:
        """Return the part of this trace that ``now`` shows; FRR does not list default values."""
        if self.strict:  # ``_FREE`` has the default values
            return self
        return self._replace(new=self.new & now.lines, gone=self.gone - now.lines)


def traces(edits: Sequence[Edit], cables: Sequence[Cable]) -> list[Trace]:
    """Return the trace of each edit, in order.

    Raises OSError, pyroute2's NetlinkError or subprocess.CalledProcessError if the scratch machines
    cannot be created.
    """
    changed = [edit for edit in edits if edit.before.commands != edit.after.commands]
    made = dict(zip(map(id, changed), _make(changed, cables), strict=True))
    found = []
    for edit in edits:
        before, after = {*_texts(edit.before)}, {*_texts(edit.after)}
        if pair := made.get(id(edit)):
            before |= pair[0]
            after |= pair[1]
        new, gone = frozenset(after - before), frozenset(before - after)
        if edit.strict:
            new, gone = _required(new), _required(gone)
        found.append(Trace(edit.after.machine, new, gone, edit.strict))
    return found


def _required(lines: frozenset[str]) -> frozenset[str]:
    return frozenset(
        _plain(line) for line in lines if not _FREE.search(line) and not line.startswith(_ROUTES)
    )


def _plain(line: str) -> str:
    """Return a line in the form that all ways to enter its setting have in common."""
    same = line.replace(" Null0", " blackhole")
    return _ADDRESS.sub(r"\1 \2", _AREA.sub(_with_number, same))


def _with_number(area: re.Match[str]) -> str:
    number = 0
    for part in area.groups():
        number = number * 256 + int(part)
    return f"area {number}"


def _texts(recipe: Recipe) -> Iterator[str]:
    yield from unfold(FRR, recipe.frr or "")
    yield from unfold("services", "\n".join(recipe.services))
    yield from unfold("zone", "\n".join(recipe.zone))
    yield from unfold("resolver", recipe.resolver or "")


def _make(
    edits: Sequence[Edit], cables: Sequence[Cable]
) -> list[tuple[frozenset[str], frozenset[str]]]:
    """Return the kernel settings without and with each edit."""
    if not edits:
        return []
    recipes = [recipe for edit in edits for recipe in (edit.before, edit.after)]
    names = [f"m{number}" for number in range(len(recipes))]
    wires: list[Cable] = []
    for name, recipe in zip(names, recipes, strict=True):
        for end in (end for cable in cables for end in cable.ends if end.machine == recipe.machine):
            far = End(machine=_FAR, interface=f"x{len(wires)}", mac=_mac(len(wires)))
            near = End(machine=name, interface=end.interface, mac=end.mac)
            wires.append(Cable(ends=(near, far)))
    machines = [
        Recipe(machine=name, commands=recipe.commands)
        for name, recipe in zip(names, recipes, strict=True)
    ]
    setup = Setup(cables=tuple(wires), recipes=(*machines, Recipe(machine=_FAR)), endpoints=())
    with contextlib.ExitStack() as stack:
        spaces = build_netns(setup)
        for space in spaces.values():
            stack.callback(os.close, space)
        configure(setup, spaces)
        netlinks = {}
        for name in names:
            with entered(spaces[name]):
                netlinks[name] = stack.enter_context(Netlink())
        files = dict.fromkeys(names, _NO_FILES)
        settings = Settings(Terminals(), {}, spaces, netlinks, files)
        lines = [settings.of(name).lines for name in names]
    return list(zip(lines[::2], lines[1::2], strict=True))


def _mac(number: int) -> str:
    return f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}"
