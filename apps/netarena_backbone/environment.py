"""Live network of a backbone query. It is built with its faults, and its state is compared with the
computed state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

from netarena.sdk import Briefing, EnvironmentFailed, JsonValue, Query, State
from netarena_backbone import trial
from netarena_backbone.config import BackboneConfig
from netarena_backbone.fault.table import read
from netarena_backbone.planned.host import asks_of_both
from netarena_backbone.query import Case, case_of
from netarena_backbone.real.client import Net, Warm
from netarena_backbone.state import Facts, facts_of, first, misfits
from netarena_backbone.state import read as read_state
from netarena_backbone.world.contingency import Contingency, during
from netarena_backbone.world.intent import expected
from netarena_backbone.world.lab_spec import Edit, Neighbour
from netarena_backbone.world.model import Router, World
from netarena_backbone.world.render import recipe, render
from netarena_backbone.world.routing import neighbours, settle
from netarena_network.action import Fault, faults_of
from netarena_network.environment import Networked

#: Maximum time from the start of routing until the network reaches the computed state.
_AS_COMPUTED_S = 30.0
#: Pause between two observations of a network that is not yet in the computed state.
_PAUSE_S = 0.1
#: Maximum time for repeated observations of a contingency. An observation is repeated while it
#: differs from the documentation and from the previous observation.
_CONFIRM_S = 10.0


class BackboneEnvironment(Networked):
    """A backbone with faults, and commands on its machines."""

    def __init__(self, query: Query, config: BackboneConfig, warm: Warm) -> None:
        super().__init__(query)
        self._warm = warm
        self._emulator = config.emulator
        # the judging mode "paper" counts the parts of faults that remain
        self._traced = config.briefing is Briefing.TICKET or config.judging == "paper"

    async def open(self) -> State:
        """Build the network with its faults in one pass and verify its state.

        Raises EnvironmentFailed if the network cannot be built or differs from the computed state.
        """
        try:
            self._case: Case = case_of(self._query)
            await asyncio.to_thread(self._case.prepare)  # other episodes share the event loop
            present, parts = self._start()
            setup = render(present)
            if self._case.plan is not None:
                asks = asks_of_both(self._case.world, self._case.goal)
                setup = setup.model_copy(update={"asks": asks})
            if self._traced:
                setup = setup.model_copy(update={"edits": tuple(parts)})
        except (
            KeyError,
            ValueError,
            StopIteration,
        ) as error:  # the query may come from a file with arbitrary content
            raise EnvironmentFailed(
                f"this is not a backbone query: {error}", proven_ours=True
            ) from None
        self._net = net = await self._warm.begin_backbone(setup, self._emulator)
        await net.build()
        faults = ", ".join(f"{fault.kind} ({fault.method})" for fault in self._faults)
        return await self._connect(net, present, faults or "no fault")

    @property
    def _faults(self) -> Sequence[Fault]:
        """The query's faults."""
        plan = self._case.plan
        return faults_of(self._query) if plan is None else plan.faults

    def _start(self) -> tuple[World, Iterator[Edit]]:
        """Return the world from which the network is built, and the edits for which the lab checks
        each state.

        The edits are computed lazily.
        """
        plan = self._case.plan
        if plan is not None:
            return plan.present, plan.edits()
        stages = [self._case.world]
        for fault in self._faults:
            stages.append(read(stages[0], fault).edit(stages[-1]))
        return stages[-1], edits(stages, self._faults)

    async def _connect(self, net: Net, computed: World, parts: str) -> State:
        """Connect the routers; return the settled state as soon as it equals the computed state.

        Raises EnvironmentFailed if the network does not reach the computed state in time.
        """
        tables = settle(computed)
        wanted, known = facts_of(computed, expected(computed, tables)), neighbours(tables)
        await net.connect(known)
        deadline = time.monotonic() + _AS_COMPUTED_S
        while wrong := _unlike(computed, wanted, state := await net.observe(known)):
            if time.monotonic() > deadline:
                raise EnvironmentFailed(
                    f"the network with {parts} does not match the computed state: {wrong}",
                    evidence=state,
                )
            await asyncio.sleep(_PAUSE_S)  # daemons might not have discovered each other yet
        return state

    async def finish(self) -> JsonValue:
        """Try the contingencies in order until the state in one of them differs from the
        documentation.

        Returns their observations (see ``trial``), or None if the world has no contingencies.
        """
        net, case = self._opened, self._case
        if not isinstance(net, Net) or not case.contingencies:
            return None
        await net.drop_pending()  # the deadline may have interrupted the last command
        trials: list[JsonValue] = []
        for contingency in case.contingencies:
            if contingency.cable is None:
                await net.restart(from_saved=case.world.only_saved_survives)
            else:
                await net.cut(contingency.cable)
            state, has_failed = await self._observe_trial(contingency)
            after: State = None
            if contingency.cable is not None and not has_failed:
                await net.restore(contingency.cable)
                now, has_failed = await self._observe_trial(contingency, restored=True)
                after = now if has_failed else None
            trials.append({"name": contingency.name, "state": state, "restored": after})
            if has_failed:
                break
        return trials

    async def _observe_trial(
        self, contingency: Contingency, *, restored: bool = False
    ) -> tuple[State, bool]:
        """Return the settled state in a contingency, and whether it differs from the documentation.

        The first observation waits for the documented neighbours and for all pending changes. If
        the state differs from the documentation, it is observed again until two successive states
        are equal or ``_CONFIRM_S`` have passed.
        """
        goal = self._case.goal
        lasting = goal if restored else during(goal, contingency)

        def known() -> set[Neighbour]:
            self._case.wanted_in(contingency)  # cached for the judgement
            return {*neighbours(settle(lasting))}

        def is_wrong(state: State) -> bool:
            return trial.differs(self._case, contingency, state, restored=restored)

        net = self._opened
        neighbours_then = await asyncio.to_thread(known)  # other episodes share the event loop
        state = await net.observe(neighbours_then, confirmed=True)
        deadline = time.monotonic() + _CONFIRM_S
        while is_wrong(state):
            before, state = state, await net.observe()
            if state == before or time.monotonic() > deadline:
                break
        return state, is_wrong(state)

    def _find(self, asked: str) -> tuple[str | None, str]:
        world = self._case.world
        machine = resolve(world, asked)
        return machine, _unknown(world, asked) if machine is None else _refuse(world, machine)


def edits(stages: Sequence[World], faults: Sequence[Fault]) -> Iterator[Edit]:
    """Yield one edit per machine of each fault, in the order of the fault's commands.

    ``stages`` lists the world before the first fault and the world after each fault.
    """
    for fault, (before, after) in zip(faults, pairwise(stages), strict=True):
        for machine in dict.fromkeys(command.machine for command in fault.inject):
            yield Edit(before=recipe(before, machine), after=recipe(after, machine))


def _unlike(world: World, wanted: Facts, state: State) -> str:
    """Return a description of the differences between a state and the computed state, or ""."""
    seen = read_state(state)
    said = [] if seen.settled else ["the network does not converge"]
    if wrong := [*misfits(wanted, facts_of(world, seen))]:
        said.append(f"{'; '.join(map(str, first(wrong, 3)))} ({len(wrong)} in all)")
    return "; ".join(said)


def resolve(world: World, asked: str) -> str | None:
    """Return the full name of a machine, given its name with or without the world's prefix.

    ``r0`` and ``router`` mean the first router. Returns None if the world has no such machine.
    """
    if asked.lower() in {"r0", "router"}:
        return world.routers[0].name
    for name in (asked, f"{world.prefix}_{asked}"):
        if name in world.machines:
            return name
    return None


def _refuse(world: World, name: str) -> str:
    """Return the message that refuses a login to a machine, or "" if login is allowed."""
    machine = world.machines[name]
    zone = name if isinstance(machine, Router) else machine.zone
    for outsider in world.outsiders:
        if outsider.router == zone:
            return f"[{name} is a machine of AS {outsider.asn}: you cannot log in there]\n"
    return ""


def _unknown(world: World, asked: str) -> str:
    names = ", ".join(world.machines)
    return f"[there is no machine {asked[:100]!a}; machines are {names}]\n"
