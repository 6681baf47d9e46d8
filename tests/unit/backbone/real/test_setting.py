"""Machine settings that expire by themselves."""

from __future__ import annotations

import pytest

from netarena_network.real.reading import are_fleeting


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
def test_rules_that_match_on_time_or_rate_count_as_temporary(rule: str, fleeting: bool) -> None:
    text = (
        f'table ip filter {{\n\tchain FORWARD {{\n\t\tiifname "eth0" accept\n\t\t{rule}\n\t}}\n}}\n'
    )
    assert are_fleeting(text) == fleeting
