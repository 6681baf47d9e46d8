"""Detects faults of a network that are not repaired, and requested changes that are not made.

Each part of a fault is given as a machine's recipes without and with that part (``lab_spec.Edit``).
A part of a requested change is given as the recipes with and without the change. Configurations of
FRR and of services are compared as text. Kernel settings are applied in scratch namespaces by the
code that builds networks, and then read back, because only the kernel determines how settings are
listed.
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
#: FRR lines that a requested change need not set, because they do not affect the request, or
#: because they are default values, which FRR never lists.
_FREE = re.compile(
    r" / neighbor \S+ (?:description .*|timers connect \d+)$"
    r"| / ip ospf (?:hello-interval 10|dead-interval 40|retransmit-interval 5|network broadcast)$"
)
#: Start of lines about kernel routes. Requested changes ignore these lines, because kernel routes
#: follow from addresses.
_ROUTES = f"{GETROUTE} "
#: An OSPF area in dotted form. FRR lists an area in the form in which it was entered.
_AREA = re.compile(r"\barea (\d+)\.(\d+)\.(\d+)\.(\d+)\b")
#: An interface's address: its name, its prefix length and the address itself (IFA_LOCAL). The other
#: attributes depend on the program that sets the address.
_ADDRESS = re.compile(r"^(address \S+ \d+) .*(\(2, b(['\"]).*?\3\)).*$")


class Trace(NamedTuple):
    """Settings of a machine that exist only after an edit (``new``) or only before
    it (``gone``)."""

    machine: str
    new: frozenset[str]
    gone: frozenset[str]
    strict: bool = False

    def is_left(self, now: Setting) -> bool:
        """Return whether the edit is left in the settings ``now``.

        An edit that adds or replaces a setting is left as long as a new setting exists. An edit
        that only removes settings is left as long as any of them is missing. A ``strict`` edit is
        left as long as any new setting exists or any removed setting is missing.
        """
        if self.strict:
            lines = {*map(_plain, now.lines)}
            return not (self.new.isdisjoint(lines) and self.gone <= lines)
        return not self.new.isdisjoint(now.lines) if self.new else not self.gone <= now.lines

    def shown_in(self, now: Setting) -> Trace:
        """Return this trace without the differences that are missing in ``now``, the settings at
        the start.

        For example, FRR does not list default values. A ``strict`` trace is returned unchanged.
        """
        if self.strict:  # ``_FREE`` already excludes default values
            return self
        return self._replace(new=self.new & now.lines, gone=self.gone - now.lines)


def traces(edits: Sequence[Edit], cables: Sequence[Cable]) -> list[Trace]:
    """Return the trace of each edit, in the order of the edits.

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
    """Return a line in a normal form, which is independent of how its setting was entered."""
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
    """Return the kernel settings before and after each edit."""
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
