"""Base of reactive applications, which inject faults into an intended state.

A query's ``initial`` is ``{"world": ...}`` with the intended state; its actions are the faults.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from netarena.cache import Kept, Memo
from netarena.config import Config
from netarena.model import (
    Action,
    Episode,
    Failure,
    Finding,
    JsonValue,
    Judgement,
    Move,
    Query,
    Record,
    State,
    Step,
)
from netarena.task.application import Drawn, Labelled
from netarena.task.failure import classify_turns
from netarena.task.label import MAX_PARTS, Catalogue, FaultConfig, kinds_of
from netarena.task.prompt import PromptParts
from netarena.task.repair_order import hasty_orders, safe_orders

W = TypeVar("W", bound=Record)
#: Kind of harm of a command that repairs nothing; used only with ``judging: paper``.
USELESS = "Useless change"
#: Matches output of a command that the shell could not run, or of ``systemctl`` without systemd.
_UNRUN = re.compile(
    r"^\[exit status 12[67]\]\s*\Z"
    r"|^(?:System has not been booted with systemd|Failed to connect to bus)",
    re.MULTILINE,
)
#: Characters that a command line needs to run several commands or to redirect output.
_SEVERAL = re.compile(r"[;&|<>`$(){}\n]")
#: Maximum number of intended worlds in the cache. Each turn of an episode uses its world several
#: times.
_WORLDS = 16


def is_simple(move: Move) -> bool:
    """Return whether a move is a single command, so that all output comes from this command."""
    command = move.get("command", "") if isinstance(move, dict) else move
    return not _SEVERAL.search(str(command))


class Repair(NamedTuple):
    """One reply of the reference solution. ``look`` is a read-only reply that shows the fault."""

    look: str
    reply: str


class Reactive(Labelled):
    """Base of applications in which an agent repairs faults, one turn at a time."""

    looks: ClassVar[int] = 10
    label_key: ClassVar[str] = "error_types"
    #: Whether queries of every combination of kinds can be drawn quickly. If not, a search uses
    #: only the combinations in ``labels``.
    combinable: ClassVar[bool] = True
    #: The application's kinds of fault.
    catalogue: ClassVar[Catalogue]

    def labels(self, config: Config) -> Collection[str]:
        """Return the labels: kinds joined by ``+``. Raises ConfigError for an unknown kind."""
        asked = cast("FaultConfig", config)
        return self.catalogue.choose(asked.error_types, asked.complexity_level)

    @abstractmethod
    def look(self, query: Query) -> str:
        """Return a reply that changes nothing."""

    @abstractmethod
    def repairs(self, query: Query) -> Sequence[Sequence[Repair]]:
        """Return the minimal repairs of each fault; each repair changes different settings."""

    @abstractmethod
    def waits(self, query: Query) -> Sequence[Collection[int]]:
        """Return, for each fault, the indices of the faults that must be repaired before it."""

    def solve(self, query: Query) -> Sequence[str]:
        """Return the first of ``every_solution``, or an observation if the query has no fault."""
        return next(self.every_solution(query))

    def solutions(self, query: Query) -> Sequence[Sequence[str]]:
        """Return the reference solution in every safe order of the repairs.

        For more than three faults, return only the first and the last order.
        """
        found = list(self.every_solution(query))
        return found if len(query.actions) <= MAX_PARTS else [found[0], *found[1:][-1:]]

    def every_solution(self, query: Query) -> Iterator[Sequence[str]]:
        return self._in_orders(query, safe_orders(self.waits(query)))

    def hasty(self, query: Query) -> Iterator[Sequence[str]]:
        return self._in_orders(query, hasty_orders(self.waits(query)))

    def _in_orders(self, query: Query, orders: Iterable[Sequence[int]]) -> Iterator[list[str]]:
        repairs = self.repairs(query)
        for order in orders:
            yield [one.reply for part in order for one in repairs[part]] or [self.look(query)]

    def demonstrate(self, query: Query) -> Sequence[str]:
        repairs, order = self.repairs(query), next(safe_orders(self.waits(query)))
        shown = [text for part in order for one in repairs[part] for text in one]
        return shown or [self.look(query)]

    @abstractmethod
    def count_wrong(self, query: Query, state: State) -> int:
        """Return the number of tested elements that are not as intended."""

    def count_left(self, query: Query, state: State) -> int:
        """Return how many parts of faults remain, including parts that other faults hide.

        Only ``judging: paper`` needs this number.
        """
        del query, state
        return 0

    @abstractmethod
    def count_tested(self, query: Query) -> int:
        """Return the number of tested elements."""

    def comes_to_nothing(self, step: Step) -> bool:
        """Return whether a turn had no effect; by default, whether it ran no command.

        Calls of missing programs, and of a service manager that is not running, have no effect
        either.
        """
        return not step.executed or bool(_UNRUN.search(step.output))

    def configures(self, move: Move) -> bool:
        """Return whether a move may change the configuration, according to its text."""
        del move
        return True

    def refine(
        self,
        config: Config,
        query: Query,
        judgement: Judgement,
        before: State,
        step: Step,
    ) -> Judgement:
        """Return the judgement; with ``judging: paper``, add a finding for a useless change."""
        if cast("FaultConfig", config).judging != "paper":
            return judgement
        if not self.configures(step.move) or (is_simple(step.move) and self.comes_to_nothing(step)):
            return judgement
        # if two faults hide each other, the first repair changes no tested element, so parts of
        # faults are counted too
        for count in (self.count_wrong, self.count_left):
            if count(query, step.state) < count(query, before):
                return judgement
        finding = Finding(
            rule="repaired_nothing",
            element="the command",
            detail=f"{USELESS}: a configuration command that repaired nothing.",
        )
        return judgement.model_copy(update={"findings": (*judgement.findings, finding)})

    def brief(
        self, config: Config, query: Query, state: State, steps: Sequence[Step]
    ) -> PromptParts:
        """Return the parts of the next prompt; ``judging: paper`` adds a rule."""
        parts = super().brief(config, query, state, steps)
        if cast("FaultConfig", config).judging != "paper":
            return parts
        rule = (
            f"One more kind of harm:\n- {USELESS}: a configuration command repairs nothing. A "
            "reply with only one simple command is exempt if this command cannot run or is refused."
        )
        return replace(parts, rules=f"{parts.rules}\n\n{rule}")

    def progress(self, query: Query, state: State) -> float:
        return 1.0 - self.count_wrong(query, state) / self.count_tested(query)

    def failure(self, query: Query, episode: Episode) -> Failure | None:
        """Return the failure type of ``episode``, by the rules of ``netarena.task.failure``."""
        return classify_turns(episode, partial(self.count_wrong, query), self.comes_to_nothing)


def broken(
    catalogue: Catalogue, label: str, text: str, world: Record, actions: tuple[Action, ...]
) -> Drawn:
    """Return the parts of a query with this label; ``actions`` are the faults in ``world``."""
    initial: JsonValue = {"world": world.model_dump(mode="json")}
    return Drawn(catalogue.level(kinds_of(label)), text, initial, actions)


def size_of_world(query: Query, key: str) -> int:
    """Return the number of items in the list ``key`` of a query's world; 0 without such a list."""
    initial = query.initial if isinstance(query.initial, dict) else {}
    world = initial.get("world")
    items = world.get(key) if isinstance(world, dict) else None
    return len(items) if isinstance(items, list) else 0


def world_reader(kind: type[W]) -> Callable[[Query], W]:
    """Return a function that returns the intended world of a query, with a cache.

    Queries whose worlds have the same content share one object, because many cached values are
    derived from the world.
    """
    made: Kept[W] = Kept(_WORLDS)
    said: Memo[str, W] = Memo(_WORLDS)

    def read(query: Query) -> W:
        initial = cast("dict[str, Any]", query.initial)

        def make() -> W:
            text = json.dumps(initial["world"])
            return said.get(text) or said.keep(text, kind.model_validate(initial["world"]))

        return made.get(initial, make)

    return read
