"""Sets of ports against Python's own sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from netarena_k8s.stretch import ALL, NONE, difference, intersection, show, union

PIECE = st.tuples(st.integers(1, 30), st.integers(1, 30)).map(lambda two: (min(two), max(two)))
PORTS = st.dictionaries(
    st.sampled_from(["TCP", "UDP"]), st.lists(PIECE, min_size=1, max_size=4)
).map(lambda pieces: union(*({key: (one,)} for key, ones in pieces.items() for one in ones)))


def spread(ports):
    return {(key, port) for key, ones in ports.items() for low, high in ones
            for port in range(low, high + 1)}  # fmt: skip


@given(PORTS, PORTS)
def test_they_are_sets(one, other):
    assert spread(union(one, other)) == spread(one) | spread(other)
    assert spread(intersection(one, other)) == spread(one) & spread(other)
    assert spread(difference(one, other)) == spread(one) - spread(other)
    assert union(one, NONE) == one
    # one form for each set: what is equal compares equal
    assert union(difference(one, other), intersection(one, other)) == one
    assert difference(one, ALL) == NONE


def test_they_are_shown():
    assert show(NONE) == "nothing"
    assert show({"UDP": ((1, 65535),), "TCP": ((80, 80), (90, 99))}) == "TCP 80, TCP 90-99, all UDP"
