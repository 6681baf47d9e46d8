"""The networks that a task goes through: what there is to be described when a step is read.

Ground truth's own effects make them, on layers over the base, so that a step costs what it
touches.
"""

from __future__ import annotations

from collections.abc import Sequence

from netarena.model import Action
from netarena_malt.action import Addition, Removal, act, effect
from netarena_malt.base_network import TOPOLOGY, Index
from netarena_malt.edit import apply_edits
from netarena_malt.network_builder import Draft
from netarena_malt.overlay import overlay
from netarena_malt.topology import EK_PACKET_SWITCH, EK_PORT, Graph


class Passage:
    """A network between steps; ``names`` are those of the base."""

    def __init__(self, graph: Graph, base: Index) -> None:
        self._index = Index(graph, base.names)

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def names(self, kind: str) -> Sequence[str]:
        """Return the names of the nodes of ``kind``, for kinds that no task adds or removes."""
        return self._index.names[kind]

    def kind(self, name: str) -> str:
        return self._index.kind(name)

    def contents(self, name: str) -> Sequence[str]:
        return self._index.contents(name)

    def parents(self, name: str) -> Sequence[str]:
        return self._index.parents(name)

    def ancestors(self, name: str) -> Sequence[str]:
        """Names of all that contain ``name``, directly or through others, nearest first."""
        return self._index.ancestors(name)

    def switches(self, name: str) -> list[str]:
        """Names of the packet switches that ``name`` contains, or of itself if it is one."""
        return [name] if self.kind(name) == EK_PACKET_SWITCH else self._index.switches(name)

    def capacity(self, port: str) -> float:
        return self._index.capacity(port)

    def total(self, name: str) -> float:
        """Total port capacity, bps: of a port its own."""
        if self.kind(name) == EK_PORT:
            return self.capacity(name)
        return sum(map(self._index.total_of_switch, self.switches(name)))


def passages(actions: Sequence[Action], draft: Draft) -> list[list[Passage]]:
    """Return the networks on which the words of each step may be read, besides the initial one.

    These are the network that the step finds and, if it is described in several parts, the one with
    the other parts done.
    """
    if len(actions) == 1 and _other_parts(actions[0]) is None:
        return [[]]
    base = draft.base
    graph = overlay(base.graph)
    apply_edits(graph, {key: edits for key, edits in draft.edits().items() if key != TOPOLOGY})
    found = []
    for number, action in enumerate(actions):
        before = graph
        networks = [before] if number else []
        if (others := _other_parts(action)) is not None:
            networks.append(_done(before, others))
        found.append([Passage(network, base.index) for network in networks])
        if number + 1 < len(actions):
            graph = _done(before, action)
    return found


def _other_parts(action: Action) -> Action | None:
    """Return what a step does before the last of its words are read; None if nothing."""
    if action.kind == "remove":
        names = Removal.model_validate(action.parameters).names[:-1]
        return act("remove", Removal(names=names)) if names else None
    if action.kind == "add":
        nodes = Addition.model_validate(action.parameters).nodes
        return action if any(node.contents for node in nodes) else None
    return None


def _done(before: Graph, action: Action) -> Graph:
    graph = overlay(before)
    effect(graph, action)
    return graph
