"""IP blocks, with the responses of a real API server of Kubernetes 1.34.2 to each block."""

from __future__ import annotations

import string
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena_k8s.embedded.apiserver.validity import find_flaws
from netarena_k8s.world.block import Block, network_of
from netarena_k8s.world.model import Policy, outside_of
from netarena_k8s.world.policy import in_block
from tests.thorough import THOROUGH

TOLD = {
    "ambiguous": 'CIDR value "{}" is ambiguous in this context (should be "{}" or "{}"?)',
    "non-standard": (
        'non-standard CIDR value "{}" will be considered invalid in a future Kubernetes release: '
        'use "{}"'
    ),
    "canonical": 'IPv6 CIDR value "{}" should be in RFC 5952 canonical format ("{}")',
}
#: the server's text and warnings; None if it refuses the block
SAID = [
    ("010.244.0.0/16", [("non-standard", "10.244.0.0/16")]),
    (
        "010.244.000.7/16",
        [("ambiguous", "10.244.0.0/16", "10.244.0.7/32"), ("non-standard", "10.244.0.0/16")],
    ),
    ("10.244.0.0/016", [("non-standard", "10.244.0.0/16")]),
    (
        "10.244.0.7/016",
        [("ambiguous", "10.244.0.0/16", "10.244.0.7/32"), ("non-standard", "10.244.0.0/16")],
    ),
    ("::ffff:10.244.0.0/112", [("non-standard", "10.244.0.0/16")]),
    ("::ffff:010.244.0.0/112", [("non-standard", "10.244.0.0/16")]),
    (
        "::ffff:10.244.0.9/112",
        [("ambiguous", "10.244.0.0/16", "10.244.0.9/128"), ("non-standard", "10.244.0.0/16")],
    ),
    ("::ffff:0:0/96", [("non-standard", "0.0.0.0/0")]),
    (
        "::ffff:0:0/90",
        [("ambiguous", "::ffc0:0:0/90", "0.0.0.0/128"), ("non-standard", "::ffc0:0:0/90")],
    ),
    ("2001:0db8::/32", [("canonical", "2001:db8::/32")]),
    ("2001:DB8::/32", [("canonical", "2001:db8::/32")]),
    ("::10.1.2.3/120", [("ambiguous", "::a01:200/120", "::a01:203/128")]),
    ("0x10.1.1.0/24", None),
    ("010.244.0/24", None),
    ("0000010.1.1.0/24", [("non-standard", "10.1.1.0/24")]),
    ("256.1.1.0/24", None),
    ("00000::1/128", [("non-standard", "::1/128")]),
    ("2001:db8:0:0:0:0:0:0/32", [("canonical", "2001:db8::/32")]),
    ("2001:db8::/032", [("non-standard", "2001:db8::/32")]),
    ("10.1.1.0/+24", None),
    ("10.1.1.0/0000024", [("non-standard", "10.1.1.0/24")]),
    ("1.2.3.4/33", None),
]


@pytest.mark.parametrize(("text", "said"), SAID)
def test_ip_block_is_accepted_or_warned_about_like_on_a_real_server(text, said):
    if said is None:
        with pytest.raises(ValueError, match=r"not an address block|not appear"):
            network_of(text)
        return
    assert Block(text).warnings() == [TOLD[what].format(text, *more) for what, *more in said]


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("10.9.8.0/24", "10.9.8.0/24"),
        ("10.9.8.7/24", "10.9.8.0/24"),
        ("010.9.08.000/024", "10.9.8.0/24"),
        ("::ffff:10.9.8.7/120", "10.9.8.0/24"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::ffff:0:0/95", "::fffe:0:0/95"),
        ("::/0", "::/0"),
        ("0000:0000::0001/128", "::1/128"),
    ],
)
def test_ip_block_is_read_as_its_network(text, network):
    assert network_of(text) == ip_network(network)


def test_address_is_matched_against_an_ip_block_and_its_exceptions():
    block = {"cidr": "010.0.0.0/8", "except": ["::ffff:10.1.0.0/112"]}
    assert [in_block(block, ip) for ip in ("10.2.0.1", "10.1.0.1", "8.2.0.1")] == [
        True,
        False,
        False,
    ]
    known = outside_of([Policy(name="x", spec={"ingress": [{"from": [{"ipBlock": block}]}]})])
    assert {"9.255.255.255", "10.0.0.0", "10.0.255.255", "10.1.0.0", "10.2.0.0"} <= set(known)


def flaws(cidr, *cuts):
    peer = {"ipBlock": {"cidr": cidr, "except": list(cuts)}}
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [peer]}]}
    policy = {"metadata": {"name": "x", "namespace": "ns"}, "spec": spec}
    return find_flaws(policy)


@pytest.mark.parametrize(
    ("cidr", "cut", "fits"),
    [
        ("::FFFF:10.244.0.0/112", "::ffff:10.244.1.0/120", True),
        ("10.0.0.0/8", "::ffff:10.244.0.0/112", True),
        # prefix lengths are compared as written
        ("10.0.0.0/8", "::ffff:10.244.0.0/104", True),
        ("::ffff:10.0.0.0/104", "10.244.0.0/16", False),
        ("10.0.0.0/8", "010.244.0.0/16", True),
        ("::1.2.3.0/120", "::1.2.03.0/121", True),
        ("10.0.0.0/8", "11.0.0.0/16", False),
        ("10.0.0.0/8", "::/16", False),
    ],
)
def test_exception_of_an_ip_block_is_validated_like_on_a_real_server(cidr, cut, fits):
    wrong = flaws(cidr, cut)
    assert [message.partition(": ")[2] for _, message, _ in wrong] == (
        [] if fits else [f'"{cut}": must be a strict subset of `cidr`']
    )


@THOROUGH
@given(st.text(string.hexdigits + ".:/%", max_size=30) | st.from_regex(r"[0-9.]{7,20}/\d{1,3}"))
def test_accepted_ip_block_can_be_evaluated(text):
    """Text that is not accepted is reported as a flaw of the policy."""
    try:
        block = Block(text)
    except ValueError:
        assert flaws(text)
        return
    assert not flaws(text)
    assert block.network.network_address in block.network
    assert all(text in told for told in block.warnings())
