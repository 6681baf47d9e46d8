"""What is set on a machine: what is left of it."""

from __future__ import annotations

import pytest

from netarena_route.real.backbone.setting import Setting, are_fleeting, trace, unfold


def _ports(**lines: str) -> Setting:
    text = "".join(f"interface {name}\n{line}exit\n" for name, line in lines.items())
    return Setting(text, frozenset(unfold("ospfd", text)))


_COST, _WRONG, _OTHER = (f" ip ospf cost {cost}\n" for cost in (10, 900, 12))
_KEY = " ip ospf authentication\n"


@pytest.mark.parametrize(
    ("before", "after", "now", "left"),
    [
        # in the place of something: as long as it is there itself, whatever came after it
        (_COST, _WRONG, _WRONG, True),
        (_COST, _WRONG, _OTHER, False),
        (_COST, _WRONG, _COST, False),
        # taken away: until it is there again
        (_KEY, "", "", True),
        (_KEY + _COST, _COST, _OTHER, True),
        (_KEY, "", _KEY + _COST, False),
        # two things, of which one is undone
        ("", _WRONG + _KEY, _KEY, True),
        ("", _WRONG + _KEY, "", False),
    ],
)
def test_what_is_left_of_what_was_set_is_told(
    before: str, after: str, now: str, *, left: bool
) -> None:
    # the same line at another port is another thing
    settings = [_ports(eth0=one, eth1=_WRONG + _KEY) for one in (before, after, now)]
    assert trace("r", *settings[:2]).is_left(settings[2]) is left


@pytest.mark.parametrize(
    ("rule", "fleeting"),
    [
        ("tcp dport 22 counter accept", False),
        ("ct state established,related accept", False),
        ("limit rate 5/minute burst 5 packets counter log", False),
        ('limit rate 5/minute counter log prefix "seen " level debug', False),
        ("limit rate 5/minute counter accept", True),
        ("limit rate 5/minute ct mark set 0x1 log", True),
        ('limit name "few" drop', True),
        ("quota over 9 bytes counter drop", True),
        ('meta hour "00:00:00"-"10:00:00" counter drop', True),
        ("meta random & 2147483647 < 1000 drop", True),
        ("numgen inc mod 3 0 drop", True),
        ("ct expiration 1-30 drop", True),
        ("xt match recent counter drop", True),
        ('xt match "hashlimit" counter accept', True),
        ("elements = { 10.0.0.1 timeout 30s }", True),
    ],
)
def test_rules_that_ask_for_the_time_or_how_much_are_there_for_a_while(
    rule: str, fleeting: bool
) -> None:
    text = (
        f'table ip filter {{\n\tchain FORWARD {{\n\t\tiifname "eth0" accept\n\t\t{rule}\n\t}}\n}}\n'
    )
    assert are_fleeting(text) == fleeting
