"""Leftovers of faults that were injected when the network was built."""

from __future__ import annotations

import pytest

from netarena_backbone.real.leftover import Trace, traces
from netarena_backbone.real.setting import FRR, Setting
from netarena_backbone.world.lab_spec import Edit, Recipe
from netarena_network.real.reading import unfold


def _ports(**lines: str) -> str:
    return "".join(f"interface {name}\n{line}exit\n" for name, line in lines.items())


_COST, _WRONG, _OTHER = (f" ip ospf cost {cost}\n" for cost in (10, 900, 12))
_KEY = " ip ospf authentication\n"


@pytest.mark.parametrize(
    ("before", "after", "now", "left"),
    [
        # a replaced line: the fault remains only while its line exists
        (_COST, _WRONG, _WRONG, True),
        (_COST, _WRONG, _OTHER, False),
        (_COST, _WRONG, _COST, False),
        # a removed line: the fault remains until the line exists again
        (_KEY, "", "", True),
        (_KEY + _COST, _COST, _OTHER, True),
        (_KEY, "", _KEY + _COST, False),
        # two added lines, one of which has been removed
        ("", _WRONG + _KEY, _KEY, True),
        ("", _WRONG + _KEY, "", False),
    ],
)
def test_fault_is_left_over_while_part_of_its_edit_is_configured(
    before: str, after: str, now: str, *, left: bool
) -> None:
    # the same line at another port is a different setting
    texts = [_ports(eth0=one, eth1=_WRONG + _KEY) for one in (before, after, now)]
    recipes = [Recipe(machine="r", frr=text) for text in texts]
    (found,) = traces([Edit(before=recipes[0], after=recipes[1])], ())
    assert found.machine == "r"
    assert found.is_left(Setting("", frozenset(unfold(FRR, texts[2])))) is left


_NEIGHBOUR = (
    "router bgp 1\n neighbor a remote-as 2\n neighbor a description x\n"
    " neighbor a password p\n neighbor a timers connect 1\n"
)
_AREA, _DOTTED = (f"interface a\n ip ospf area {area}\n" for area in ("266", "0.0.1.10"))
_BLACKHOLE, _NULL = (f"ip route 192.0.2.0/24 {name}\n" for name in ("blackhole", "Null0"))
_HELLO = "interface a\n ip ospf hello-interval 10\n"


@pytest.mark.parametrize(
    ("goal", "start", "now", "left"),
    [
        # a replaced line: the change is missing until the new line exists without the old one
        (_COST, _WRONG, _WRONG, True),
        (_COST, _WRONG, _OTHER, True),
        (_COST, _WRONG, _COST + _WRONG, True),
        (_COST, _WRONG, _COST, False),
        (_COST, _WRONG, _COST + _KEY, False),
        # two added lines, one of which is missing
        (_COST + _KEY, "", _COST, True),
        (_COST + _KEY, "", _COST + _KEY, False),
        # two removed lines, one of which still exists
        ("", _COST + _KEY, _KEY, True),
        ("", _COST + _KEY, "", False),
        # descriptions and connect delays may differ
        (_NEIGHBOUR, "router bgp 1\n", "router bgp 1\n neighbor a remote-as 2\n", True),
        (
            _NEIGHBOUR,
            "router bgp 1\n",
            "router bgp 1\n neighbor a remote-as 2\n neighbor a password p\n",
            False,
        ),
        ("router bgp 1\n", _NEIGHBOUR, "router bgp 1\n neighbor a description x\n", False),
        # an area is the same in both of its forms
        (_AREA, "", _DOTTED, False),
        (_DOTTED, "", _AREA, False),
        ("", _AREA, _DOTTED, True),
        # a route that drops packets is the same in both of its forms
        (_BLACKHOLE, "", _NULL, False),
        ("", _BLACKHOLE, _NULL, True),
        # FRR does not list default values
        (_HELLO, "interface a\n", "interface a\n", False),
    ],
)
def test_strict_edit_is_left_over_until_all_its_settings_are_configured(
    goal: str, start: str, now: str, *, left: bool
) -> None:
    recipes = [Recipe(machine="r", frr=text) for text in (goal, start)]
    (found,) = traces([Edit(before=recipes[0], after=recipes[1], strict=True)], ())
    first, then = (Setting("", frozenset(unfold(FRR, text))) for text in (start, now))
    assert found.shown_in(first).is_left(then) is left


def test_strict_edits_ignore_attributes_that_only_some_programs_set() -> None:
    plain = "address a 31 [(1, b'x'), (2, b'x')]"
    other = "address a 31 [(1, b'x'), (2, b'x'), (4, b'y'), (8, b'z')]"
    strict = Trace("r", frozenset(), frozenset({"address a 31 (2, b'x')"}), strict=True)
    assert not strict.is_left(Setting("", frozenset({plain})))
    assert not strict.is_left(Setting("", frozenset({other})))
    assert strict.is_left(Setting("", frozenset({other.replace("(2, b'x')", "(2, b'y')")})))
    assert strict.is_left(Setting("", frozenset({other.replace("31", "30")})))
    lenient = strict._replace(gone=frozenset({plain}), strict=False)
    assert lenient.is_left(Setting("", frozenset({other})))


def test_lines_never_shown_in_the_configuration_are_not_part_of_a_trace() -> None:
    before, after = (
        Recipe(machine="r", frr=f"interface a\n ip ospf network {kind}\n")
        for kind in ("point-to-point", "broadcast")
    )
    (found,) = traces([Edit(before=before, after=after)], ())
    silent, right = (frozenset(unfold(FRR, text)) for text in ("", before.frr or ""))
    shown = found.shown_in(Setting("", silent))
    assert shown.is_left(Setting("", silent))
    assert not shown.is_left(Setting("", right))


def test_service_files_are_compared_line_by_line() -> None:
    before = Recipe(machine="h", zone=("a 192.0.2.1", "b 192.0.2.2"), resolver="192.0.2.3")
    after = before.model_copy(update={"zone": ("b 192.0.2.2",), "resolver": "192.0.2.4"})
    (found,) = traces([Edit(before=before, after=after)], ())
    assert found.new == {"resolver: 192.0.2.4"}
    assert found.gone == {"resolver: 192.0.2.3", "zone: a 192.0.2.1"}
