"""Detects when the routers have converged after a command, instead of waiting for a fixed time.

A network is settled if all of these conditions hold:

* Every established adjacency was refreshed by a hello or keepalive that was sent after the command
  and after the last change of known state, because that change may have rerouted its packets.
* Every missing adjacency has been tried once since the command. An adjacency is exempt if it was
  also missing when the network was last settled and nothing has changed since.
* A missing session has also been tried after its loss and after the last change of known state,
  because that change may have made the other end reachable.
* Nothing is pending: no database exchange, no session that still sends its table, no computation or
  update, no daemon timer that triggers a change.
* The known state of the daemons and the routes of the kernel have not changed for ``REST_S``.

If the caller knows the expected adjacencies and does not ask for confirmation, the first three
conditions do not apply. Instead, exactly the expected adjacencies must be established. Daemon
timers are not awaited then.

Times count only while daemons could run: the time that two daemons waited for a processor is
subtracted.

bgpd retries a failed session with delays that double up to two minutes. One end may wait for an
answer on a connection that the other end has already closed. Therefore all missing or lost sessions
are cleared, which makes bgpd retry them. A session is cleared again if the known state has changed
since, and its next try is late or waits for an answer.

Two ends that try simultaneously may close each other's connection (collision rule of RFC 4271,
6.8). Their timers then start together, so the collision can repeat. Therefore one of the two ends
is cleared again a little later.

A session counts as established if both ends report it as established. If the packets of one end are
lost, the other end repeatedly regards the session as established for the hold time and meanwhile
refuses all tries. Therefore the session is also cleared at an end that alone regards it as
established, both at the last change of known state and now.

Daemons delay some actions according to their current or an earlier configuration; their timers show
the delays. Actions later than ``SETTLE_S`` are not awaited, and the network counts as unsettled.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any, NamedTuple, TypeAlias

from netarena_backbone.real.frr import Answer, Terminals, Who
from netarena_backbone.world.lab_spec import Neighbour

#: Time after which a network that has not converged counts as unsettled (SETTLE_S). Up to STARVED_S
#: of the time that daemons waited for a processor is not counted.
SETTLE_S, STARVED_S = 15.0, 30.0
#: Additional time if nothing changes except sessions that are still being retried.
_TRIES_S = 5.0
#: Minimum time without changes in the daemons' known state. It is longer than any delay between
#: receiving and advertising a route.
REST_S = 0.3
#: Time from the expiry of a timer until its effect is visible in the kernel.
_SHOWS_S = 0.15
#: Time within which every possible neighbour is discovered: slightly more than the hello interval.
MEET_S = 1.1
#: Maximum duration of a session's establishment or of a database exchange on a busy machine.
_BUILD_S = 1.0
#: If two ends close each other's connection, one of them is cleared after this delay in s.
_APART_S = 0.3
#: If a session is lost more often than this, its next try is not awaited, because some sessions
#: flap forever.
_LOSSES = 2
#: A session is cleared if its next try is later than this.
_SOON_S = 4.0
#: Pauses between observations, in s: normal; while the network cannot be settled yet; and the
#: minimum that is added to a remaining time.
_LOOK_S, _EARLY_LOOK_S, _LEAST_S = 0.1, 0.25, 0.005
#: A session of this age in s counts as having sent its whole table, even without an end-of-RIB
#: marker.
_TELLING_S = 4.0
#: Inaccuracy in s of the times that daemons report.
_JITTER_S = 0.2

_OSPF = ("show ip ospf neighbor json", "show ip ospf interface json", "show ip ospf json")
_BGP = ("show bgp ipv4 unicast summary json", "show bgp neighbors json")
_ZEBRA = ("show ip route summary json",)
_QUESTIONS = {"ospfd": _OSPF, "bgpd": _BGP, "zebra": _ZEBRA}
#: Commands that list all timers of a daemon, in FRR 8 and in newer versions.
_TIMERS = ("show thread timers", "show event timers")
#: Command that shows the ages of the LSAs in ospfd's database.
_AGES = "show ip ospf database json"
_AGE = re.compile(r'"lsaAge": *(\d+)')
#: Each LSA is refreshed after half an hour. A greater age results from configuration
#: (``transmit-delay``). An LSA is removed from all databases at an age of one hour (RFC 2328,
#: appendix B).
_REFRESHED_S, _MAX_AGE_S = 1900, 3600
_TIMER = re.compile(r"^ +\(?(\w+)\)? +(\S+)$", re.MULTILINE)
_CLOCK = re.compile(r"(\d+):(\d+):(\d+(?:\.\d+)?)")
#: Timers that change routes or announcements when they expire, named by their functions in FRR 8.4.
#: Timers that send or await hellos and keepalives, retry sessions or refresh known state are left
#: out.
_ACTING = frozenset(
    {
        # bgpd: periodic and conditional announcements, announcements to new peers and at startup;
        # policies; sessions that open, close, are admitted again, or are retained after their end
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
#: Interval at which bgpd checks the condition of a default route, and the field that shows such a
#: condition (a route map).
_DEFAULTS_S, _DEFAULT_MAP = 5.0, "defaultRouteMap"
#: Time in which OSPF neighbours exchange their databases if no packet is lost. ospfd resends a lost
#: packet after its retransmission interval. At most ``_MOST_AGAIN_S`` of this interval is awaited,
#: because otherwise the network might never count as settled.
_EXCHANGE_S, _MOST_AGAIN_S = 4 * MEET_S, 10.0
#: States in which OSPF neighbours can remain permanently.
_LASTING = ("Full", "2-Way", "Down", "Deleted")
#: bgpd's names of the states in which a BGP peer is shut down.
_SHUT = ("Idle (Admin)", "Idle (PfxCt)")
_ESTABLISHED, _BOTH = "Established", "advertisedAndReceived"
#: States in which one end of a session waits for the other end.
_WAITING = ("OpenSent", "OpenConfirm", _ESTABLISHED)
#: Fields of the daemons' answers that change only if the network's state changes.
_OSPF_FACTS = ("lsaExternalCounter", "lsaExternalChecksum")
_INTERFACE_FACTS = ("ifUp", "area", "state", "cost", "drId", "bdrId", "nbrAdjacentCount")
_BGP_FACTS = ("tableVersion", "ribCount")
_PEER_FACTS = ("pfxRcd", "pfxSnt")
_PENDING = ("spfTimerDueInMsecs",)

#: Router, protocol, and a name of the other end.
Adjacency: TypeAlias = tuple[str, str, str]


class Standing(NamedTuple):
    """State of one adjacency.

    ``state`` is the daemon's word for it. ``mark`` grows or jumps when a packet arrives from the
    other end. ``next_s`` is the maximum time until the next try. ``lost`` is the number of times
    that the adjacency was up and ended. ``lasting`` is false while the adjacency is being
    established. ``up`` is true if it is established, and ``shut`` is true if it is shut down.
    ``low`` is true at the end whose address sorts first.
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

    Most daemons answered soon after ``asked``, but a busy daemon may have answered late.
    """

    at: float
    asked: float = 0.0
    adjacencies: dict[Adjacency, Standing] = field(default_factory=dict)
    neighbours: set[Neighbour] = field(default_factory=set)
    #: Sessions, as (router, peer address), that this end regards as down. Sessions that are shut
    #: down are not included.
    failing: list[tuple[str, str]] = field(default_factory=list)
    #: Sessions, as (router, peer address), that only this end regards as established. Empty if a
    #: daemon has not answered, because that daemon may run the other end.
    halves: list[tuple[str, str]] = field(default_factory=list)
    #: Sessions, as (own address, other address), that the end with the own address regards as
    #: established.
    ends: set[tuple[str, str]] = field(default_factory=set)
    #: (router, port) -> OSPF network type
    types: dict[tuple[str, str], str] = field(default_factory=dict)
    #: Time that each daemon has waited for a processor since it started.
    delayed_s: Sequence[float] = ()
    waiting: bool = False
    #: Time in s until the last timer that triggers a change expires, or None if timers were not
    #: queried.
    acts_s: float | None = None
    #: Whether any default route is advertised conditionally.
    defaults: bool = False
    digest: str = ""
    #: (router, area) -> the router's link-state database for the area
    databases: dict[tuple[str, str], str] = field(default_factory=dict)
    #: router ID -> the routers that use it
    routers: dict[str, list[str]] = field(default_factory=dict)
    #: (router, area, router ID of a neighbour) where the neighbour has not acknowledged all LSAs
    owed: list[tuple[str, str, str]] = field(default_factory=list)
    facts: list[object] = field(default_factory=list)

    def differs(self) -> bool:
        """Return whether a neighbour that has not acknowledged an LSA has a different database.

        The databases are compared because an acknowledgement may arrive up to a second later than
        the LSA.
        """
        for router, area, number in self.owed:
            match self.routers.get(number, []):
                case [other]:
                    known = self.databases.get((router, area))
                    if known != self.databases.get((other, area)):
                        return True
        return False


class _Tries:
    """The changes during one wait, and the missing sessions (router, address) to clear.

    Sessions that have ``failed`` before are not cleared. If the expected ``neighbours`` are known,
    unexpected sessions are not cleared either.
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
        #: Session -> value of ``moved`` when the session was last cleared
        self._told: dict[tuple[str, str], Look] = {}
        self._losses: dict[Adjacency, int] = {}
        #: The observation in which a session was last lost or cleared.
        self._since: dict[Adjacency, Look] = {}
        self._together: dict[Adjacency, Look] = {}
        #: The first observation since ``moved`` in which each adjacency was being established. Some
        #: adjacencies repeatedly start and fail.
        self._entered: dict[Adjacency, Look] = {}

    def concerns(self, one: Adjacency) -> bool:
        """Return whether an adjacency is awaited, because it may still be established.

        OSPF adjacencies are not compared with the expected neighbours, because these contain only
        port names.
        """
        is_awaited = self._neighbours is None or one[1] != "bgp" or one in self._neighbours
        return is_awaited and one not in self._failed

    def missing(self, now: Look) -> list[tuple[str, str]]:
        """Return the sessions to clear now.

        Each session is cleared once. A session is cleared again if the known state has changed
        since then and is now stable, and if bgpd would not retry the session soon.
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
        """Record that sessions were cleared shortly before the observation ``look``."""
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
        """Return one end of each session that was lost ``_APART_S`` ago and waits for a retry."""
        due = [one for one, look in self._together.items() if _ran_s(look, now) >= _APART_S]
        for one in due:
            del self._together[one]
            self._since[one] = now
        states = {one: found.state for one, found in now.adjacencies.items()}
        return [(one[0], one[2]) for one in due if states.get(one) == "Idle"]

    def is_under_way(self, one: Adjacency, now: Look) -> bool:
        """Return whether the establishment of an adjacency has only recently begun."""
        entered = self._entered.get(one, self.moved)
        return not now.adjacencies[one].lasting and _ran_s(entered, now) < _BUILD_S

    def since(self, one: Adjacency, now: Look) -> Look:
        """Return the observation after which an adjacency must have been tried.

        After a change of known state, only failing sessions and sessions with one established end
        are awaited again. Other adjacencies cannot be cleared.
        """
        looks = [self._since.get(one, self._start)]
        if (one[0], one[2]) in now.failing + now.halves:
            looks.append(self.moved)
        return max(looks, key=lambda look: look.at)


class Settling:
    """Waits until a network has converged.

    ``routers`` lists the daemons of each router. ``kernel`` returns the current routes.
    ``delayed_s`` returns the time that each daemon has waited for a processor since it started.
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
        #: Adjacencies that had been tried but were down when the network was last settled.
        self._failing: set[Adjacency] = set()
        #: The last observation, and the reason why the network was not settled at that time.
        self.last = Look(0.0)
        self.why = ""
        #: Duration of the last ``wait`` in s, without the time that daemons waited for a processor.
        self.took_s = 0.0

    def wait(
        self,
        *,
        changed: bool,
        neighbours: AbstractSet[Neighbour] | None = None,
        confirmed: bool = False,
        within_s: float = math.inf,
    ) -> bool:
        """Wait until the network is settled; return False if it is not settled in time.

        The time limit is ``SETTLE_S``, or ``within_s`` if that is shorter. The limit is a little
        longer if nothing changes except sessions that are being retried.

        ``neighbours`` are the expected neighbours, if known. The wait then ends as soon as they are
        established, and does not include later actions. With ``confirmed``, the wait includes later
        actions: each expected neighbour must have sent a message since the last change, and no
        timer may still trigger a change. Only unexpected sessions are not awaited then.
        """
        start = self._look()
        brief = neighbours is not None and not confirmed
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
            # Observations use the daemons' processor time. Therefore they are less frequent before
            # the network can be settled.
            left_s = MEET_S - _ran_s(start, before)
            if left_s > REST_S + _EARLY_LOOK_S:
                pause_s = _EARLY_LOOK_S
            else:
                pause_s = _LOOK_S if left_s <= 0 else min(_LOOK_S, left_s + _LEAST_S)
            time.sleep(pause_s)
            now = self._look(timed=not brief and left_s <= pause_s)
            tries.note(before, now)
            self.took_s = _ran_s(start, now)
            if apart := tries.apart(now):
                self._try_now(apart)
            before = now
            down |= {one for one, found in now.adjacencies.items() if not found.up}
            found_all = brief and now.neighbours == neighbours
            moved, moving = moving, _moving(now, _ran_s(tries.moved, now))
            self.why = moving
            if not found_all:
                self.why = self.why or self._missing(start, now, tries)
            rests = not self.why and not brief
            timed = now if now.acts_s else timed
            acting = _acting(now, _ran_s(tries.moved, now)) if rests else ""
            if rests and timed is not None and _ran_s(timed, now) < _SHOWS_S:
                acting = acting or "effects of a timer that has just expired may not be visible yet"
            self.why = self.why or acting
            # A timer with a long remaining time may exist only briefly, for example a timer for
            # retransmissions.
            too_late = acting and _ran_s(start, now) + (now.acts_s or 0.0) > SETTLE_S
            endless = endless or now if too_late else None
            if endless is not None and _ran_s(endless, now) >= _BUILD_S:
                return False
            if not self.why:
                self._failing |= down
                self._failing -= {one for one, found in now.adjacencies.items() if found.up}
                return True
            # Brief pending work is not a change, for example a keepalive that waits to be sent.
            limit_s = SETTLE_S + (0.0 if moved and moving else _TRIES_S)
            if self.took_s > min(limit_s, within_s):
                return False

    def _try_now(self, sessions: Sequence[tuple[str, str]]) -> None:
        """Clear sessions, so that bgpd retries them.

        bgpd retries the sessions after a second, as on the first try. This also ends the wait for
        an answer on a connection that the other end has closed.
        """
        orders: dict[Who, list[str]] = {}
        for router, peer in sessions:
            orders.setdefault((router, "bgpd"), []).append(f"clear bgp ipv4 unicast {peer}")
        self._terminals.ask(orders)

    def _missing(self, start: Look, now: Look, tries: _Tries) -> str:
        """Return a description of a neighbour that may still be discovered or lost, or "".

        A packet from each established neighbour must have arrived since the last change of known
        state, because that change may have rerouted its packets. A missing session must have been
        tried both since this change and since its loss.
        """
        if _ran_s(start, now) < MEET_S:
            return "routers may still discover neighbours"
        for one, found in now.adjacencies.items():
            name = " ".join(one)
            known = tries.moved.adjacencies.get(one)
            if found.up and known is not None and known.up and not _heard(known, found):
                return f"no packet of the adjacency {name} has arrived since the last change"
            if found.up or found.shut or not tries.concerns(one):
                continue
            since = tries.since(one, now)
            if _ran_s(since, now) < since.adjacencies.get(one, found).next_s + _BUILD_S:
                return f"{name} has not been tried since the last change"
            if tries.is_under_way(one, now):
                return f"{name} is being established"
        return ""

    def _look(self, *, timed: bool = False) -> Look:
        """Return the current state of the network.

        Timers are queried first. The effects of timers that have already expired are then visible
        in the other answers.
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
        # Adjacencies whose tries fail change their state repeatedly. This does not count as a
        # change of the network, so only established adjacencies are listed.
        look.facts += sorted(one for one, found in look.adjacencies.items() if found.up)
        told = hashlib.blake2b(self._kernel(), digest_size=16)
        told.update(repr(look.facts).encode())
        look.digest = told.hexdigest()
        look.waiting |= look.differs()
        self.last = look
        return look


def _ran_s(before: Look, now: Look) -> float:
    """Return the time between two observations, without the time that daemons waited for a
    processor.

    The waiting times of the two daemons that waited longest are subtracted, because a session
    involves two daemons. At most ``STARVED_S`` is subtracted.
    """
    waited = sorted(max(0.0, b - a) for a, b in zip(before.delayed_s, now.delayed_s, strict=True))
    return now.at - before.at - min(sum(waited[-2:]), STARVED_S)


def _is_late(session: Adjacency, moved: Look, now: Look, rest_s: float) -> bool:
    """Return whether a session would not be retried soon.

    Either its next try is late, or an end has been waiting for an answer since the last change.
    """
    known, found = moved.adjacencies.get(session), now.adjacencies.get(session)
    if known is None or found is None:
        return False
    waits = known.state == found.state and found.state in _WAITING and rest_s >= _BUILD_S
    return waits or (found.lasting and known.next_s > _SOON_S)


def _moving(now: Look, rest_s: float) -> str:
    """Return a description of pending work, or ""."""
    if now.waiting:
        return "a daemon has pending work"
    return "the state of the network is still changing" if rest_s < REST_S else ""


def _acting(now: Look, rest_s: float) -> str:
    """Return a description of a timer that may still trigger a change, or ""."""
    late = now.acts_s != 0.0 or (now.defaults and rest_s < _DEFAULTS_S + REST_S)
    return "a timer may still change the network" if late else ""


def _acts_s(text: str) -> float:
    """Return the remaining time in s of the last timer that triggers a change, or 0."""
    times = [left for name, left in _TIMER.findall(text) if name in _ACTING]
    return max((_seconds(left) for left in times), default=0.0)


def _ages_s(text: str) -> float:
    """Return the time in s until the last unrefreshed LSA is removed from the database, or 0."""
    ages = [age for age in map(int, _AGE.findall(text)) if _REFRESHED_S < age < _MAX_AGE_S]
    return float(_MAX_AGE_S - min(ages)) if ages else 0.0


def _seconds(left: str) -> float:
    """Return the remaining time of a timer in s, plus a small margin.

    Times in another format than hours, minutes and seconds are days or longer, and count as
    infinite.
    """
    if found := _CLOCK.fullmatch(left):
        hours, minutes, seconds = found.groups()
        return 3600.0 * int(hours) + 60.0 * int(minutes) + float(seconds) + _LEAST_S
    return float("inf")


def _heard(began: Standing, found: Standing) -> bool:
    """Return whether a packet from the other end arrived between two observations.

    For OSPF, the mark is the time at which the neighbour would expire; only a hello changes this
    time. For BGP, the mark is the number of received messages.
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
            port = str(row.get("ifaceName")).partition(":")[0]
            again_s = _number(rows.get(port, {}).get("timerRetransmitSecs"))
            look.adjacencies[key] = Standing(
                state,
                mark=look.asked + _number(row.get("deadTimeMsecs")) / 1000,
                lasting=kind in _LASTING,
                up=kind in {"Full", "2-Way"},
                next_s=max(_EXCHANGE_S, min(again_s, _MOST_AGAIN_S) + MEET_S),
            )
            if kind == "Full":
                look.neighbours.add((router, "ospf", port))
            if kind == "Full" and _number(row.get("linkStateRetransmissionListCounter")):
                look.owed.append((router, str(rows.get(port, {}).get("area")), str(name)))
    for name, one in sorted(rows.items()):
        look.facts += [name, *(one.get(key) for key in _INTERFACE_FACTS)]
        look.types[router, name] = str(one.get("networkType"))
        # A passive port never leaves this state.
        look.waiting |= one.get("state") == "Waiting" and "timerHelloInMsecs" in one
    look.waiting |= any(name in whole for name in _PENDING)


def _ends(answers: list[Answer]) -> set[tuple[str, str]]:
    """Return the addresses (own, other) of the sessions that a router regards as established."""
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
        # An end whose packets do not reach the other end may repeatedly regard the session as
        # established until the hold time ends. Therefore both ends must agree.
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
            # bgpd rounds these times down to whole seconds.
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
            # If only this end regards the session as established, there are two cases: the other
            # end will soon report the loss, or it has not yet received the last packet.
            kind = look.halves if state == _ESTABLISHED else look.failing
            kind.append((router, name))
            # bgpd has not removed the routes of the closed session yet.
            look.waiting |= bool(_number(row.get("pfxRcd")))


def _is_telling(session: dict[str, Any]) -> bool:
    """Return whether an established session might not have received the whole table yet.

    If both ends support graceful restart (RFC 4724), the sender marks the end of its table.
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
