"""Convergence of a backbone, decided from successive observations of its daemons."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from netarena_backbone.real import convergence, frr

OSPF, BGP = ("r1", "ospfd"), ("r1", "bgpd")


class Clock:
    """A clock that advances only when a test waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class World:
    """Fake terminals of one router; ``tell`` returns the daemons' answers at a given time (s)."""

    def __init__(self, clock: Clock, tell: Any) -> None:
        self.clock = clock
        self.tell = tell
        self.looks = 0
        self.late: set[frr.Who] = set()
        self.cleared: tuple[float, Any] = (1e9, {})
        self.clears: list[tuple[float, Any]] = []
        self.ends: Mapping[str, float] = {}
        self.timed = "show thread timers"
        self.age: Callable[[], int] = lambda: 0

    def ask(self, questions: Mapping[frr.Who, Sequence[str]]) -> dict[frr.Who, list[frr.Answer]]:
        if any(one.startswith("clear") for asked in questions.values() for one in asked):
            self.cleared = self.clock.now - 100.0, dict(questions)
            self.clears.append(self.cleared)
            return {}
        self.looks += 1
        told = self.tell(self.clock.now - 100.0)
        found = {who: [frr.Answer(json.dumps(one), 0) for one in told[who]] for who in told}
        for who, asked in questions.items():
            if asked[0].endswith("timers") and who in found:
                known = asked[0] == self.timed
                found[who].insert(0, frr.Answer(self.timers() if known else "", int(not known)))
                if who[1] == "ospfd":
                    found[who].insert(1, frr.Answer(json.dumps({"lsaAge": self.age()}), 0))
        return found

    def timers(self) -> str:
        """Return a daemon's list of timers, which end at the times (s) in ``ends``."""
        lines = ["Thread timers for bgpd:", "", "Showing timers for default", "-----"]
        for name, end in self.ends.items():
            left = end - (self.clock.now - 100.0)
            clock = f"00:{left // 60:02.0f}:{left % 60:06.3f}"
            if left > 0:
                lines.append(f"  {f'({name})':<50}{clock if left < 9e9 else '45d12h15m'}")
        return "\n".join(lines)


def ospf(state: str, due_ms: float = 3000, **more: Any) -> list[Any]:
    row = {"nbrState": state, "deadTimeMsecs": due_ms, "ifaceName": "eth0:10.1.0.1"}
    row |= {"ifaceAddress": "10.1.0.2", **more}
    return [
        {"neighbors": {"10.0.0.2": [row]} if state else {}},
        {"interfaces": {"eth0": {"area": "0.0.0.0", "state": "Point-To-Point"}}},
        {"routerId": "10.0.0.1", "areas": {"0.0.0.0": {"lsaNumber": 2}}},
    ]


def bgp(state: str, received: int = 0, **more: Any) -> list[Any]:
    peer = {"state": state, "msgRcvd": received, "inq": 0, "outq": 0}
    return [{"peers": {"10.0.0.2": peer}}, {"10.0.0.2": more}]


@pytest.fixture(name="clock")
def _clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(convergence, "time", clock)
    return clock


def of(world: World, kernel: Any = lambda: b"", delayed_s: Any = tuple) -> convergence.Settling:
    """Return a ``Settling`` for one router, whose daemons' terminals are the fake ``world``."""
    terminals = cast("frr.Terminals", world)
    return convergence.Settling(terminals, {"r1": ("ospfd", "bgpd")}, kernel, delayed_s)


def waits(
    clock: Clock,
    tell: Any,
    *,
    changed: bool = True,
    kernel: Any = None,
    delayed_s: Any = tuple,
    **more: Any,
) -> tuple[bool, float, str]:
    settling = of(World(clock, tell), kernel or (lambda: b""), delayed_s)
    return *wait(settling, clock, changed=changed, **more), settling.why


def wait(
    settling: convergence.Settling, clock: Clock, *, changed: bool, **more: Any
) -> tuple[bool, float]:
    began = clock.now
    return settling.wait(changed=changed, **more), clock.now - began


def about(seconds: float) -> Any:
    """Return a value that equals ``seconds`` within one observation interval (0.1 s)."""
    return pytest.approx(seconds, abs=0.11)


def hellos(now: float, last: float | None = None) -> float:
    """Return the remaining time (ms) of a dead timer of 3 s; a hello arrives each second."""
    return 3000 - 1000 * (now - (int(now) if last is None else last))


def paused(world: World, now: float, peer: str = "") -> dict[str, float]:
    """Return the time until the next retry: 0 within a second after a clear, otherwise a minute."""
    told = [
        at for at, orders in world.clears if any(peer in line for line in orders[BGP]) and at <= now
    ]
    return {"nextStartTimerDueInMsecs": 0 if now < max(told, default=0.0) + 1.0 else 60_000}


def test_wait_for_a_neighbour_ends_if_it_sent_a_message_recently(clock: Clock) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        return {OSPF: ospf("Full", hellos(now)), BGP: bgp("Established", int(now))}

    assert waits(clock, tell, changed=False) == (True, about(1.1), "")


def test_wait_for_a_silent_neighbour_ends_when_its_timer_expires(clock: Clock) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        return {
            OSPF: ospf("Full", hellos(now, 0)) if now < 3 else ospf(""),
            BGP: bgp("Established", int(now)),
        }

    # the path to the session's peer may have led through that neighbour, so the wait continues
    # until one more message arrives
    assert waits(clock, tell) == (True, about(4.0), "")


def test_wait_for_a_session_with_a_new_path_ends_at_a_keepalive_or_its_expiry(clock: Clock) -> None:
    """The last keepalive came before the route of the session's packets changed."""

    def tell(now: float) -> dict[frr.Who, list[Any]]:
        session = bgp("Established", 1 + (now >= 0.9)) if now < 3.9 else bgp("Active")
        return {OSPF: ospf("Full", hellos(now)), BGP: session}

    def kernel() -> bytes:
        return b"" if clock.now < 101.0 else b"moved"

    settled, passed_s, _ = waits(clock, tell, kernel=kernel)
    assert settled
    assert passed_s > 3.9


def test_session_in_idle_backoff_is_retried_immediately_after_a_change(clock: Clock) -> None:
    """bgpd doubles its retry interval after each failure."""

    def tell(now: float) -> dict[frr.Who, list[Any]]:
        began, due_s = world.cleared[0], 30.0
        if now >= began:
            due_s = began + 1.0 - now
        peer = bgp("Idle", nextStartTimerDueInMsecs=1000 * due_s)
        there = bgp("Established", int(10 * now))
        return {OSPF: ospf("Full", hellos(now)), BGP: there if due_s < 0 else peer}

    world = World(clock, tell)
    settling = of(world)
    settled, took_s = wait(settling, clock, changed=True)
    assert world.cleared == (0.0, {BGP: ["clear bgp ipv4 unicast 10.0.0.2"]})
    assert (settled, took_s) == (True, about(2.0))
    # after a command that changes nothing, no session is awaited or retried
    world.cleared = 1e9, {}
    clock.now = 100.0
    settling._failing = {("r1", "bgp", "10.0.0.2")}
    assert wait(settling, clock, changed=False) == (True, about(1.1))
    assert not world.cleared[1]


def test_session_that_ends_shortly_after_a_change_is_retried_immediately(clock: Clock) -> None:
    """For example, all sessions restart after a change of the router id."""

    def tell(now: float) -> dict[frr.Who, list[Any]]:
        began, due_s = world.cleared[0], 9.0 - now
        if now >= began:
            due_s = began + 1.0 - now
        peer = bgp("Idle", nextStartTimerDueInMsecs=1000 * due_s)
        there = bgp("Established", int(10 * now))
        return {OSPF: ospf("Full", hellos(now)), BGP: there if now < 0.4 or due_s < 0 else peer}

    world = World(clock, tell)
    settling = of(world)
    settled, took_s = wait(settling, clock, changed=True)
    assert settled
    assert world.cleared[0] == about(0.5)
    assert took_s < 3.0


@pytest.mark.parametrize(
    ("due_s", "retried", "passed_s"), [(3.0, False, 5.0), (9.0, True, 4.0)], ids=["soon", "far"]
)
def test_session_is_retried_after_the_last_route_change_unless_a_retry_is_due_soon(
    due_s: float, retried: bool, passed_s: float, clock: Clock
) -> None:
    """Attempts before a path to the peer existed say nothing about the next attempt."""

    def tell(now: float) -> dict[frr.Who, list[Any]]:
        began = world.cleared[0] if world.cleared[0] < 1e9 else 0.0
        # retries start one second after the clear and repeat every due_s; a path exists from 2 s on
        tries = [began + 1.0 + n * due_s for n in range(20)]
        if any(2.0 < one <= now for one in tries):
            return {OSPF: ospf("Full", hellos(now)), BGP: bgp("Established", int(10 * now))}
        due = min(one for one in tries if one > now) - now
        peer = bgp("Active", nextConnectTimerDueInMsecs=1000 * due)
        return {OSPF: ospf("Full", hellos(now)), BGP: peer}

    world = World(clock, tell)
    settling = convergence.Settling(
        cast("frr.Terminals", world),
        {"r1": ("ospfd", "bgpd")},
        lambda: b"" if clock.now < 102.0 else b"a way",
        tuple,
    )
    assert wait(settling, clock, changed=True) == (True, about(passed_s))
    assert settling.last.neighbours == {("r1", "ospf", "eth0"), ("r1", "bgp", "10.0.0.2")}
    assert (world.cleared[0] > 2.0) == retried


@pytest.mark.parametrize(("losses", "there"), [(1, True), (9, False)], ids=["once", "ever"])
def test_session_with_colliding_retries_is_retried_again(
    losses: int, there: bool, clock: Clock
) -> None:
    """A session that never stops flapping is not retried."""

    def tell(now: float) -> dict[frr.Who, list[Any]]:
        # each session stays established for less than an observation interval
        lost = min(losses, max(0, int((now - 0.3) / 1.5)))
        if lost == losses and now > 3.3:
            return {OSPF: ospf("Full", hellos(now)), BGP: bgp("Established", int(10 * now))}
        peer = bgp("Idle", nextStartTimerDueInMsecs=0, connectionsDropped=lost)
        return {OSPF: ospf("Full", hellos(now)), BGP: peer}

    settling = of(World(clock, tell))
    assert wait(settling, clock, changed=True) == (True, about(4.0 if there else 5.4))
    assert (("r1", "bgp", "10.0.0.2") in settling.last.neighbours) == there


@pytest.mark.parametrize(
    ("own", "state", "failed", "told"),
    [
        ("10.0.0.1", "Idle", False, True),
        ("10.0.0.3", "Idle", False, False),
        ("10.0.0.1", "OpenSent", False, False),
        ("10.0.0.1", "Idle", True, False),
    ],
    ids=["one end", "the other end", "attempt under way", "failed before"],
)
@pytest.mark.parametrize("changed", [True, False])
def test_session_ended_by_both_ends_is_retried_immediately_by_only_one_end(
    own: str, state: str, failed: bool, told: bool, changed: bool, clock: Clock
) -> None:
    """The result is the same after a plain clear, which changes no setting."""

    def tell(now: float) -> dict[frr.Who, list[Any]]:
        far = {"hostLocal": own, "hostForeign": "10.0.0.2", "connectionsDropped": int(now > 1.5)}
        peer = bgp(state if now > 1.5 else "Idle", nextStartTimerDueInMsecs=0, **far)
        return {OSPF: ospf("Full", hellos(now)), BGP: peer}

    world = World(clock, tell)
    settling = of(world)
    settling._failing = {("r1", "bgp", "10.0.0.2")} if failed else set()
    assert wait(settling, clock, changed=changed)[0]
    # after a change, a failed session is cleared once
    told |= changed and failed
    later = [at for at, _ in world.clears if at > 0.1]
    assert later == ([pytest.approx(1.85, abs=0.15)] if told else [])
    assert len(world.clears) - len(later) == (changed or not failed)


def test_wait_for_a_session_is_longer_if_its_other_end_retries_later(clock: Clock) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        told_s = [at for at, _ in world.clears if at > 1.5]
        # retried one second after the clear, the session is established 0.9 s later
        if told_s and now > told_s[0] + 1.9:
            return {OSPF: ospf("Full", hellos(now)), BGP: bgp("Established", int(10 * now))}
        ends = {"hostLocal": "10.0.0.1", "hostForeign": "10.0.0.2"}
        lost = {"nextStartTimerDueInMsecs": 0, "connectionsDropped": int(now > 1.5)}
        return {OSPF: ospf("Full", hellos(now)), BGP: bgp("Idle", **ends, **lost)}

    world = World(clock, tell)
    settling = of(world)
    assert wait(settling, clock, changed=True)[0]
    assert ("r1", "bgp", "10.0.0.2") in settling.last.neighbours


@pytest.mark.parametrize("peer", ["10.0.0.2", "eth0"])
@pytest.mark.parametrize("known", [True, False])
def test_wait_does_not_include_a_retry_that_cannot_succeed(
    peer: str, known: bool, clock: Clock
) -> None:
    """The session has no address, or fails while another neighbour is missing."""

    def tell(now: float) -> dict[frr.Who, list[Any]]:
        row = {"state": "Idle", "msgRcvd": 0, "inq": 0, "outq": 0}
        return {
            OSPF: ospf("Full", hellos(now)),
            BGP: [{"peers": {peer: row}}, {peer: paused(world, now)}],
        }

    def kernel() -> bytes:
        return b"" if clock.now < 101.5 else b"moved"

    world = World(clock, tell)
    settling = of(world, kernel)
    more = {"neighbours": {("r1", "ospf", "eth0"), ("r1", "ospf", "eth1")}} if known else {}
    settled, passed_s = wait(settling, clock, changed=True, **more)
    assert settled
    # a session that can be cleared is cleared, at 1.9 s
    is_told = peer == "10.0.0.2" and not known
    assert passed_s == about(1.1 if known else 3.9 if is_told else 2.0)
    assert any(at > 1.0 for at, _ in world.clears) == is_told


@pytest.mark.parametrize("moves_s", [12.5, 14.5, 15.5])
def test_retries_after_a_late_change_are_not_charged_to_the_agent(
    moves_s: float, clock: Clock
) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        return {OSPF: ospf("Full", hellos(now)), BGP: bgp("Idle", **paused(world, now))}

    def kernel() -> bytes:
        # the network is not settled before this time
        now = clock.now - 100.0
        return str(now).encode() if now < moves_s else b"moved"

    world = World(clock, tell)
    settled, passed_s = wait(of(world, kernel), clock, changed=True)
    assert settled == (moves_s < 15.0)
    assert passed_s < 20.2


@pytest.mark.parametrize(("moment_s", "settles"), [(0.1, True), (1.0, False)])
def test_short_timer_does_not_count_as_unsettled(
    moment_s: float, settles: bool, clock: Clock
) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        found = ospf("Full", hellos(now))
        if 15.01 < now <= 15.01 + moment_s:
            found[2]["spfTimerDueInMsecs"] = 1
        return {OSPF: found, BGP: bgp("Idle", **paused(world, now))}

    world = World(clock, tell)
    moves = iter(range(1000))
    settling = of(world, lambda: str(next(moves)).encode() if clock.now < 114.5 else b"moved")
    settled, passed_s = wait(settling, clock, changed=True)
    assert settled == settles
    assert (passed_s > 16.0) == settles


def test_session_with_an_imminent_retry_is_not_cleared_again_when_another_session_fails(
    clock: Clock,
) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        rows = {
            peer: {"state": "Established" if now < until else "Idle", "msgRcvd": int(10 * now)}
            for peer, until in (("10.0.0.2", 0.0), ("10.0.0.3", 0.8), ("10.0.0.4", 1.6))
        }
        due = {peer: paused(world, now, peer) for peer in rows}
        return {OSPF: ospf("Full", hellos(now)), BGP: [{"peers": rows}, due]}

    world = World(clock, tell)
    assert wait(of(world), clock, changed=True)[0]
    told = [order for _, orders in world.clears for order in orders[BGP]]
    # when the last session fails, the first is cleared again; the second is not, because its own
    # retry is due soon
    assert [told.count(f"clear bgp ipv4 unicast 10.0.0.{n}") for n in (2, 3, 4)] == [2, 1, 1]


@pytest.mark.parametrize(
    ("began_s", "late", "told_s"),
    [
        pytest.param(-1.0, False, [0.5], id="session was established before the change"),
        pytest.param(0.1, False, [0.0], id="session was established after the change"),
        pytest.param(-1.0, True, [], id="another daemon has not answered"),
    ],
)
def test_session_that_only_one_end_considers_established_is_cleared_at_that_end_too(
    began_s: float, late: bool, told_s: list[float], clock: Clock
) -> None:
    """Until its session expires, this end refuses new connection attempts of the other end."""

    def tell(now: float) -> dict[frr.Who, list[Any]]:
        over = [at for at, _ in world.clears if at > began_s]
        state = "Established" if now >= began_s and not over else "Idle"
        ends = {"hostLocal": "10.0.0.1", "hostForeign": "10.0.0.2", "bgpState": state}
        answers = {BGP: bgp(state, int(now), **ends)}
        return answers if late else {OSPF: ospf("Full", hellos(now)), **answers}

    world = World(clock, tell)
    assert wait(of(world), clock, changed=True)[0]
    assert [at for at, _ in world.clears] == [about(at) for at in told_s]


def test_stale_end_of_a_session_is_cleared_again_after_a_change(
    clock: Clock,
) -> None:
    """The other end has no session that is awaited; otherwise that end would be cleared first."""

    def tell(now: float) -> dict[frr.Who, list[Any]]:
        told = max((at for at, _ in world.clears), default=-9.0)
        state = "Established" if now >= told + 1.0 else "Idle"
        ends = {"hostLocal": "10.0.0.1", "hostForeign": "10.0.0.2", "bgpState": state}
        return {OSPF: ospf("Full", hellos(now)), BGP: bgp(state, int(now), **ends)}

    def kernel() -> bytes:
        return b"" if clock.now < 102.0 else b"a way"

    world = World(clock, tell)
    assert wait(of(world, kernel), clock, changed=True)[0]
    assert [at for at, _ in world.clears] == [about(0.5), about(3.0)]


def test_session_that_waits_for_a_lost_open_message_is_cleared(clock: Clock) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        told_s = [at for at, _ in world.clears if at > 2.0]
        is_there = bool(told_s) and now > told_s[-1] + 1.0
        peer = bgp("Established", int(10 * now)) if is_there else bgp("OpenSent")
        return {OSPF: ospf("Full", hellos(now)), BGP: peer}

    def kernel() -> bytes:
        return b"" if clock.now < 102.0 else b"a way"

    world = World(clock, tell)
    settling = of(world, kernel)
    assert wait(settling, clock, changed=True)[0]
    assert ("r1", "bgp", "10.0.0.2") in settling.last.neighbours


@pytest.mark.parametrize(("prefixes", "settles"), [(0, True), (3, False)])
def test_flapping_session_counts_as_unsettled_only_if_it_received_routes(
    prefixes: int, settles: bool, clock: Clock
) -> None:
    """The session flaps forever, and only one end reports it as established."""

    def tell(now: float) -> dict[frr.Who, list[Any]]:
        far = {"bgpState": "Established", "hostLocal": "10.0.0.1", "hostForeign": "10.0.0.2"}
        state = "Established" if int(now) % 4 else "Idle"
        told = bgp(state, int(now), **{**far, "bgpState": state})
        told[0]["peers"]["10.0.0.2"]["pfxRcd"] = prefixes
        return {OSPF: ospf("Full", hellos(now)), BGP: told}

    settled, passed_s, _ = waits(clock, tell)
    assert settled == settles
    assert (passed_s < 4.0) == settles


def test_session_is_counted_if_both_ends_consider_it_established() -> None:
    look = convergence.Look(0.0)
    look.ends = {("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.1")}
    ends = {"hostLocal": "10.0.0.1", "hostForeign": "10.0.0.2"}
    answers = [frr.Answer(json.dumps(one), 0) for one in bgp("Established", **ends)]
    convergence._read_bgp("r1", answers, look)
    assert look.neighbours == {("r1", "bgp", "10.0.0.2")}
    look.ends.remove(("10.0.0.2", "10.0.0.1"))
    look.neighbours.clear()
    convergence._read_bgp("r1", answers, look)
    assert not look.neighbours
    assert not look.failing  # the other end retries the session


def test_wait_includes_the_database_exchange_of_a_restarting_ospf_neighbour(clock: Clock) -> None:
    """The adjacency is down when the command ends, for example after an interface reset."""

    def tell(now: float) -> dict[frr.Who, list[Any]]:
        state = "" if now < 0.5 else "Exchange" if now < 3.0 else "Full"
        return {OSPF: ospf(state, hellos(now)), BGP: bgp("Established", int(now))}

    assert waits(clock, tell) == (True, about(4.0), "")


@pytest.mark.parametrize(("again_s", "wait_s"), [(1, 5.4), (5, 7.1), (65_535, 12.1)])
def test_wait_includes_the_repetition_of_a_lost_ospf_packet(
    again_s: int, wait_s: float, clock: Clock
) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        answers = ospf("ExStart/-", hellos(now))
        answers[1]["interfaces"]["eth0"]["timerRetransmitSecs"] = again_s
        return {OSPF: answers, BGP: bgp("Established", int(now * 2))}

    settled, took_s, _ = waits(clock, tell)
    assert settled
    assert took_s == about(wait_s)


@pytest.mark.parametrize("name", ["eth0", "10.0.0.2 soft", "fe80::1", "*"])
def test_session_with_an_invalid_address_is_never_cleared(name: str) -> None:
    assert not convergence._is_address(name)


def test_time_without_cpu_for_a_daemon_does_not_count_as_settled(clock: Clock) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        return {OSPF: ospf("Full", hellos(now)), BGP: bgp("Established", int(now))}

    def busy() -> list[float]:
        return [0.0, (clock.now - 100.0) / 2]

    assert waits(clock, tell, delayed_s=busy) == (True, about(2.2), "")


def test_wait_includes_only_expected_neighbours_if_they_are_known(clock: Clock) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        return {
            OSPF: ospf("Full", hellos(now, 0)) if now < 3 else ospf(""),
            BGP: bgp("Active", nextConnectTimerDueInMsecs=4000),
        }

    assert waits(clock, tell, neighbours={("r1", "ospf", "eth0")}) == (True, about(0.5), "")
    clock.now = 100.0
    assert waits(clock, tell, neighbours=set()) == (True, about(3.4), "")
    clock.now = 100.0
    awaited = {("r1", "ospf", "eth0"), ("r1", "bgp", "10.0.0.2")}
    # routes change at 3 s, and the session is retried once afterwards
    assert waits(clock, tell, neighbours=awaited) == (True, about(9.4), "")


def test_confirmation_waits_for_messages_of_expected_neighbours_only(
    clock: Clock,
) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        return {
            OSPF: ospf("Full", hellos(now, 0)) if now < 3 else ospf(""),
            BGP: bgp("Active", nextConnectTimerDueInMsecs=4000),
        }

    expected = {("r1", "ospf", "eth0")}
    # no hello arrives, and the adjacency is lost at 3 s; the session is never awaited
    told = waits(clock, tell, neighbours=expected, confirmed=True)
    assert told == (True, about(3.4), "")


def test_session_that_is_down_is_retried_once_after_each_change(clock: Clock) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        return {
            OSPF: ospf("Full", hellos(now)),
            BGP: bgp("Active", nextConnectTimerDueInMsecs=4000),
        }

    world = World(clock, tell)
    settling = of(world)
    assert wait(settling, clock, changed=True) == (True, about(6.1))
    assert wait(settling, clock, changed=False) == (True, about(1.1))
    assert wait(settling, clock, changed=True) == (True, about(6.1))


def test_wait_does_not_include_a_session_that_is_shut_down(clock: Clock) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        return {
            OSPF: ospf("Full", hellos(now)),
            BGP: bgp("Idle (Admin)", nextStartTimerDueInMsecs=9000),
        }

    assert waits(clock, tell)[:2] == (True, about(1.1))


def test_wait_includes_slow_daemons_but_no_ended_daemons(
    clock: Clock,
) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        return {OSPF: ospf("Full", hellos(now))}

    world = World(clock, tell)
    settling = of(world)
    world.late = {BGP}
    assert not wait(settling, clock, changed=False)[0]
    world.late = set()
    clock.now = 100.0
    assert wait(settling, clock, changed=False) == (True, about(1.1))


@pytest.mark.parametrize("what", ["kernel", "spf", "database", "queue"])
def test_reason_why_the_network_has_not_converged_is_reported(what: str, clock: Clock) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        found = {OSPF: ospf("Full", hellos(now)), BGP: bgp("Established", int(now))}
        if what == "spf":
            found[OSPF][2]["spfTimerDueInMsecs"] = 50
        if what == "database":
            found[OSPF][2]["areas"]["0.0.0.0"]["lsaNumber"] = now
        if what == "queue":
            found[BGP][0]["peers"]["10.0.0.2"]["outq"] = 1
        return found

    def kernel() -> bytes:
        return str(clock.now).encode() if what == "kernel" else b""

    settled, passed_s, why = waits(clock, tell, kernel=kernel)
    assert not settled
    assert 15.0 < passed_s <= 15.2
    assert why in {"the state of the network is still changing", "a daemon has pending work"}


@pytest.mark.parametrize(("share", "waited_s"), [(0.5, 30.0), (1.0, 45.0)])
def test_cpu_wait_of_a_daemon_is_not_charged_to_the_network(
    share: float, waited_s: float, clock: Clock
) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        return {OSPF: ospf("Full", hellos(now)), BGP: bgp("Established", int(now))}

    told = waits(
        clock,
        tell,
        kernel=lambda: str(clock.now).encode(),
        delayed_s=lambda: [0.0, 7.0 + share * (clock.now - 100.0)],
    )
    assert told == (
        False,
        pytest.approx(waited_s, abs=0.3),
        "the state of the network is still changing",
    )


@pytest.mark.parametrize(
    ("ends", "settled", "waited_s"),
    [
        ({"bgp_holdtime_timer": 3.0, "zebra_nhg_timer": 179.0}, True, 1.1),
        ({"bgp_routeadv_timer": 2.0}, True, 2.1),
        ({"bgp_routeadv_timer": 2.0, "ospf_abr_task_timer": 7.0}, True, 7.1),
        ({"bgp_routeadv_timer": 14.8}, True, 14.9),
        # timers that fire after the time limit are not awaited
        ({"bgp_routeadv_timer": 15.2}, False, 2.1),
        ({"bgp_routeadv_timer": 600.0}, False, 2.1),
        ({"bgp_routeadv_timer": 2.0, "bgp_reuse_timer": 600.0}, False, 2.1),
        # a timer shown in days
        ({"bgp_maximum_prefix_restart_timer": 9e9}, False, 2.1),
    ],
)
def test_wait_includes_pending_timers(
    ends: Mapping[str, float], waited_s: float, clock: Clock, *, settled: bool
) -> None:
    why = "" if settled else "a timer may still change the network"
    settling = of(resting(clock, ends))
    assert wait(settling, clock, changed=True) == (settled, about(waited_s))
    assert settling.why == why
    # the network counts as settled if the expected state is known and observed
    known = {("r1", "ospf", "eth0"), ("r1", "bgp", "10.0.0.2")}
    assert of(resting(clock, ends)).wait(changed=True, neighbours=known)
    # this is not sufficient if the expected state must be confirmed
    clock.now = 100.0
    settling = of(resting(clock, ends))
    more = {"neighbours": known, "confirmed": True}
    assert wait(settling, clock, changed=True, **more) == (settled, about(waited_s))
    assert settling.why == why


@pytest.mark.parametrize(("end_s", "waited_s"), [(2.4, 3.0), (99.0, 2.8)])
def test_wait_includes_a_session_that_has_just_started_to_open(
    end_s: float, waited_s: float, clock: Clock
) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        state = "Active" if now < 1.8 else "OpenSent" if now < end_s else "Established"
        return {OSPF: ospf("Full", hellos(now)), BGP: bgp(state, int(now))}

    # waits until the session is established, or has been in one state for a long time
    assert waits(clock, tell)[:2] == (True, about(waited_s))


def test_wait_includes_a_long_timer_that_is_set_only_briefly(clock: Clock) -> None:
    world = resting(clock, {})

    def kernel() -> bytes:
        """Return changing routes, and set a ten-minute timer twice, each time only briefly."""
        now = clock.now - 100.0
        world.ends = {"bgp_routeadv_timer": 600.0} if now < 1.8 or 4.8 < now < 5.6 else {}
        return str(now).encode() if 1.6 < now < 4.9 else b""

    assert wait(of(world, kernel), clock, changed=True) == (True, about(5.8))


@pytest.mark.parametrize(
    ("age", "settles", "passed_s"),
    [(1890, True, 1.1), (3595, True, 5.1), (2500, False, 2.2), (3600, True, 1.1)],
)
def test_wait_includes_an_advertisement_that_is_about_to_expire(
    age: int, settles: bool, passed_s: float, clock: Clock
) -> None:
    """Advertisements expire at the age of one hour."""
    world = resting(clock, {})
    world.age = lambda: min(3600, age + int(clock.now - 100))
    assert wait(of(world), clock, changed=True) == (settles, about(passed_s))


def test_network_is_observed_again_after_a_timer_has_fired(clock: Clock) -> None:
    """The daemon's timer ends before the kernel receives the new route."""

    def kernel() -> bytes:
        return b"" if clock.now < 102.08 else b"a way"

    settling = of(resting(clock, {"zebra_route_map_update_timer": 2.0}), kernel)
    settled, passed_s = wait(settling, clock, changed=True)
    assert settled
    assert passed_s > 2.3


def test_timer_command_of_newer_daemons_is_supported(clock: Clock) -> None:
    world = resting(clock, {"bgp_routeadv_timer": 600.0})
    world.timed = "show event timers"
    assert not of(world).wait(changed=True)


def resting(clock: Clock, ends: Mapping[str, float]) -> World:
    """Return daemons of a settled network with running timers."""

    def tell(now: float) -> dict[frr.Who, list[Any]]:
        return {OSPF: ospf("Full", hellos(now)), BGP: bgp("Established", int(now))}

    world = World(clock, tell)
    world.ends = ends
    return world


def test_wait_includes_a_conditional_default_route(clock: Clock) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        more = {"addressFamilyInfo": {"ipv4Unicast": {"defaultRouteMap": "X"}}}
        return {OSPF: ospf("Full", hellos(now)), BGP: bgp("Established", int(now), **more)}

    assert waits(clock, tell)[:2] == (True, about(5.3))


def test_missing_acknowledgement_matters_only_if_databases_differ() -> None:
    look = convergence.Look(0.0)
    look.routers = {"10.0.0.1": ["r1"], "10.0.0.2": ["r2"], "10.0.0.3": ["r3", "r4"]}
    look.databases = {("r1", "0"): "a", ("r2", "0"): "a"}
    look.owed = [("r1", "0", "10.0.0.2"), ("r1", "0", "10.0.0.3"), ("r1", "0", "10.0.0.9")]
    # two routers share this id, so it is unknown which of them must acknowledge
    assert not look.differs()
    look.databases["r2", "0"] = "b"
    assert look.differs()


def test_malformed_answers_of_daemons_are_accepted(clock: Clock) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        del now
        return {
            OSPF: [{"neighbors": {"x": 5, "y": [7]}}, {"interfaces": []}, {"areas": 3}],
            BGP: [{"peers": {"z": []}}, None],
        }

    settled, _, _ = waits(clock, tell)
    assert settled  # no daemon answers, and nothing changes
    assert waits(Clock(), lambda _: {})[0]


@pytest.mark.parametrize(
    ("can", "waited_s"), [("advertisedAndReceived", 2.5), ("advertised", 1.1)], ids=["can", "not"]
)
def test_wait_includes_a_session_that_is_still_sending_its_routes(
    clock: Clock, can: str, waited_s: float
) -> None:
    assert waits(clock, _telling(can, done_s=2.5), changed=False) == (True, about(waited_s), "")


def test_wait_for_a_session_without_end_of_rib_is_limited(clock: Clock) -> None:
    tell = _telling("advertisedAndReceived", done_s=99)
    assert waits(clock, tell, changed=False) == (True, about(4.0), "")


def _telling(can: str, done_s: float) -> Any:
    """Return daemons with a session that starts at time 0 and sends all routes by ``done_s``."""
    begun: list[float] = []

    def tell(now: float) -> dict[frr.Who, list[Any]]:
        begun.append(now)
        since = now - begun[0]
        return {
            BGP: bgp(
                "Established",
                int(now),
                bgpTimerUpMsec=since * 1000,
                neighborCapabilities={"gracefulRestart": can},
                gracefulRestartInfo={
                    "endOfRibRecv": {"ipv4Unicast": True} if since >= done_s else {}
                },
            )
        }

    return tell


def test_wait_ends_unsettled_at_a_shorter_time_limit(clock: Clock) -> None:
    def tell(now: float) -> dict[frr.Who, list[Any]]:
        return {OSPF: ospf("Full", hellos(now)), BGP: bgp("Established", int(10 * now))}

    settling = of(World(clock, tell), lambda: str(clock.now).encode())  # routes always change
    assert wait(settling, clock, changed=True, within_s=4.0) == (False, about(4.0))
    assert settling.took_s == about(4.0)
