"""The seeded generator of queries: a network that differs from its base, and a task on it.

The generator edits the base network, draws a *focus* (a node that contains others), draws the
operations of the label within the focus, and renders the text from them. Edits remove and add
switches and ports and change capacities, so that counts and ranks depend on the seed. Nothing is
executed during drawing: ``solve_truth`` executes the operations on a graph.

Texts in varied words describe the focus without its name, and the edits must not reveal the focus.
Therefore edits are spread over the whole network (``spread``), and the focus is drawn independently
of the edits. Canonical texts name the focus. The edits of canonical queries are all within the
focus, as in the first versions, so that these queries stay the same.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, TypeAlias, cast

from pydantic import ValidationError, field_validator, model_validator

from netarena.sdk import Action, Config, ConfigError, Drawer, Drawn, JsonValue, Query, shapes
from netarena_malt.action import (
    OPERATIONS,
    Addition,
    AnswerType,
    NewNode,
    Question,
    Removal,
    Selection,
    Update,
    act,
    describe,
    effect,
)
from netarena_malt.base_network import (
    TOPOLOGY,
    Base,
    Parameters,
    base_of,
    base_of_file,
    base_of_parameters,
    digest_of,
    released_base,
)
from netarena_malt.edit import apply_edits, group
from netarena_malt.grammar import private
from netarena_malt.loop import FACTORS, SHAPES, draw_loop, matters
from netarena_malt.network_builder import Draft
from netarena_malt.overlay import overlay
from netarena_malt.phrasing import phrase
from netarena_malt.planning import catalogue
from netarena_malt.planning.plan import Place
from netarena_malt.spread import SETS_PER_SWITCH, add_new, intensity, new_port, new_switch, spread
from netarena_malt.topology import (
    CONTAINMENT,
    EK_AGG_BLOCK,
    EK_CONTROL_DOMAIN,
    EK_JUPITER,
    EK_PACKET_SWITCH,
    EK_PORT,
    EK_RACK,
    EK_SPINEBLOCK,
    EK_SUPERBLOCK,
    Graph,
)

#: Value of ``topology`` for the released model, instead of a path.
RELEASED_NAME = "released"
#: Version of the generator, increased whenever a seed would produce other queries.
VERSION = "4"
#: Version of the generator for texts from the grammar, whose wording changes independently of the
#: canonical texts.
WORDED_VERSION = "8"
#: Versions of the generator for configs with planning tasks: for canonical texts, and for texts
#: from the grammar.
PLANNING_VERSION = "14"
WORDED_PLANNING_VERSION = "15"
#: Version -> the queries to which it applies.
VERSIONS = MappingProxyType(
    {
        VERSION: "phrasing canonical",
        WORDED_VERSION: "phrasing varied and held_out",
        PLANNING_VERSION: "complexity_level with level5 and phrasing canonical",
        WORDED_PLANNING_VERSION: "complexity_level with level5 and phrasing varied",
    }
)

#: Label -> level, and the operations and shapes of loops in order. The generator uses the labels in
#: turn.
PROGRAMS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        f"capacity planning, level-{level}, {'-'.join(kinds)}": (f"level{level}", kinds)
        for level, programs in (
            (1, [("add",), ("remove",), ("update",), ("count",), ("list",), ("rank",)]),
            (2, [("remove", "list"), ("remove", "rank"), ("remove", "count")]),
            (3, [("add", "list"), ("add", "rank"), ("add", "count")]),
            (
                4,
                [
                    ("if",),
                    ("nested",),
                    ("each", "count"),
                    ("if", "list"),
                    ("if", "rank"),
                    ("nested", "count"),
                    ("nested", "rank"),
                    ("if", "remove", "list"),
                    ("each", "add", "rank"),
                ],
            ),
        )
        for kinds in programs
    }
)
LABELS: tuple[str, ...] = tuple(PROGRAMS)
#: Level of the planning tasks, whose labels are in ``planning.catalogue``.
PLANNING_LEVEL = "level5"
#: Name for planning tasks in two places: the key of a query's initial state with the task's data,
#: and the kind of the query's only action.
PLANNING = "planning"
PLAN = "plan"

_FOCUS_KINDS = (
    EK_JUPITER,
    EK_SUPERBLOCK,
    EK_SPINEBLOCK,
    EK_AGG_BLOCK,
    EK_RACK,
    EK_CONTROL_DOMAIN,
    EK_PACKET_SWITCH,
)
#: Maximum number of names in a right list and of nodes that one operation changes, and maximum
#: number of rows in a ranking. These numbers are below the limits of an answer
#: (``sandbox_program.MAX_CHANGES``, ``sandbox_program.MAX_DATA_VALUES``).
_MOST_ASKED = 400
_MOST_RANKED = 300
#: Maximum number of a container's switches that a loop visits if a ``list`` follows the loop.
_LISTABLE_SWITCHES = 24
#: Maximum number of a container's switches that any other loop visits.
_LOOPED_SWITCHES = 100
_QUESTIONS = frozenset(kind for kind, each in OPERATIONS.items() if each.answer_type != "graph")


_log = logging.getLogger(__name__)


#: ``canonical``: fixed sentences. ``varied``: text from the grammar of ``phrasing``. ``held_out``:
#: text that also uses held-out productions and the productions of the maintainers' private pack.
Phrasing: TypeAlias = Literal["canonical", "varied", "held_out"]


class MaltConfig(Config):
    """Config keys of MALT, in addition to the keys of every application."""

    LEVELS: ClassVar[tuple[str, ...]] = (
        *("level1", "level2", "level3", "level4"),
        PLANNING_LEVEL,
    )

    #: Number of programs that an agent may send for a planning task; only the last program counts.
    #: ``netarena search`` does not vary this number, because more attempts make a task easier.
    attempts: Literal[1, 3] = shapes(added=True, varied=False, default=1)
    #: Wording of the texts.
    phrasing: Phrasing = shapes(default="canonical")
    #: Labels to draw from, all of which must belong to the levels in ``complexity_level``; null
    #: means all labels of these levels.
    labels: tuple[str, ...] | None = shapes(added=True, default=None)
    #: Network from which the queries' networks are made: the released model, parameters, or the
    #: path of a model file.
    topology: Parameters | str = shapes(default=RELEASED_NAME)

    @field_validator("phrasing")
    @classmethod
    def _valid_pack(cls, value: Phrasing) -> Phrasing:
        """Return the value. Raises ConfigError, before any query is drawn, if the private pack is
        invalid."""
        if value == "held_out":
            private()
        return value

    @field_validator("labels", mode="before")
    @classmethod
    def _known_labels(cls, value: Any) -> Any:
        """Return the known labels in a fixed order, so that configs with the same labels produce
        the same query ids."""
        known = (*LABELS, *catalogue.LABELS)
        asked = [value] if isinstance(value, str) else value
        if asked is None:
            return None
        if not isinstance(asked, list | tuple) or not asked:
            raise ValueError("must be a list of labels as printed by 'netarena queries malt'")
        if unknown := [label for label in asked if label not in known]:
            raise ValueError(
                f"unknown label {unknown[0]!r}; 'netarena queries malt' prints all labels"
            )
        return tuple(label for label in known if label in asked)

    @field_validator("topology", mode="before")
    @classmethod
    def _known_topology(cls, value: Any) -> Any:
        if isinstance(value, dict):
            try:
                return Parameters.model_validate(value)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = ".".join(map(str, first["loc"]))
                known = ", ".join(Parameters.model_fields)
                known = (
                    ""
                    if first["loc"][0] in Parameters.model_fields
                    else f" (known parameters: {known})"
                )
                problem = str(first["msg"]).removeprefix("Value error, ")
                raise ValueError(f"{where}: {problem}{known}") from None
        if not (isinstance(value, Parameters) or (isinstance(value, str) and value)):
            raise ValueError(
                "must be 'released', an object of parameters, or the path of a model file"
            )
        return value

    @model_validator(mode="after")
    def _plans_fit(self) -> Self:
        """Return the config. Raises ConfigError if a key does not fit the levels."""
        if self.attempts > 1 and self.complexity_level != (PLANNING_LEVEL,):
            raise ValueError(
                "attempts: only planning tasks may have several attempts; set complexity_level to "
                "level5, or omit attempts"
            )
        if self.phrasing == "held_out" and PLANNING_LEVEL in self.complexity_level:
            raise ValueError(
                "phrasing: level5 has no held_out texts; set phrasing to canonical or varied, or "
                "remove level5 from complexity_level"
            )
        return self

    def input_paths(self) -> dict[str, str]:
        paths = super().input_paths()
        if isinstance(self.topology, str) and self.topology != RELEASED_NAME:
            paths["topology"] = self.topology
        return paths

    def shape(self) -> dict[str, JsonValue]:
        """Return the values of the keys that shape queries, with the hash of a model file instead
        of its path.

        Raises ConfigError for a file that cannot be read.
        """
        shape = super().shape()
        if isinstance(self.topology, str) and self.topology != RELEASED_NAME:
            shape["topology"] = {"sha256": digest_of(self.topology)}
        if self.phrasing == "held_out" and (pack := private().pack):
            shape["phrasing_pack"] = pack
        return shape


def base_for(config: Config) -> Base:
    """Return the base network of queries with this config. Raises ConfigError."""
    topology = getattr(config, "topology", RELEASED_NAME)
    if isinstance(topology, Parameters):
        return base_of_parameters(topology)
    return released_base() if topology == RELEASED_NAME else base_of_file(topology)


@dataclass(frozen=True)
class Truth:
    """The right answer to a query."""

    #: ``graph`` (changes of the network, without a question), ``text`` (count), ``list`` or
    #: ``table`` (rank).
    type: AnswerType
    #: An int for a count, names in any order for a list, [name, bps] rows for a ranking, and None
    #: for a graph.
    data: JsonValue
    #: Whether ``updated_graph`` must differ from the initial graph.
    changes_graph: bool


def labels(config: Config) -> list[str]:
    """Return the labels of the requested levels for which the network of ``config`` has queries.

    Raises ConfigError for a network that cannot be created, or that has no queries of these labels.
    """
    chosen = getattr(config, "labels", None)
    return [label for label in _all_labels(config) if chosen is None or label in chosen]


def _all_labels(config: Config) -> list[str]:
    """Return the labels of the requested levels. Raises ConfigError like ``labels``."""
    base = base_for(config)
    asked = [label for label in LABELS if PROGRAMS[label][0] in config.complexity_level]
    if PLANNING_LEVEL not in config.complexity_level:
        return _carried(base, asked, spread_out=_is_worded(config))
    planned = catalogue.carried(places_of(base))
    if left := [_short(label) for label in catalogue.LABELS if label not in planned]:
        problem = f"the network is too small for the labels {', '.join(left)}"
        if not planned and not asked:
            raise ConfigError("topology", f"{problem}; level5 needs a network of the released size")
        if base.size not in _told:
            _told.add(base.size)
            _log.warning("topology: %s; no queries of these labels are drawn", problem)
    return [*(_carried(base, asked, spread_out=_is_worded(config)) if asked else ()), *planned]


#: Node counts of networks for which missing planning labels have already been logged.
_told: set[int] = set()


def _short(label: str) -> str:
    return label.rpartition(" ")[2]


def places_of(base: Base) -> list[Place]:
    """Return the switches of a network, which planning tasks are about, in the order of the
    graph."""
    index = base.index
    found = []
    for name in index.names[EK_PACKET_SWITCH]:
        block, rack = index.parents(name)[:2]
        spine = index.kind(block) == EK_SPINEBLOCK
        found.append(Place(name, block, rack, int(index.stage(name)), spine=spine))
    return found


def drawer(config: Config) -> Drawer:
    """Return the function that draws the network and actions of a query. Raises ConfigError."""
    base = base_for(config)
    spread_out = _is_worded(config)

    def draw_one(label: str, rng: random.Random) -> Drawn:
        if label in catalogue.KINDS:
            return _draw_plan(label, base, rng, varied=spread_out)
        level, kinds = PROGRAMS[label]
        drawn = _draw(kinds, rng, base, spread_out=spread_out)
        if drawn is None:
            raise ConfigError(
                "topology", f"no query of label {label!r} can be drawn from this network"
            )
        draft, actions = drawn
        text = _word(config, actions, draft, rng)
        edits = group(draft.edits()) if spread_out else draft.edits()
        return Drawn(level, text, cast("JsonValue", edits), actions)

    return draw_one


def _draw_plan(label: str, base: Base, rng: random.Random, *, varied: bool) -> Drawn:
    """Draw a planning task. Raises ConfigError if the network has no tasks of this label."""
    try:
        task = catalogue.draw(label, places_of(base), rng, varied=varied)
    except ValueError as error:
        raise ConfigError("topology", str(error)) from None
    initial: dict[str, Any] = {PLANNING: {"label": label, **task.data}}
    if base.key is not None:
        initial[TOPOLOGY] = dict(base.key)
    hidden = {**task.solution, "blocking": task.blocking}
    return Drawn(PLANNING_LEVEL, task.text, initial, (Action(kind=PLAN, parameters=hidden),))


def plan_data(query: Query) -> Mapping[str, Any] | None:
    """Return the data of a planning task, or None for any other query."""
    initial = query.initial
    data = initial.get(PLANNING) if isinstance(initial, Mapping) else None
    return data if isinstance(data, Mapping) else None


def version_of(config: Config) -> str:
    """Return the generator's version for queries of ``config``."""
    planning = PLANNING_LEVEL in config.complexity_level
    if _is_worded(config):
        return WORDED_PLANNING_VERSION if planning else WORDED_VERSION
    return PLANNING_VERSION if planning else VERSION


def _is_worded(config: Config) -> bool:
    """Return whether texts come from the grammar. Such texts describe most nodes instead of naming
    them."""
    return cast("MaltConfig", config).phrasing != "canonical"


def _word(config: Config, actions: Sequence[Action], draft: Draft, rng: random.Random) -> str:
    phrasing = cast("MaltConfig", config).phrasing
    if phrasing == "canonical":
        return render(actions)
    return phrase(actions, draft, rng, held_out=phrasing == "held_out")


def initial_changes(query: Query) -> dict[str, Any]:
    """Return the edits that turn the base into the initial graph (see ``edit``)."""
    initial = cast("dict[str, Any]", query.initial)
    return {key: edits for key, edits in initial.items() if key not in {TOPOLOGY, PLANNING}}


def initial_graph(query: Query) -> Graph:
    """Return a new graph of the query's network. The graph shares unchanged elements with the base,
    as described in ``overlay``."""
    graph = overlay(base_of(query.initial).graph)
    apply_edits(graph, initial_changes(query))
    return graph


def solve_truth(query: Query) -> tuple[Truth, Graph]:
    """Return the right answer to a query, and the graph after its actions."""
    graph = initial_graph(query)
    return execute(graph, query.actions), graph


def execute(graph: Graph, actions: Sequence[Action]) -> Truth:
    """Execute ``actions`` on ``graph`` in place, and return the right answer. The last action
    determines the answer."""
    if actions[0].kind == PLAN:
        return _plan_truth(actions[0].parameters)
    data: JsonValue = None
    for action in actions:
        data = effect(graph, action)
    kind = OPERATIONS[actions[-1].kind].answer_type
    changes = any(OPERATIONS[action.kind].answer_type == "graph" for action in actions)
    return Truth(kind, data, changes)


def _plan_truth(hidden: Mapping[str, JsonValue]) -> Truth:
    """Return the right answer to a planning task: the reference plan, or the id of the blocking
    request."""
    if hidden["blocking"] is not None:
        return Truth("text", hidden["blocking"], changes_graph=False)
    plan = cast("list[JsonValue]", hidden["plan"])
    kind: AnswerType = "table" if isinstance(plan[0], list) else "list"
    return Truth(kind, plan, changes_graph=False)


def describe_plan(action: Action) -> str:
    """Return a description of the solution of a planning task. The description omits the plan's
    rows."""
    hidden = action.parameters
    if hidden["blocking"] is not None:
        return f"report that request {hidden['blocking']} makes the task impossible"
    return (
        f"give a plan with objective {hidden['objective']} (lower bound {hidden['bound']}, greedy "
        f"plan {hidden['greedy']})"
    )


def render(actions: Sequence[Action]) -> str:
    """Return the canonical text of a query: a description of its actions, and the form of the
    answer."""
    steps = [describe(action) for action in actions]
    if len(steps) > 1:
        numbered = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, start=1))
        task = f"Do this in order, each step on the network as the step before left it.\n{numbered}"
    else:
        (task,) = steps
    last = OPERATIONS[actions[-1].kind]
    if last.answer_type == "graph":
        form = f"both data and updated_graph are {last.answer_form}"
    else:
        changes = any(OPERATIONS[action.kind].answer_type == "graph" for action in actions)
        after = "the changed network" if changes else "the network as you got it"
        form = f"data is {last.answer_form}, updated_graph is {after}"
    return f"{task}\nAnswer with type {last.answer_type!r}: {form}."


# Draws of networks and actions.


#: Maximum number of attempts to draw one query.
_PLACES = 1_000
#: A network has queries of a label if all of ``_OFTEN`` draws succeed, each within ``_SOON``
#: attempts.
_SOON = 100
_OFTEN = 3


def _carried(base: Base, labels: list[str], *, spread_out: bool) -> list[str]:
    """Return the labels for which ``base`` has queries. The other labels are logged as a warning.

    Raises ConfigError if ``base`` has no queries of any of ``labels``.
    """
    if base.key is None:
        return labels
    carries = base.carries.setdefault(spread_out, {})
    unknown = [label for label in labels if label not in carries]
    for label in unknown:
        # A separate random generator is used, so that the result does not depend on the seed.
        carries[label] = all(
            _draw(
                PROGRAMS[label][1],
                random.Random(f"carried {label}{again}"),  # noqa: S311 -- not used for a secret
                base,
                _SOON,
                spread_out=spread_out,
            )
            for again in ("", *range(1, _OFTEN))
        )
    carried = [label for label in labels if carries[label]]
    if left := [label.rpartition(" ")[2] for label in labels if label not in carried]:
        problem = f"the network has no suitable part for the labels {', '.join(left)}"
        if not carried:
            raise ConfigError("topology", problem)
        if unknown:
            _log.warning("topology: %s; no queries of these labels are drawn", problem)
    return carried


def _draw(
    kinds: tuple[str, ...],
    rng: random.Random,
    base: Base,
    tries: int = _PLACES,
    *,
    spread_out: bool = False,
) -> tuple[Draft, tuple[Action, ...]] | None:
    """Return a draft of a query's network, and actions on it, one for each of ``kinds`` (operations
    and shapes of loops).

    With ``spread_out``, the edits are drawn first, over the whole network, and all attempts use
    this network. Otherwise each attempt edits the network only within its focus. Return None if no
    attempt finds a focus in ``base`` that fits the actions.
    """
    loops = kinds[0] in SHAPES
    untouched = Draft(base)
    places = [kind for kind in _FOCUS_KINDS if base.index.names[kind]]
    network = untouched
    if spread_out and places:
        network = Draft(base)
        spread(network, rng)
        places = _edited(base, places)
    for _ in range(tries if places else 0):
        kind = rng.choice(places)
        draft = network if spread_out else Draft(base)
        switches = spread_out and kind == EK_PACKET_SWITCH
        focus = rng.choice(draft.present_switches() if switches else draft.names(kind))
        if loops and draft.original(focus):
            if not untouched.switches(focus):
                continue
            # The narrower focus is drawn on the network without edits, so that it does not depend
            # on the edits.
            focus = _narrow(untouched, focus, rng, listed="list" in kinds)
        if not draft.switches(focus):
            continue
        if not spread_out:
            _vary(draft, focus, rng, much=loops or kinds[-1] in _QUESTIONS)
        # All attempts use the same focus. With one attempt per focus, containers whose edits
        # prevent the actions would be drawn less often. This would reveal information about the
        # focus.
        for _ in range(_ATTEMPTS if spread_out else 1):
            after = draft.copy() if loops else draft
            actions = [_draw_step(kind, draft, after, focus, rng) for kind in kinds]
            found = tuple(action for action in actions if action is not None)
            if len(found) == len(kinds):
                return draft, found
    return None


#: Number of attempts to draw the actions within one focus if edits are spread out.
_ATTEMPTS = 8


def _edited(base: Base, places: list[str]) -> list[str]:
    """Return the kinds whose nodes have, on average, at least one edit each.

    Return all kinds if no kind has so many edits. In a very large network most switches have no
    edit, so questions about one switch would be trivial.
    """
    edits = SETS_PER_SWITCH * len(base.index.names[EK_PACKET_SWITCH]) * intensity(base)
    return [kind for kind in places if edits >= len(base.index.names[kind])] or places


def _draw_step(
    kind: str, before: Draft, after: Draft, focus: str, rng: random.Random
) -> Action | None:
    """Draw one action and return it. A loop also changes ``after``.

    If the answer to a question after a loop does not depend on the loop, another question is drawn,
    up to ``_ASKS`` times.
    """
    if kind in SHAPES:
        return draw_loop(kind, after, focus, rng)
    action = _DRAW[kind](after, focus, rng)
    if before is after or kind not in _LISTING:
        return action
    for _ in range(_ASKS):
        if action and matters(before, after, Question.model_validate(action.parameters).select):
            break
        action = _DRAW[kind](after, focus, rng)
    return action


#: Questions whose answer depends only on the set of selected nodes, and not on the capacities of
#: these nodes.
_LISTING = frozenset({"count", "list"})
#: Maximum number of questions drawn to replace a question whose answer does not depend on the loop.
_ASKS = 8


def _narrow(draft: Draft, focus: str, rng: random.Random, *, listed: bool) -> str:
    """Return ``focus``, or a container within it if ``focus`` is too large for a loop."""
    most = _LISTABLE_SWITCHES if listed else _LOOPED_SWITCHES
    switches = draft.switches(focus)
    if len(switches) <= most:
        return focus
    return rng.choice(draft.parents(rng.choice(switches))[:2])


def _vary(draft: Draft, focus: str, rng: random.Random, *, much: bool) -> None:
    """Change ports and switches within ``focus``. With ``much``, make the larger number of changes
    that questions and loops need."""
    scale = 2 if much else 1
    if draft.kind(focus) != EK_PACKET_SWITCH:
        for _ in range(rng.randrange(4 * scale - 1)):
            switch = rng.choice(draft.switches(focus))
            if len(draft.contents(draft.parents(switch)[0])) > 2:
                draft.remove_switch(switch)
        for _ in range(rng.randrange(2 * scale + 1)):
            new = new_switch(draft, rng.choice(draft.switches(focus)), rng)
            add_new(draft, new)
    switches = draft.switches(focus)
    for _ in range(rng.randrange(4 * scale)):
        ports_there = draft.contents(rng.choice(switches))
        # Only ports of the base are removed, because added ports must remain in the network.
        there = [port for port in ports_there if draft.original(port)]
        if len(there) > 3:
            draft.remove_port(rng.choice(there))
    for _ in range(rng.randrange(4 * scale)):
        switch = rng.choice(switches)
        (name,) = draft.fresh(switch, draft.contents(switch)[0], rng)
        draft.add_port(switch, name, rng.choice(draft.speeds()))
    few = len(switches) == 1
    for _ in range(rng.randrange(4, 12) if few else rng.randrange(4 * scale, 20 * scale)):
        draft.set_capacity(_any_port(draft, rng, switches), rng.choice(draft.speeds()))


def _any_port(draft: Draft, rng: random.Random, switches: Sequence[str]) -> str:
    return rng.choice(draft.contents(rng.choice(switches)))


def _new_block(draft: Draft, superblock: str, rng: random.Random) -> NewNode:
    """Return a new aggregation block in ``superblock``. Its one or two switches are in existing
    racks."""
    (name,) = draft.fresh(superblock, rng.choice(draft.names(EK_AGG_BLOCK)), rng)
    switches: dict[str, NewNode] = {}
    number = rng.randrange(1, 3)
    while len(switches) < number:
        switch = new_switch(draft, rng.choice(draft.switches(superblock)), rng, name)
        switches[switch.name] = switch
    return NewNode(
        name=name, kind=EK_AGG_BLOCK, parents=(superblock,), contents=tuple(switches.values())
    )


def _sizes(draft: Draft, focus: str) -> list[str]:
    """Return kinds of nodes that can be added or removed within ``focus``. Ports are the most
    frequent kind."""
    kind = draft.kind(focus)
    sizes = [EK_PORT, EK_PORT]
    if kind != EK_PACKET_SWITCH:
        sizes += [EK_PACKET_SWITCH, EK_PACKET_SWITCH]
    if kind in {EK_SUPERBLOCK, EK_JUPITER} and draft.names(EK_AGG_BLOCK):
        sizes.append(EK_AGG_BLOCK)
    return sizes


def _draw_add(draft: Draft, focus: str, rng: random.Random) -> Action | None:
    size = rng.choice(_sizes(draft, focus))
    if size == EK_AGG_BLOCK:
        inside = draft.kind(focus) == EK_SUPERBLOCK
        superblocks = [focus] if inside else draft.names(EK_SUPERBLOCK)
        filled = [name for name in superblocks if draft.switches(name)]
        if not filled:
            return None
        superblock = rng.choice(filled)
        nodes = [_new_block(draft, superblock, rng)]
    elif size == EK_PACKET_SWITCH:
        nodes = [new_switch(draft, rng.choice(draft.switches(focus)), rng)]
    else:
        switch = rng.choice(draft.switches(focus))
        names = draft.fresh(switch, draft.contents(switch)[0], rng, rng.randrange(1, 5))
        nodes = [new_port(name, rng.choice(draft.speeds()), switch) for name in names]
    return act("add", Addition(nodes=tuple(nodes)))


def _draw_remove(draft: Draft, focus: str, rng: random.Random) -> Action | None:
    size = rng.choice(_sizes(draft, focus))
    if size == EK_AGG_BLOCK:
        inside = draft.kind(focus) == EK_SUPERBLOCK
        kinds = [kind for kind in (EK_AGG_BLOCK, EK_SPINEBLOCK) if draft.names(kind)]
        names = [rng.choice(draft.contents(focus) if inside else draft.names(rng.choice(kinds)))]
    elif size == EK_PACKET_SWITCH:
        names = [rng.choice(draft.switches(focus))]
    else:
        names = _some_ports(draft, rng.choice(draft.switches(focus)), rng)
    gone = sum(len(draft.switches(name)) + draft.number_of_ports(name) for name in names)
    if not names or gone > _MOST_ASKED:
        return None
    return act("remove", Removal(names=tuple(names)))


def _some_ports(draft: Draft, switch: str, rng: random.Random) -> list[str]:
    """Return one to three ports whose removal leaves the switch at least half of its capacity.

    The result is empty if the switch has only one port.
    """
    there = draft.contents(switch)
    if len(there) < 2:
        return []
    ports = rng.sample(there, min(rng.randrange(1, 4), len(there) - 1))
    while sum(map(draft.capacity, ports)) > draft.total(switch) / 2 and len(ports) > 1:
        ports.pop()
    if draft.capacity(ports[0]) > draft.total(switch) / 2:
        return [min(there, key=draft.capacity)]
    return ports


def _draw_update(draft: Draft, focus: str, rng: random.Random) -> Action | None:
    """Draw an update of one port, of the ports of a switch, or of the slow ports in a container.
    Return None if the drawn update changes too many ports."""
    switches = draft.switches(focus)
    switch = rng.choice(switches)
    port = rng.choice(draft.contents(switch))
    bps, total = draft.capacity(port), draft.total(switch)
    which = rng.randrange(3)
    if which == 0:
        select = Selection(name=port)
        after = {value: total - bps + value for value in draft.speeds()}
    elif which == 1:
        if len(draft.contents(switch)) > _MOST_ASKED:
            return None
        select = Selection(name=switch, scope="children", kind=EK_PORT)
        after = {value: value * len(draft.contents(switch)) for value in draft.speeds()}
    else:
        few = draft.number_of_ports(focus) <= _MOST_ASKED
        within = focus if few else rng.choice(draft.parents(switch)[:2])
        if draft.number_of_ports(within) > _MOST_ASKED:
            return None
        bound = 2 * bps
        select = Selection(name=within, scope="descendants", kind=EK_PORT, below_bps=bound)
        return act("update", Update(select=select, to_bps=bound))
    # The update must change a value, and must not reduce the switch below half of its capacity.
    values = [value for value, sum_ in after.items() if value != bps and sum_ >= total / 2]
    if values and rng.randrange(2):
        return act("update", Update(select=select, to_bps=rng.choice(values)))
    return act("update", Update(select=select, times=rng.choice(FACTORS)))


def _draw_members(
    draft: Draft, focus: str, rng: random.Random, *, listed: bool
) -> Selection | None:
    """Draw a non-empty selection of ports or switches within ``focus``: all of them, or only nodes
    above or below a capacity.

    Returns None if the nodes must be ``listed`` and are more than a list may contain.
    """
    switches = draft.switches(focus)
    inside = draft.kind(focus)
    kind = EK_PORT if inside == EK_PACKET_SWITCH else rng.choice((EK_PORT, EK_PACKET_SWITCH))
    bound = rng.choice((None, "at least", "below"))
    if kind == EK_PACKET_SWITCH:
        if listed and len(switches) > _MOST_ASKED:
            return None
        bps = draft.total(rng.choice(switches))
        step = draft.usual_bps
    else:
        large = listed and draft.number_of_ports(focus) > _MOST_ASKED
        faster = [p for p in draft.changed_ports(focus) if draft.capacity(p) > draft.usual_bps]
        if large:
            bound = "at least"
        use = faster if bound == "at least" and faster else draft.contents(rng.choice(switches))
        bps = step = draft.capacity(rng.choice(use))
        if large and draft.number_at_least(focus, bps) > _MOST_ASKED:
            return None
    direct = kind in CONTAINMENT[inside] and rng.randrange(2)
    return Selection(
        name=focus,
        scope="children" if direct else "descendants",
        kind=kind,
        at_least_bps=bps if bound == "at least" else None,
        below_bps=bps + step if bound == "below" else None,
    )


def _draw_count(draft: Draft, focus: str, rng: random.Random) -> Action | None:
    select = _draw_members(draft, focus, rng, listed=False)
    return None if select is None else act("count", Question(select=select))


def _draw_list(draft: Draft, focus: str, rng: random.Random) -> Action | None:
    select = _draw_members(draft, focus, rng, listed=True)
    return None if select is None else act("list", Question(select=select))


def _draw_rank(draft: Draft, focus: str, rng: random.Random) -> Action | None:
    if draft.kind(focus) == EK_SUPERBLOCK and rng.randrange(2):
        select = Selection(name=focus, scope="descendants", kind=EK_PACKET_SWITCH)
    else:
        kinds = CONTAINMENT[draft.kind(focus)]
        kind = kinds[0] if len(kinds) == 1 and rng.randrange(2) else None
        select = Selection(name=focus, scope="children", kind=kind)
    ranked = draft.switches(focus) if select.scope == "descendants" else draft.contents(focus)
    # The upper bound keeps a ranking within the limits of data. Each row counts as two values.
    if not 2 <= len(ranked) <= _MOST_RANKED:
        return None
    return act("rank", Question(select=select))


#: Operation -> function that draws it within a focus.
_DRAW: Mapping[str, Callable[[Draft, str, random.Random], Action | None]] = MappingProxyType(
    {
        "add": _draw_add,
        "remove": _draw_remove,
        "update": _draw_update,
        "count": _draw_count,
        "list": _draw_list,
        "rank": _draw_rank,
    }
)
