"""Detects when the routers have converged after a command, without waiting for a fixed time.

A network is settled when

* every existing adjacency was refreshed by a hello or keepalive that was sent after the command and
  after the last change of known state, which may have rerouted its packets,
* every missing adjacency has been tried once since the command, unless it was also missing when the
  network was settled last and nothing has changed since,
* a missing session has also been tried after it was lost, and after the last change of known state,
  which may have made its other end reachable,
* or, instead of these three, the existing adjacencies are known to be all that will exist,
* nothing is pending: no database exchange, no session that still sends its table, no computation or
  update, no daemon timer that acts when it expires, and
* the known state of the daemons and the routes of the kernel have not changed for ``REST_S``.

Times count only while daemons could run: the time that two of them waited for a processor is
subtracted.

bgpd retries a failed session with delays that double up to two minutes, and an end may wait for an
answer to a connection that the other end has given up. Therefore all sessions that are missing or
were lost are cleared, which makes bgpd retry them. This is repeated if the known state has changed
since and the next try is far or waits for an answer. Two ends that try at once may end each other's
session by the rule about collisions (RFC 4271, 6.8), and then do so again, since their timers
started together. One of them is cleared a little later.

A session counts as established if both ends say so. If the packets of one end are lost, the other
end regards the session as established again and again, for the hold time each, and refuses all
tries meanwhile. Therefore a session that was established at one end only when something changed,
and still is, is cleared at that end, too.

Daemons delay some actions, as configured now or when the delay began; their timers show this.
Actions later than ``SETTLE_S`` are not waited for, and the network counts as unsettled.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any, NamedTuple, TypeAlias

from netarena_backbone.real.frr import Answer, Terminals, Who
from netarena_backbone.world.lab_spec import Neighbour

#: A network that has not converged after SETTLE_S counts as unsettled. The time that daemons waited
#: for a processor is not counted, up to STARVED_S.
SETTLE_S, STARVED_S = 15.0, 30.0
#: Extra time if the network is quiet and only sessions are still being retried.
_TRIES_S = 5.0
#: Time without changes in the daemons' known state, longer than any delay between receiving and
#: advertising a route.
REST_S = 0.3
#: Time from the expiry of a timer until its effect shows in the kernel.
_SHOWS_S = 0.15
#: A little more than the hello interval; within it, every possible neighbour is found.
MEET_S = 1.1
#: Time from the first packet of a session or an exchange to its end, on a busy machine.
_BUILD_S = 1.0
#: Delay before one of two ends that have ended each other's session is cleared.
_APART_S = 0.3
#: Number of losses of a session after which its next try is awaited; some sessions flap forever.
_LOSSES = 2
#: A session whose next try is later than this is cleared.
_SOON_S = 4.0
#: Intervals of observations.
_LOOK_S, _EARLY_LOOK_S, _LEAST_S = 0.1, 0.25, 0.005
#: A session of this age has sent its whole table, whether it said so or not.
_TELLING_S = 4.0
#: Inaccuracy of the times that daemons report.
_JITTER_S = 0.2

_OSPF = ("show ip ospf neighbor json", "show ip ospf interface json", "show ip ospf json")
_BGP = ("show bgp ipv4 unicast summary json", "show bgp neighbors json")
_ZEBRA = ("show ip route summary json",)
_QUESTIONS = {"ospfd": _OSPF, "bgpd": _BGP, "zebra": _ZEBRA}
#: Command that lists all timers of a daemon, in FRR 8 and in newer versions.
_TIMERS = ("show thread timers", "show event timers")
#: Command that shows the ages of the entries of ospfd's database.
_AGES = "show ip ospf database json"
_AGE = re.compile(r'"lsaAge": *(\d+)')
#: Each LSA is refreshed after half an hour; an older one was aged by configuration
#: (``transmit-delay``). At the age of an hour it is removed from all databases (RFC 2328, B).
_REFRESHED_S, _MAX_AGE_S = 1900, 3600
_TIMER = re.compile(r"^ +\(?(\w+)\)? +(\S+)$", re.MULTILINE)
_CLOCK = re.compile(r"(\d+):(\d+):(\d+(?:\.\d+)?)")
#: Timers that change routes or announcements when they expire, by the names of their functions in
#: FRR 8.4. Timers that send or await hellos and keepalives, retry sessions or refresh known state
#: are left out.
_ACTING = frozenset(
    {
        # bgpd: announcements at intervals, on a condition, to new peers and at its start; policies;
        # sessions that come and go, are admitted again, or are kept although they ended
        "bgp_routeadv_timer",
        "bgp_announce_route_timer_expired",
        "bgp_conditional_adv_timer",
        "subgroup_coalesce_timer",
        "bgp_update_delay_timer",
        "bgp_establish_wait_timer",
        "bgp_maxmed_onstartup_timer",
        "bgp_route_map_update_timer",
        "bgp_reuse_timer",
        "bgp_maximum_prefix_restart_timer",
        "bgp_delayopen_timer",
        "bgp_graceful_restart_timer_expire",
        "bgp_graceful_stale_timer_expire",
        "bgp_graceful_deferral_timer_expire",
        "bgp_llgr_stale_timer_expire",
        "bgp_route_select_timer_expire",
        # zebra, and work queues of all daemons
        "zebra_route_map_update_timer",
        "zebra_gr_route_stale_delete_timer_expiry",
        "work_queue_run",
        # ospfd: areas, external routes, polled neighbours, and its own LSAs
        "ospf_abr_task_timer",
        "ospf_ase_calculate_timer",
        "ospf_asbr_external_aggr_process",
        "ospf_asbr_nssa_redist_update_timer",
        "ospf_distribute_list_update_timer",
        "ospf_external_lsa_default_routemap_timer",
        "ospf_spf_calculate_schedule_worker",
        "ospf_poll_timer",
        "ospf_stub_router_timer",
        "ospf_ldp_sync_holddown_timer",
        "ospf_gr_grace_period_expired",
        "ospf_handle_grace_timer_expiry",
    }
)
#: Interval at which bgpd checks a conditional default route (with a route map).
_DEFAULTS_S, _DEFAULT_MAP = 5.0, "defaultRouteMap"
#: Retransmissions after which OSPF neighbours have exchanged their databases, if they can.
_ROUNDS = 4
#: Lasting states of OSPF neighbours.
_LASTING = ("Full", "2-Way", "Down", "Deleted")
#: Lasting states of BGP peers that were shut down, in bgpd's words.
_SHUT = ("Idle (Admin)", "Idle (PfxCt)")
_ESTABLISHED, _BOTH = "Established", "advertisedAndReceived"
#: States in which an end waits for the other.
_WAITING = ("OpenSent", "OpenConfirm", _ESTABLISHED)
#: Fields of daemons' answers that stay the same while nothing happens.
_OSPF_FACTS = ("lsaExternalCounter", "lsaExternalChecksum")
_INTERFACE_FACTS = ("ifUp", "area", "state", "cost", "drId", "bdrId", "nbrAdjacentCount")
_BGP_FACTS = ("tableVersion", "ribCount")
_PEER_FACTS = ("pfxRcd", "pfxSnt")
_PENDING = ("spfTimerDueInMsecs",)

#: Router, protocol, and the other end.
Adjacency: TypeAlias = tuple[str, str, str]


class Standing(NamedTuple):
    """State of one adjacency.

    ``state`` is in the daemon's words. ``mark`` grows or jumps when a packet arrives from the other
    end. ``next_s`` is the time until the next try at the latest, and ``lost`` counts how often it
    was up and ended. ``lasting`` is false while it is being established, ``up`` is true if it is
    established, and ``shut`` is true if it is shut down. ``low`` is true at the end whose
    address sorts first.
    """

    state: str
    mark: float
    lasting: bool
    up: bool
    shut: bool = False
    next_s: float = 0.0
    lost: float = 0.0
    low: bool = False


@dataclass
class Look:
    """Answers of all daemons and the kernel at one time (monotonic, s).

    Most daemons answered soon after ``asked``; one may have been late.
    """

    at: float
    asked: float = 0.0
    adjacencies: dict[Adjacency, Standing] = field(default_factory=dict)
    neighbours: set[Neighbour] = field(default_factory=set)
    #: Sessions, (router, address), that this end regards as down, except those that are shut down.
    failing: list[tuple[str, str]] = field(default_factory=list)
    #: Sessions that only this end regards as established. Empty if a daemon has not answered, since
    #: it may be the other end.
    halves: list[tuple[str, str]] = field(default_factory=list)
    #: Addresses (own, other) of sessions that the ends with these addresses regard as established.
    ends: set[tuple[str, str]] = field(default_factory=set)
    #: (router, port) -> OSPF's network type
    types: dict[tuple[str, str], str] = field(default_factory=dict)
    #: Time that each daemon has waited for a processor since it started.
    delayed_s: Sequence[float] = ()
    waiting: bool = False
    #: Time until the last acting timer expires, in s, or None if timers were not queried; and
    #: whether a default route is advertised on a condition.
    acts_s: float | None = None
    defaults: bool = False
    digest: str = ""
    #: (router, area) -> its database; router ID -> routers; and (router, area, ID) of neighbours
    #: with unacknowledged LSAs
    databases: dict[tuple[str, str], str] = field(default_factory=dict)
    routers: dict[str, list[str]] = field(default_factory=dict)
    owed: list[tuple[str, str, str]] = field(default_factory=list)
    facts: list[object] = field(default_factory=list)

    def differs(self) -> bool:
        """Return whether a neighbour lacks an LSA that it has not acknowledged.

        Databases are compared, since an acknowledgement may be sent up to a second later.
        """
        for router, area, number in self.owed:
            match self.routers.get(number, []):
                case [other]:
                    known = self.databases.get((router, area))
                    if known != self.databases.get((other, area)):
                        return True
        return False


class _Tries:
    """Changes during one wait, and the missing sessions (router, address) to clear.

    Sessions that ``failed`` before are not cleared, nor are those that will not be up, if the
    ``neighbours`` are known.
    """

    def __init__(
        self,
        start: Look,
        failed: AbstractSet[Adjacency],
        neighbours: AbstractSet[Neighbour] | None,
    ) -> None:
        self._start, self._failed, self._neighbours = start, failed, neighbours
        #: The first observation since the last change of known state.
        self.moved = start
        #: Session -> that observation when the session was cleared
        self._told: dict[tuple[str, str], Look] = {}
        self._losses: dict[Adjacency, int] = {}
        #: The observation in which a session was last lost or cleared.
        self._since: dict[Adjacency, Look] = {}
        self._together: dict[Adjacency, Look] = {}
        #: The first observation since then of each adjacency being established; some open and fail
        #: forever.
        self._entered: dict[Adjacency, Look] = {}

    def concerns(self, one: Adjacency) -> bool:
        """Return whether an adjacency may still come up.

        Expected sessions are known by address, but expected OSPF neighbours only by port.
        """
        is_awaited = self._neighbours is None or one[1] != "bgp" or one in self._neighbours
        return is_awaited and one not in self._failed

    def missing(self, now: Look) -> list[tuple[str, str]]:
        """Return the sessions to clear now.

        Each is cleared once. It is cleared again if known state has changed since, nothing changes
        any more, and it would not be retried soon.
        """
        rest_s = _ran_s(self.moved, now)
        stale = now.halves if rest_s >= REST_S else []
        return [
            session
            for session in now.failing + stale
            if self.concerns((session[0], "bgp", session[1]))
            if (told := self._told.get(session)) is None
            or (
                told is not self.moved
                and rest_s >= REST_S
                and _is_late((session[0], "bgp", session[1]), self.moved, now, rest_s)
            )
        ]

    def tell(self, sessions: Sequence[tuple[str, str]], look: Look) -> None:
        """Record that sessions were cleared, shortly before an observation."""
        self._told |= dict.fromkeys(sessions, self.moved)
        self._since |= {(router, "bgp", peer): look for router, peer in sessions}

    def note(self, before: Look, now: Look) -> None:
        """Record the changes between two observations, including lost sessions."""
        if now.digest != before.digest:
            self.moved = now
            self._entered.clear()
        for one, found in now.adjacencies.items():
            if not found.lasting:
                self._entered.setdefault(one, now)
            if found.lost > before.adjacencies.get(one, found).lost and self.concerns(one):
                self._losses[one] = self._losses.get(one, 0) + 1
                if self._losses[one] <= _LOSSES:
                    self._since[one] = now
                    if found.low:
                        self._together[one] = now

    def apart(self, now: Look) -> list[tuple[str, str]]:
        """Return one end of each session that was lost a little ago and waits for its next try."""
        due = [one for one, look in self._together.items() if _ran_s(look, now) >= _APART_S]
        for one in due:
            del self._together[one]
            self._since[one] = now
        states = {one: found.state for one, found in now.adjacencies.items()}
        return [(one[0], one[2]) for one in due if states.get(one) == "Idle"]

    def is_under_way(self, one: Adjacency, now: Look) -> bool:
        """Return whether an adjacency has only just begun to be established."""
        entered = self._entered.get(one, self.moved)
        return not now.adjacencies[one].lasting and _ran_s(entered, now) < _BUILD_S

    def since(self, one: Adjacency, now: Look) -> Look:
        """Return the observation after which an adjacency must have been tried.

        Sessions that cannot be cleared again are not awaited again.
        """
        looks = [self._since.get(one, self._start)]
        if (one[0], one[2]) in now.failing + now.halves:
            looks.append(self.moved)
        return max(looks, key=lambda look: look.at)


class Settling:
    """Waits for convergence of one network.

    ``routers`` has the daemons of each router. ``kernel`` returns the current routes, and
    ``delayed_s`` how long each daemon has waited for a processor since it started.
    """

    def __init__(
        self,
        terminals: Terminals,
        routers: Mapping[str, Iterable[str]],
        kernel: Callable[[], bytes],
        delayed_s: Callable[[], Sequence[float]] = tuple,
    ) -> None:
        self._terminals = terminals
        self._questions: dict[Who, tuple[str, ...]] = {
            (router, daemon): _QUESTIONS[daemon]
            for router, daemons in routers.items()
            for daemon in daemons
            if daemon in _QUESTIONS
        }
        self._timers = _TIMERS[0]
        self._kernel = kernel
        self._delayed_s = delayed_s
        #: Adjacencies that were down when the network was settled last, though they had been tried.
        self._failing: set[Adjacency] = set()
        #: The last observation, and the reason why the network was not settled then.
        self.last = Look(0.0)
        self.why = ""

    def wait(
        self,
        *,
        changed: bool,
        neighbours: AbstractSet[Neighbour] | None = None,
    ) -> bool:
        """Wait until the network is settled; return False if it is not after ``SETTLE_S``.

        The wait is a little longer if the network is quiet and only sessions are still being
        retried. ``neighbours`` are the expected ones, if known. The expected observation is then
        known too, and later actions are not waited for.
        """
        start = self._look()
        anew = changed or (neighbours is not None and start.neighbours != neighbours)
        if anew:
            self._failing = set()
        tries = _Tries(start, self._failing, neighbours)
        before, endless, moving, timed = start, None, "", None
        down: set[Adjacency] = set()
        while True:
            if untried := tries.missing(before):
                self._try_now(untried)
                told = self._look()
                tries.note(before, told)
                tries.tell(untried, told)
                before = told
            # Observations use the daemons' processor time; there are few before anything can be
            # settled.
            left_s = MEET_S - _ran_s(start, before)
            if left_s > REST_S + _EARLY_LOOK_S:
                pause_s = _EARLY_LOOK_S
            else:
                pause_s = _LOOK_S if left_s <= 0 else min(_LOOK_S, left_s + _LEAST_S)
            time.sleep(pause_s)
            now = self._look(timed=neighbours is None and left_s <= pause_s)
            tries.note(before, now)
            if apart := tries.apart(now):
                self._try_now(apart)
            before = now
            down |= {one for one, found in now.adjacencies.items() if not found.up}
            found_all = neighbours is not None and now.neighbours == neighbours
            moved, moving = moving, _moving(now, _ran_s(tries.moved, now))
            self.why = moving
            if not found_all:
                self.why = self.why or self._missing(start, now, tries)
            rests = not self.why and neighbours is None
            timed = now if now.acts_s else timed
            acting = _acting(now, _ran_s(tries.moved, now)) if rests else ""
            if rests and timed is not None and _ran_s(timed, now) < _SHOWS_S:
                acting = acting or "what has just acted may not show yet"
            self.why = self.why or acting
            # Retransmissions, for example, have a long timer for a moment.
            too_late = acting and _ran_s(start, now) + (now.acts_s or 0.0) > SETTLE_S
            endless = endless or now if too_late else None
            if endless is not None and _ran_s(endless, now) >= _BUILD_S:
                return False
            if not self.why:
                self._failing |= down
                self._failing -= {one for one, found in now.adjacencies.items() if found.up}
                return True
            # A keepalive that waits to be sent, for example, is not a change.
            if _ran_s(start, now) > SETTLE_S + (0.0 if moved and moving else _TRIES_S):
                return False

    def _try_now(self, sessions: Sequence[tuple[str, str]]) -> None:
        """Clear missing sessions at both ends.

        They are then tried as for the first time, a second later, and no end waits for a connection
        that the other has given up.
        """
        orders: dict[Who, list[str]] = {}
        for router, peer in sessions:
            orders.setdefault((router, "bgpd"), []).append(f"clear bgp ipv4 unicast {peer}")
        self._terminals.ask(orders)

    def _missing(self, start: Look, now: Look, tries: _Tries) -> str:
        """Return which neighbour may still come or go, or "".

        Each existing neighbour must have been heard of since the last change of known state, which
        may have rerouted its packets. A missing session must also have been tried since then, and
        since it was lost.
        """
        if _ran_s(start, now) < MEET_S:
            return "neighbours may still meet"
        for one, found in now.adjacencies.items():
            name = " ".join(one)
            known = tries.moved.adjacencies.get(one)
            if found.up and known is not None and known.up and not _heard(known, found):
                return f"{name} was not heard of since"
            if found.up or found.shut or not tries.concerns(one):
                continue
            since = tries.since(one, now)
            if _ran_s(since, now) < since.adjacencies.get(one, found).next_s + _BUILD_S:
                return f"{name} was not tried since"
            if tries.is_under_way(one, now):
                return f"{name} is under way"
        return ""

    def _look(self, *, timed: bool = False) -> Look:
        """Return the current state.

        Timers are queried first, so that the effects of expired ones are already visible in the
        rest.
        """
        asked = time.monotonic()
        questions: dict[Who, tuple[str, ...]] = self._questions
        if timed:
            more = {"ospfd": (self._timers, _AGES)}
            questions = {
                who: (*more.get(who[1], (self._timers,)), *texts)
                for who, texts in questions.items()
            }
        answers = self._terminals.ask(questions)
        timers = [said.pop(0) for said in answers.values() if timed]
        ages = [said.pop(0) for (_, name), said in answers.items() if timed and name == "ospfd"]
        known = timed and not any(said.status for said in timers)
        if timed and not known:
            self._timers = _TIMERS[-1]
        acting = [*(_acts_s(said.text) for said in timers), *(_ages_s(said.text) for said in ages)]
        acts_s = max(acting, default=0.0) if known else None
        look = Look(time.monotonic(), asked, delayed_s=self._delayed_s(), acts_s=acts_s)
        for (_, daemon), said in answers.items():
            if daemon == "bgpd":
                look.ends |= _ends(said)
        for who in self._questions:
            look.facts.append(who)
            if who not in answers:
                look.facts.append("silent")
                look.waiting |= who in self._terminals.late
            elif who[1] == "ospfd":
                _read_ospf(who[0], answers[who], look)
            elif who[1] == "bgpd":
                _read_bgp(who[0], answers[who], look)
            else:
                look.facts.append(answers[who][0].text)
        if len(answers) < len(self._questions):
            look.halves.clear()
        # Adjacencies that are tried in vain move between states, which is not a change.
        look.facts += sorted(one for one, found in look.adjacencies.items() if found.up)
        told = hashlib.blake2b(self._kernel(), digest_size=16)
        told.update(repr(look.facts).encode())
        look.digest = told.hexdigest()
        look.waiting |= look.differs()
        self.last = look
        return look


def _ran_s(before: Look, now: Look) -> float:
    """Return the time between two observations, without waiting times for a processor.

    Subtracted are the waiting times of the two daemons that waited longest, as a session has two;
    at most ``STARVED_S``.
    """
    waited = sorted(max(0.0, b - a) for a, b in zip(before.delayed_s, now.delayed_s, strict=True))
    return now.at - before.at - min(sum(waited[-2:]), STARVED_S)


def _is_late(session: Adjacency, moved: Look, now: Look, rest_s: float) -> bool:
    """Return whether a session would not be retried soon after the last change.

    Its next try is far, or an end has been waiting since then for an answer to an earlier packet.
    """
    known, found = moved.adjacencies.get(session), now.adjacencies.get(session)
    if known is None or found is None:
        return False
    waits = known.state == found.state and found.state in _WAITING and rest_s >= _BUILD_S
    return waits or (found.lasting and known.next_s > _SOON_S)


def _moving(now: Look, rest_s: float) -> str:
    """Return what is pending, or ""."""
    if now.waiting:
        return "something waits to be computed"
    return "what is known changes" if rest_s < REST_S else ""


def _acting(now: Look, rest_s: float) -> str:
    """Return whether something will act later than all else, as a text, or ""."""
    late = now.acts_s != 0.0 or (now.defaults and rest_s < _DEFAULTS_S + REST_S)
    return "a change may still act" if late else ""


def _acts_s(text: str) -> float:
    """Return the remaining time of the last acting timer, in s; 0 without any."""
    times = [left for name, left in _TIMER.findall(text) if name in _ACTING]
    return max((_seconds(left) for left in times), default=0.0)


def _ages_s(text: str) -> float:
    """Return the time until the last unrefreshed LSA of a database is removed, in s, or 0."""
    ages = [age for age in map(int, _AGE.findall(text)) if _REFRESHED_S < age < _MAX_AGE_S]
    return float(_MAX_AGE_S - min(ages)) if ages else 0.0


def _seconds(left: str) -> float:
    """Return the remaining time of a timer, rounded up a little.

    Times in other units than hours, minutes and seconds are days away.
    """
    if found := _CLOCK.fullmatch(left):
        hours, minutes, seconds = found.groups()
        return 3600.0 * int(hours) + 60.0 * int(minutes) + float(seconds) + _LEAST_S
    return float("inf")


def _heard(began: Standing, found: Standing) -> bool:
    """Return whether a packet has arrived since from the other end.

    OSPF's mark is the time at which the neighbour would expire, which only a hello moves. BGP's
    mark is the number of received messages.
    """
    return abs(found.mark - began.mark) > _JITTER_S


def _read_ospf(router: str, answers: list[Answer], look: Look) -> None:
    neighbours, interfaces, whole = (_object(one.value) for one in answers)
    rows = {name: _object(one) for name, one in _object(interfaces.get("interfaces")).items()}
    look.routers.setdefault(str(whole.get("routerId")), []).append(router)
    for area, found in _object(whole.get("areas")).items():
        held = sorted((key, one) for key, one in _object(found).items() if key.startswith("lsa"))
        look.databases[router, area] = repr(held)
        look.facts += [area, held, _object(found).get("spfExecutedCounter")]
    look.facts += [whole.get(key) for key in _OSPF_FACTS]
    for name, found in _object(neighbours.get("neighbors")).items():
        for one in found if isinstance(found, list) else ():
            row = _object(one)
            state = str(row.get("nbrState", row.get("state", "")))
            kind = state.partition("/")[0]
            key = router, "ospf", f"{name} {row.get('ifaceName')} {row.get('ifaceAddress')}"
            look.adjacencies[key] = Standing(
                state,
                mark=look.asked + _number(row.get("deadTimeMsecs")) / 1000,
                lasting=kind in _LASTING,
                up=kind in {"Full", "2-Way"},
                next_s=_ROUNDS * (_number(row.get("retransmitInterval")) or MEET_S),
            )
            port = str(row.get("ifaceName")).partition(":")[0]
            if kind == "Full":
                look.neighbours.add((router, "ospf", port))
            if kind == "Full" and _number(row.get("linkStateRetransmissionListCounter")):
                look.owed.append((router, str(rows.get(port, {}).get("area")), str(name)))
    for name, one in sorted(rows.items()):
        look.facts += [name, *(one.get(key) for key in _INTERFACE_FACTS)]
        look.types[router, name] = str(one.get("networkType"))
        # A passive port does not wait for neighbours.
        look.waiting |= one.get("state") == "Waiting" and "timerHelloInMsecs" in one
    look.waiting |= any(name in whole for name in _PENDING)


def _ends(answers: list[Answer]) -> set[tuple[str, str]]:
    """Return the addresses, own first, of the sessions that a router regards as established."""
    rows = map(_object, _object(answers[1].value).values())
    return {_end(row) for row in rows if row.get("bgpState") == _ESTABLISHED}


def _end(session: dict[str, Any]) -> tuple[str, str]:
    return str(session.get("hostLocal", "")), str(session.get("hostForeign", ""))


def _read_bgp(router: str, answers: list[Answer], look: Look) -> None:
    summary, neighbours = (_object(one.value) for one in answers)
    look.facts += [summary.get(key) for key in _BGP_FACTS]
    for name, found in _object(summary.get("peers")).items():
        row, more = _object(found), _object(neighbours.get(name))
        state = str(row.get("state", ""))
        # One end may regard a session as established until the hold time ends, again and again, if
        # the other end receives none of its packets.
        here, there = _end(more)
        up = state == _ESTABLISHED and (not here or (there, here) in look.ends)
        due = [
            _number(more.get(f"next{one}TimerDueInMsecs")) / 1000 for one in ("Start", "Connect")
        ]
        look.adjacencies[router, "bgp", name] = Standing(
            state,
            mark=_number(row.get("msgRcvd")),
            lasting=up or state in {"Idle", "Active"} or state in _SHUT,
            up=up,
            shut=state in _SHUT,
            # Reported in whole elapsed seconds.
            next_s=1.0 + max(due),
            lost=_number(more.get("connectionsDropped")),
            low=here < there,
        )
        if up:
            look.neighbours.add((router, "bgp", name))
            look.facts += [name, *(row.get(key) for key in _PEER_FACTS)]
            queues = _number(row.get("inq")) or _number(row.get("outq"))
            look.waiting |= bool(queues) or _is_telling(more)
            family = _object(_object(more.get("addressFamilyInfo")).get("ipv4Unicast"))
            look.defaults |= _DEFAULT_MAP in family
        elif state not in _SHUT and _is_address(name):
            # An end that regards it as established will learn of its loss from the other end, or
            # was first to learn that it is up.
            kind = look.halves if state == _ESTABLISHED else look.failing
            kind.append((router, name))
            # The routes of a session end with it.
            look.waiting |= bool(_number(row.get("pfxRcd")))


def _is_telling(session: dict[str, Any]) -> bool:
    """Return whether an established session may not have received the whole table yet.

    If both ends support it (RFC 4724), the other one marks the end of its table soon after.
    """
    restart = _object(session.get("gracefulRestartInfo"))
    can = _object(session.get("neighborCapabilities")).get("gracefulRestart") == _BOTH
    told = _object(restart.get("endOfRibRecv")).get("ipv4Unicast") is True
    return can and not told and _number(session.get("bgpTimerUpMsec")) < _TELLING_S * 1000


def _is_address(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return str(IPv4Address(text)) == text
    return False


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
