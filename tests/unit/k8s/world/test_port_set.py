"""Sets of ports compared with Python's own sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from netarena_k8s.world.port_set import ALL, NONE, contains, difference, intersection, show, union
from tests.thorough import THOROUGH

PIECE = st.tuples(st.integers(1, 30), st.integers(1, 30)).map(lambda two: (min(two), max(two)))
PORTS = st.dictionaries(
    st.sampled_from(["TCP", "UDP"]), st.lists(PIECE, min_size=1, max_size=4)
).map(lambda pieces: union(*({key: (one,)} for key, ones in pieces.items() for one in ones)))


def spread(ports):
    return {(key, port) for key, ones in ports.items() for low, high in ones
            for port in range(low, high + 1)}  # fmt: skip


@THOROUGH
@given(PORTS, PORTS)
def test_port_set_operations_agree_with_python_sets(one, other):
    assert spread(union(one, other)) == spread(one) | spread(other)
    assert spread(intersection(one, other)) == spread(one) & spread(other)
    assert spread(difference(one, other)) == spread(one) - spread(other)
    assert union(one, NONE) == one
    # canonical form: equal sets compare equal
    assert union(difference(one, other), intersection(one, other)) == one
    assert difference(one, ALL) == NONE
    held = {(key, port) for key in ("TCP", "UDP") for port in range(32) if contains(one, key, port)}
    assert held == spread(one)


def test_port_sets_with_many_ranges_are_combined_in_linear_time():
    """Quadratic time would take hours."""
    odd = union({"TCP": tuple((port, port) for port in range(1, 65_536, 2))})
    even = difference(ALL, odd)
    assert len(even["TCP"]) == 32_767
    assert intersection(odd, even) == NONE
    assert union(odd, even) == {"TCP": ((1, 65_535),), "UDP": ALL["UDP"], "SCTP": ALL["SCTP"]}
    assert contains(even, "TCP", 65_534)
    assert not contains(odd, "TCP", 65_534)


def test_port_set_is_formatted_as_text():
    assert show(NONE) == "nothing"
    assert show({"UDP": ((1, 65535),), "TCP": ((80, 80), (90, 99))}) == "TCP 80, TCP 90-99, all UDP"
