"""What is set on a machine: how much later it acts, and what is left of it."""

from __future__ import annotations

import pytest

from netarena_route.real.backbone.setting import Setting, pause_s, trace, unfold

_MAP = "route-map ALL permit 10\nexit\n"
_BGP = "bgp route-map delay-timer 0\nrouter bgp 65000\n"
_OSPF = "router ospf\n timers throttle lsa all 0\n"


@pytest.mark.parametrize(
    ("daemon", "text", "later_s"),
    [
        ("bgpd", "router bgp 65000\n", 5.0),
        ("bgpd", "bgp route-map delay-timer 1\nrouter bgp 65000\n", 1.0),
        ("bgpd", _MAP, 0.0),
        ("zebra", _MAP, 0.0),
        ("zebra", f"{_MAP}ip protocol ospf route-map ALL\n", 5.0),
        ("zebra", f"zebra route-map delay-timer 9\n{_MAP}ip nht bgp route-map ALL\n", 9.0),
        ("ospfd", "router ospf\n timers throttle lsa all 0\n", 0.0),
        ("ospfd", "router ospf\n timers throttle lsa all 1500\n", 1.5),
        ("ospfd", "router ospf\n ospf router-id 192.0.2.1\n", 5.0),
        ("ospfd", "interface eth0\n", 0.0),
        ("ospfd", f"{_OSPF} summary-address 192.0.2.0/24 no-advertise\n", 5.0),
        ("ospfd", f"{_OSPF} aggregation timer 30\n summary-address 192.0.2.0/24\n", 30.0),
        ("ospfd", f"{_OSPF} aggregation timer 30\n", 0.0),
        ("ospfd", f"{_OSPF}interface eth0\n ip ospf mpls ldp-sync holddown 60\n", 60.0),
        ("zebra", "zebra work-queue 10000\n", 10.0),
        ("bgpd", f"{_BGP} neighbor 192.0.2.1 advertisement-interval 600\n", 600.0),
        (
            "bgpd",
            f"{_BGP} neighbor A advertisement-interval 600\n neighbor B advertisement-interval 9\n",
            600.0,
        ),
        ("bgpd", f"{_BGP}  neighbor 192.0.2.1 advertise-map A non-exist-map B\n", 60.0),
        (
            "bgpd",
            f"{_BGP} bgp conditional-advertisement timer 5\n neighbor A advertise-map B\n",
            5.0,
        ),
        ("bgpd", f"{_BGP} update-delay 90\n", 90.0),
        ("bgpd", f"bgp update-delay 90\n{_BGP}", 90.0),
        ("bgpd", f"{_BGP} coalesce-time 20000\n", 20.0),
        ("bgpd", f"{_BGP}  bgp dampening 1 750 2000 4\n", 60.0),
        ("bgpd", f"{_BGP}  bgp dampening\n", 900.0),
        ("staticd", "ip route 192.0.2.0/24 blackhole\n", 0.0),
    ],
)
def test_daemons_act_later_on_what_is_set(daemon: str, text: str, later_s: float) -> None:
    assert pause_s(daemon, text) == later_s


def _ports(**lines: str) -> Setting:
    text = "".join(f"interface {name}\n{line}exit\n" for name, line in lines.items())
    return Setting(text, 0.0, (), frozenset(unfold("ospfd", text)))


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
