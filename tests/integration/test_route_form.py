"""A machine configured in one pass equals a machine on which the faults' shell lines ran."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator, Sequence
from functools import cache

import pytest

from netarena.sandbox.namespace import leave_network
from netarena.sandbox.shell import entered
from netarena_network.action import Fault
from netarena_network.real.baseline import run_shell
from netarena_network.real.netlink import Netlink
from netarena_route import query
from netarena_route.fault import table
from netarena_route.real.build import build_netns
from netarena_route.real.draft import draft
from netarena_route.real.form import LISTING, Form, plain, read, sysctls
from netarena_route.real.links import configure, known_neighbours
from netarena_route.world.model import Machine, World, standard, varied
from netarena_route.world.path import Plan

pytestmark = pytest.mark.requires("netns", "root")

#: number of parts into which the test of all methods is split
_SHARES = 6
#: shell lines that print all settings, without carriers, counters, handles and the kernel's own
#: queues
_LOOK = r"""
ip -d -4 addr | grep inet | sed -E 's/ brd [0-9.]+//'
ip -o link | sed -E 's/^[0-9]+: ([^@:]*)[^:]*/\1/; s/NO-CARRIER,|,LOWER_UP|,M-DOWN//g' |
    sed -E 's/link-netns[a-z]* [0-9a-z-]*//; s/(qdisc|state) [A-Za-z]*//g'
ip -N -d route show table all; ip -N -d rule; ip -4 neigh show nud permanent | sort
tc qdisc show | grep -v noqueue | sed -E 's/^(qdisc [a-z]+) [0-9a-f]+:/\1/'
iptables-save | grep -v '^#' | sed -E 's/\[[0-9:]*\]//' | sort
nft --stateless list ruleset | grep -v '^# Warn' | sort
"""


def _look(machine: Machine, space: int, netlink: Netlink) -> list[str]:
    del machine, netlink
    with entered(space):
        printed = run_shell(f"{{ {_LOOK} }} 2>/dev/null").stdout.splitlines()
        return printed + [f"{name}={value}" for name, value in sysctls().items()]


def _differences(world: World, faults: Sequence[Fault]) -> Iterator[object]:
    """Yield the differences between machines configured in one pass and machines configured with
    shell lines."""
    commands: dict[str, list[str]] = {}
    for order in (order for each in faults for order in each.inject):
        commands.setdefault(order.machine, []).append(order.command)
    forms, drafts = draft(world, commands, _look)
    spaces = build_netns(world)
    configure(world, spaces, forms)
    for machine in world.machines:
        with entered(spaces[machine.name]), Netlink() as netlink:
            again = read(netlink, run_shell(LISTING).stdout)
            if machine.name in drafts:
                wanted, seen = (
                    drafts[machine.name].faulty,
                    _look(machine, spaces[machine.name], netlink),
                )
                yield from ((machine.name, one) for one in set(wanted) ^ set(seen))
        form = forms[machine.name]
        for name in ("ports", "addresses", "routes", "rules", "neighbours", "queues"):
            wanted, seen = getattr(form, name), getattr(again, name)
            # a form that is not ``whole`` leaves out the kernel's own entries, whose order varies
            if wanted != seen if form.whole else not {*wanted} <= {*seen}:
                yield machine.name, name, wanted, seen
        if (form.filters, form.ruleset) != (again.filters, again.ruleset):
            yield machine.name, form, again
    for space in spaces.values():
        os.close(space)


def _found(world: World, faults: Sequence[Fault]) -> list[object]:
    """Return the differences, found by a thread with its own namespaces."""
    found: list[object] = []

    def work() -> None:
        leave_network()
        try:
            found.extend(_differences(world, faults))
        except Exception as error:  # noqa: BLE001 -- raised in another thread
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return [[each.words for each in faults], *found] if found else []


@cache
def _methods() -> list[tuple[World, Fault]]:
    """Return a fault of each method, in the first world in which the method applies."""
    drawn = [varied(3, 1, random.Random(seed)) for seed in range(60)]
    apart = [
        next(one for one in drawn if word in " ".join((*one.router.rules, *one.router.filters)))
        for word in ("-P FORWARD DROP", " lookup ")
    ]
    found: dict[tuple[str, str], tuple[World, Fault]] = {}
    rng = random.Random(1)
    for world in (standard(2, 1, rng), standard(2, 2, rng), *apart):
        for part in table.one_of_each(Plan(world), random.Random(4)):
            found.setdefault((part.kind, part.method), (world, part))
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("share", range(_SHARES))
def test_machine_configured_in_one_pass_has_the_same_settings_as_with_shell_lines(
    share: int,
) -> None:
    cases = _methods()
    assert len(cases) == 111
    found = [_found(world, [part]) for world, part in cases[share::_SHARES]]
    assert [one for one in found if one] == []


@pytest.mark.parametrize("seed", range(6))
def test_machines_with_locks_and_faults_have_the_same_settings_as_with_shell_lines(
    seed: int,
) -> None:
    rng = random.Random(f"forms-{seed}")
    kinds = rng.sample(list(table.KINDS), 2)
    drawn = next(
        drawn
        for _ in range(40)
        if (drawn := query.draw(varied(3, 1, rng), kinds, rng, netem=False)) is not None
    )
    assert _found(*drawn) == []


def test_new_machine_without_faults_needs_no_scratch_namespace() -> None:
    world = standard(2, 1, random.Random(1))
    forms: list[Form | None] = [
        plain(machine, known)
        for machine, known in zip(world.machines, known_neighbours(world), strict=True)
    ]
    assert None not in forms
    assert _found(world, []) == []
