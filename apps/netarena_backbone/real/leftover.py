"""Finds the remains of faults with which a network was built.

Each part of a fault is given as a machine's recipes without and with that part (``lab_spec.Edit``).
Texts of FRR and of services are compared directly. Kernel settings are applied in scratch
namespaces by the code that builds networks, and read back, because only the kernel determines how
settings are listed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from netarena.sdk import entered
from netarena_backbone.real.build import build_netns, configure
from netarena_backbone.real.frr import Terminals
from netarena_backbone.real.setting import FRR, Setting, Settings
from netarena_backbone.world.lab_spec import Cable, Edit, End, Recipe, Setup
from netarena_network.real.netlink import Netlink
from netarena_network.real.reading import unfold

#: Name of the scratch machine that has the far ends of all links.
_FAR = "far"
_NO_FILES = Path("/nonexistent")


class Trace(NamedTuple):
    """Settings that one part of a fault adds to a machine, and settings that it removes."""

    machine: str
    new: frozenset[str]
    gone: frozenset[str]

    def is_left(self, now: Setting) -> bool:
        """Return whether some part still exists in ``now``.

        A part that replaces a setting exists as long as the new setting exists. A part that only
        removes settings exists as long as any of them is missing.
        """
        return not self.new.isdisjoint(now.lines) if self.new else not self.gone <= now.lines

    def shown_in(self, now: Setting) -> Trace:
        """Return the part of this trace that ``now`` shows; FRR does not list default values."""
        return Trace(self.machine, self.new & now.lines, self.gone - now.lines)


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
        found.append(Trace(edit.after.machine, new, gone))
    return found


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
