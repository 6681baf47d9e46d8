"""Wrong values of faults look like values of the intended state."""

from __future__ import annotations

import re

from netarena_backbone.fault.table import KINDS
from netarena_backbone.world import odd
from netarena_backbone.world.model import World


def test_wrong_keys_and_passwords_have_the_form_of_drawn_ones() -> None:
    for number in range(200):
        word = odd.key_of(number).rstrip("0123456789")
        assert word in odd.WORDS
        assert 100 <= int(odd.key_of(number).removeprefix(word)) < 1000
        word, _, digits = odd.password_of(number).partition("-")
        assert word in odd.WORDS
        assert 1000 <= int(digits) < 10000


def test_keys_and_areas_and_passwords_of_faults_have_the_form_of_drawn_ones(world: World) -> None:
    words = "|".join(odd.WORDS)
    for kind in ("ospf_authentication", "ospf_area", "bgp_password"):
        for method in KINDS[kind]:
            for change in method.changes(world):
                edited = change.edit(world).router(change.machine)
                for port in (one.ospf for one in edited.ports if one.ospf):
                    assert port.area in ("0", *odd.AREAS)
                    assert not port.key or re.fullmatch(f"({words})[0-9]{{3}}", port.key)
                    assert port.key_id in odd.KEY_IDS
                for peer in edited.bgp.peers:
                    assert not peer.password or re.fullmatch(f"({words})-[0-9]{{4}}", peer.password)
