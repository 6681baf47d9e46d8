"""The intermediate networks of a task, in which descriptions are read step by step.

The effects of the task's actions create these networks as layers on top of the base. Therefore the
cost of a step depends only on the elements that the step touches.
"""

from __future__ import annotations

from collections.abc import Sequence

from netarena.sdk import Action
from netarena_malt.action import Addition, Removal, act, effect
from netarena_malt.base_network import TOPOLOGY, Index
from netarena_malt.edit import apply_edits
from netarena_malt.network_builder import Draft
from netarena_malt.overlay import overlay
from netarena_malt.topology import EK_PACKET_SWITCH, EK_PORT, Graph


class Passage:
    """The network before or during a step of a task. ``names`` returns names from the base
    network."""

    def __init__(self, graph: Graph, base: Index) -> None:
        self._index = Index(graph, base.names)

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def names(self, kind: str) -> Sequence[str]:
        """Return the names of the nodes of ``kind``. Only kinds that no task adds or removes are
        allowed."""
        return self._index.names[kind]

    def kind(self, name: str) -> str:
        return self._index.kind(name)

    def contents(self, name: str) -> Sequence[str]:
        return self._index.contents(name)

    def parents(self, name: str) -> Sequence[str]:
        return self._index.parents(name)

    def ancestors(self, name: str) -> Sequence[str]:
        """Return the names of all nodes that contain ``name``, at any depth, nearest first."""
        return self._index.ancestors(name)

    def switches(self, name: str) -> list[str]:
        """Return the names of the packet switches in ``name``, or ``name`` itself for a switch."""
        return [name] if self.kind(name) == EK_PACKET_SWITCH else self._index.switches(name)

    def capacity(self, port: str) -> float:
        return self._index.capacity(port)

    def total(self, name: str) -> float:
        """Return the total capacity in bps of all ports in a node, or the capacity of a port."""
        if self.kind(name) == EK_PORT:
            return self.capacity(name)
        return sum(map(self._index.total_of_switch, self.switches(name)))


def passages(actions: Sequence[Action], draft: Draft) -> list[list[Passage]]:
    """Return, for each step, the networks on which a reader may resolve the step's descriptions.

    They are the network before the step and, if the text describes the step in several parts, the
    network after the other parts. The initial network is left out.
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
    """Return the part of a step that a reader may execute before reading the end of the step's
    text.

    Return None if the step cannot be executed in parts.
    """
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
