"""Scratch namespaces, in which machines are built as intended, changed by their faults, read and
discarded.

Faults and locks are shell commands, so their effect is known only after they have run. Each machine
with such commands is built in a separate scratch namespace, first as intended, then with its
faults. Both states are read. The agent's network is written only once, from the second state.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from netarena.sdk import current_network, entered, leave_network
from netarena_network.real.baseline import run_shell, set_baseline
from netarena_network.real.netlink import Netlink, cable, raise_link
from netarena_route.real.form import (
    LISTING,
    Form,
    bare,
    changed,
    is_plain,
    plain,
    read,
    sysctls,
    write,
)
from netarena_route.real.links import hardware, known_neighbours
from netarena_route.world.model import Machine, World

T = TypeVar("T")
#: Function that reads a machine. Its arguments are the machine, its namespace and a socket in the
#: namespace.
Look = Callable[[Machine, int, Netlink], T]


class Draft(NamedTuple, Generic[T]):
    """The form of a machine with its faults, and the readings before and after the injection of the
    faults."""

    form: Form
    intended: T
    faulty: T


class _Bench(NamedTuple):
    """The namespace that has the far ends of all ports, and a socket in this namespace."""

    space: int
    netlink: Netlink


def draft(
    world: World, faults: Mapping[str, Sequence[str]], look: Look[T]
) -> tuple[dict[str, Form], dict[str, Draft[T]]]:
    """Return the form of each machine, and the drafts of the machines that had to be built.

    ``faults`` maps the name of a machine to the commands that break it. Raises OSError, and
    subprocess.CalledProcessError if a command fails.
    """
    forms: dict[str, Form] = {}
    drafts: dict[str, Draft[T]] = {}
    with contextlib.ExitStack() as stack:
        home = _current(stack)
        with entered(home):
            leave_network()
            bench = _Bench(_current(stack), stack.enter_context(Netlink()))
        everyone = enumerate(zip(world.machines, known_neighbours(world), strict=True))
        for number, (machine, neighbours) in everyone:
            commands = faults.get(machine.name, ())
            form = None if commands else plain(machine, neighbours)
            if form is None:
                with entered(home):
                    leave_network()
                    begun = bare(machine, neighbours)
                    found = _build(machine, begun, number, bench, commands, look)
                drafts[machine.name] = found
                form = found.form
            forms[machine.name] = form
    return forms, drafts


def _current(stack: contextlib.ExitStack) -> int:
    space = current_network()
    stack.callback(os.close, space)
    return space


def _build(  # noqa: PLR0913, PLR0917 -- the parts of a machine
    machine: Machine,
    begun: Form,
    number: int,
    bench: _Bench,
    faults: Sequence[str],
    look: Look[T],
) -> Draft[T]:
    """Build a machine in the namespace of the calling thread. This namespace must be new."""
    texts = " ".join((*machine.filters, *machine.commands, *faults))
    filtered = machine.filters or "iptables " in texts or "nft " in texts
    with contextlib.ExitStack() as stack:
        space, netlink = _current(stack), stack.enter_context(Netlink())
        set_baseline()
        ends = {port.name: f"{number}-{at}" for at, port in enumerate(machine.interfaces)}
        netlink.send([cable(*one, space=bench.space) for one in ends.items()])
        bench.netlink.send([raise_link(end) for end in ends.values()])
        fresh = sysctls() if "sysctl " in texts else None
        write(begun, netlink, hardware(number, machine))
        lines = [f"ip route add {entry}" for entry in machine.routes if not is_plain(entry)]
        lines += [f"ip rule add {entry}" for entry in machine.rules]
        lines += [f"iptables -w {entry}" for entry in machine.filters]
        lines += [f"{command} || exit" for command in machine.commands]
        if lines:
            run_shell("\n".join(("set -e", *lines)))
        intended = look(machine, space, netlink)
        for command in faults:
            run_shell(command)
        faulty = look(machine, space, netlink) if faults else intended
        listed = run_shell(LISTING).stdout if filtered else ""
        settings = begun.settings if fresh is None else changed(fresh, sysctls())
        form = replace(read(netlink, listed), settings=settings)
    return Draft(form, intended, faulty)
