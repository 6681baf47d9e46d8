from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from netarena_malt.action import total_port_capacity
from netarena_malt.edit import apply_edits, descendants
from netarena_malt.network_builder import Draft
from netarena_malt.query import _FOCUS_KINDS, _vary
from netarena_malt.topology import RELEASED, build


def test_unchanged_draft_is_the_released_model() -> None:
    draft = Draft()
    assert draft.edits() == {"remove": [], "add": [], "set": []}
    assert list(draft.parents("ju1.a1.m2.s2c1")) == ["ju1.a1.m2", "ju1.a1.m2rack", "ju1.a1.dom"]
    assert draft.total("ju1.a1.m1.s2c1") == 20e9
    assert len(draft.switches("ju1")) == 320


def test_removal_of_a_switch_replaces_edits_of_its_ports() -> None:
    draft = Draft()
    draft.set_capacity("ju1.s1.s1c1.p1", 5e9)
    draft.remove_port("ju1.s1.s1c1.p2")
    draft.add_port("ju1.s1.s1c1", "ju1.s1.s1c1.p17", 2e9)
    draft.remove_switch("ju1.s1.s1c1")
    assert draft.edits() == {"remove": ["ju1.s1.s1c1"], "add": [], "set": []}


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_draft_agrees_with_the_graph_of_its_edits(seed: int, much: bool) -> None:
    rng = random.Random(seed)
    draft = Draft()
    focus = rng.choice(draft.names(rng.choice(_FOCUS_KINDS)))
    _vary(draft, focus, rng, much=much)
    graph = build(RELEASED)
    apply_edits(graph, draft.edits())
    blocks = {parent for name in draft.switches(focus) for parent in draft.parents(name)}
    for name in {focus, *blocks}:
        inside = descendants(graph, name)
        switches = [node for node in inside if "EK_CHASSIS" in graph.nodes[node]["type"]]
        if "EK_CHASSIS" in graph.nodes[name]["type"]:
            switches = [name]
        assert sorted(draft.switches(name)) == sorted(switches)
        assert draft.total(name) == total_port_capacity(graph, name)
        for switch in switches:
            assert sorted(draft.contents(switch)) == sorted(descendants(graph, switch))
