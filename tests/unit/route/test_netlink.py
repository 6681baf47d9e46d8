"""Messages of netlink, without a kernel."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from netarena_route.netlink import attribute, attributes, nest


@given(st.dictionaries(st.integers(1, 100), st.binary(max_size=40)), st.binary(max_size=8))
def test_attributes_are_read_as_they_were_written(values, header):
    written = header + b"".join(attribute(kind, value) for kind, value in values.items())

    assert attributes(written, len(header)) == values


def test_nested_attributes_are_found_without_their_flag():
    inner = attribute(1, b"\x03")

    assert attributes(nest(12, inner)) == {12: inner}


@given(st.binary(max_size=64))
def test_what_is_no_attribute_ends_the_reading(noise):
    found = attributes(attribute(7, b"abc") + struct.pack("=HH", 0, 9) + noise)

    assert found == {7: b"abc"}
