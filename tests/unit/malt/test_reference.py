from __future__ import annotations

import random

import pytest

from netarena_malt import topology as net
from netarena_malt.action import Removal, Selection, Update, act
from netarena_malt.network_builder import Draft
from netarena_malt.reference import WAYS, Reference, propose, resolve
from netarena_malt.replay import passages

SWITCH = "ju1.a1.m1.s2c1"  # its ports p2 and p3 have 2 and 4 Gbps, all others 1
PORT = f"{SWITCH}.p3"


@pytest.mark.parametrize(
    ("reference", "means"),
    [
        (Reference("root", net.EK_JUPITER), ["ju1"]),
        (Reference("holder", net.EK_RACK, SWITCH), ["ju1.a1.m1rack"]),
        (Reference("holder", net.EK_CONTROL_DOMAIN, PORT), ["ju1.a1.dom"]),
        (Reference("holder", net.EK_SUPERBLOCK, PORT), ["ju1.a1"]),
        (Reference("holder", net.EK_SPINEBLOCK, PORT), []),
        (Reference("largest", net.EK_PORT, SWITCH), [PORT]),
        (Reference("largest", net.EK_PORT, SWITCH, 1), [f"{SWITCH}.p2"]),
        # p1 and p10 to p16 are equal, so they are ordered by name
        (Reference("largest", net.EK_PORT, SWITCH, 3), [f"{SWITCH}.p10"]),
        (Reference("largest", net.EK_PORT, SWITCH, 16), []),
        (Reference("smallest", net.EK_PORT, SWITCH), [f"{SWITCH}.p1"]),
        (Reference("smallest", net.EK_PORT, SWITCH, 15), [PORT]),
        (Reference("largest", net.EK_PACKET_SWITCH, "ju1.a1.m1rack"), [SWITCH]),
        (Reference("largest", net.EK_AGG_BLOCK, "ju1.a1"), ["ju1.a1.m1"]),
        (Reference("named", net.EK_PORT, SWITCH, 1), [f"{SWITCH}.p10"]),
        (Reference("named", net.EK_PORT, SWITCH, -1), [f"{SWITCH}.p9"]),
        (Reference("named", net.EK_SPINEBLOCK, "ju1", 2), ["ju1.s3"]),
        (Reference("of_all", net.EK_RACK, rank=16), ["ju1.s1rack"]),
        (Reference("next", net.EK_PORT, f"{SWITCH}.p1"), [f"{SWITCH}.p10"]),
        (Reference("next", net.EK_PORT, f"{SWITCH}.p9"), []),
        (Reference("previous", net.EK_PACKET_SWITCH, "ju1.a1.m1.s3c1"), ["ju1.a1.m1.s2c8"]),
        (Reference("next", net.EK_SUPERBLOCK, "ju1.a4"), []),
        (Reference("next", net.EK_RACK, "ju1.a1.m1rack"), []),
        (Reference("only", net.EK_PORT, SWITCH, bps=2e9), [f"{SWITCH}.p2"]),
        (Reference("only", net.EK_PORT, SWITCH, bps=3e9), []),
    ],
)
def test_reference_resolves_to_the_described_nodes(reference: Reference, means: list[str]) -> None:
    if reference.way == "next" and reference.kind == net.EK_RACK:
        with pytest.raises(ValueError, match="is not in list"):
            resolve(Draft(), reference)  # a rack has no parent, so it has no siblings
    else:
        assert resolve(Draft(), reference) == means


def test_reference_that_fits_several_nodes_resolves_to_all_of_them() -> None:
    draft = Draft()
    block = "ju1.a1.m1"
    assert len(resolve(draft, Reference("most_ports", net.EK_PACKET_SWITCH, block))) == 16
    assert len(resolve(draft, Reference("only", net.EK_PORT, SWITCH, bps=1e9))) == 14
    draft.add_port(SWITCH, f"{SWITCH}.p17", 1e9)
    assert resolve(draft, Reference("most_ports", net.EK_PACKET_SWITCH, block)) == [SWITCH]
    assert len(resolve(draft, Reference("sibling", net.EK_PORT, PORT))) == 16
    for port in list(draft.contents(SWITCH)):
        if port not in {PORT, f"{SWITCH}.p2"}:
            draft.remove_port(port)
    assert resolve(draft, Reference("sibling", net.EK_PORT, PORT)) == [f"{SWITCH}.p2"]


def test_every_node_has_references_that_fit_only_this_node() -> None:
    rng, draft = random.Random(3), Draft()
    ways: set[str] = set()
    # without this port, several switches have the most ports
    draft.add_port(SWITCH, f"{SWITCH}.p17", 1e9)
    for kind in net.NODE_KINDS:
        for name in [SWITCH] * 40 + [PORT] * 20 if kind == net.EK_PORT else draft.names(kind)[:20]:
            reference = next(propose(draft, name, rng), None)
            assert reference is not None, name
            assert resolve(draft, reference) == [name]
            assert reference.anchor != name
            ways.add(reference.way)
    assert ways == set(WAYS) - {"sibling"}


def test_reference_by_size_is_not_used_among_many_nodes() -> None:
    rng, draft = random.Random(3), Draft()
    for _ in range(50):  # 64 switches with a thousand ports each: too many to add up
        for reference in propose(draft, SWITCH, rng):
            ranked = reference.way in {"largest", "smallest"}
            assert not ranked or reference.anchor != "ju1.a1.dom"


def test_node_without_a_distinctive_property_is_described_by_position() -> None:
    draft = Draft()
    for switch in draft.switches("ju1.s1rack"):
        draft.remove_switch(switch)
    (by_place,) = propose(draft, "ju1.s1rack", random.Random(1))
    assert by_place.way == "of_all"


def test_reference_is_right_before_and_after_each_change_that_a_reader_may_assume() -> None:
    draft, port = Draft(), f"{SWITCH}.p2"
    faster = act("update", Update(select=Selection(name=port), to_bps=9e9))
    gone = act("remove", Removal(names=(PORT,)))
    for change, ways in (
        (faster, {"only", "largest"}),
        (gone, {"largest", "previous"}),
    ):
        (_, (later,)) = passages([change, gone], draft)
        before, after = (
            {r.way for r in propose(draft, port, random.Random(1), views)}
            for views in ((), (later,))
        )
        assert before - after == ways
