"""Whether the routers have come to rest after a command: found out, never slept for.

A network is settled when

* every adjacency that is there was refreshed by a hello or a keepalive that was sent after the
  command and after the last change of what is known, by which its packets may go another way,
* each that is not there has been tried once since the command, unless it was not there either when
  the network was settled last, and nothing was changed since,
* a session that is not there has been tried after the last change of what is known, too, by which
  it may reach its other end, and after it was lost,
* or those that are there are known to be all that there will be,
* nothing is on its way: no database that is exchanged, no session that tells all it knows, no
  computation or update that waits, no timer of a daemon that acts when it ends, and
* what the daemons know and what the kernel routes stay the same for ``REST_S``.

Times are those in which daemons could run: what two of them waited for a processor is taken off.
bgpd tries a session that failed again and again after twice as long, up to two minutes, and an end
may wait for an answer to what the other has given up; who has changed something wants to see what
comes of it, so all that are not there, or are no more, are told to try anew: once, and again where
what is known has changed since and the next try is far, or waits for an answer. Two ends that try
at once may end each other's session by the rule about collisions (RFC 4271, 6.8), and then do so
again, as their timers began at once: one of them is told to try a little later. A session is there
where both ends say so: where the packets of one are lost the other takes it for there again and
again, for the hold time each, in which it refuses whatever the first tries. So one that was there
by one end alone when something has changed, and still is, is told to try anew there, too.

What daemons leave be for a while, by what is set or was set when that began, is told by their
timers: what acts later than ``SETTLE_S`` is not waited for, and is no rest.
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

from netarena_route.backbone.lab_spec import Neighbour
from netarena_route.real.backbone.frr import Answer, Terminals, Who

#: a network that has not come to rest after so long does not, by whoever configured it; what a
#: daemon waited for a processor meanwhile does not count, up to so much
SETTLE_S, STARVED_S = 15.0, 30.0
#: and so much longer where it rests, but sessions are still told to try
_TRIES_S = 5.0
#: what the daemons know is the same for so long: longer than any of their pauses between hearing
#: of something and telling it on
REST_S = 0.3
#: from the end of a timer until what it did shows in the kernel
_SHOWS_S = 0.15
#: between hellos, and a little: within it whoever can be met is met
MEET_S = 1.1
#: from the first packet of a session or an exchange to its end, on a busy machine
_BUILD_S = 1.0
#: one of two ends that have ended each other's session is told to try so much later
_APART_S = 0.3
#: how often it is waited for that one which was lost is tried: some come and go for ever
_LOSSES = 2
#: a session whose next try is later is told to try anew
_SOON_S = 4.0
#: between looks
_LOOK_S, _EARLY_LOOK_S, _LEAST_S = 0.1, 0.25, 0.005
#: a session that is older has told all, whether it said so or not
_TELLING_S = 4.0
#: of the times that daemons tell
_JITTER_S = 0.2

_OSPF = ("show ip ospf neighbor json", "show ip ospf interface json", "show ip ospf json")
_BGP = ("show bgp ipv4 unicast summary json", "show bgp neighbors json")
_ZEBRA = ("show ip route summary json",)
_QUESTIONS = {"ospfd": _OSPF, "bgpd": _BGP, "zebra": _ZEBRA}
#: and of all their timers, by its name in FRR 8 and in newer ones
_TIMERS = ("show thread timers", "show event timers")
#: and of ospfd how old its database is
_AGES = "show ip ospf database json"
_AGE = re.compile(r'"lsaAge": *(\d+)')
#: an advertisement that is older was made so (``transmit-delay``), as each is refreshed after half
#: an hour; at the age of an hour it is taken out of all databases (RFC 2328, B)
_REFRESHED_S, _MAX_AGE_S = 1900, 3600
_TIMER = re.compile(r"^ +\(?(\w+)\)? +(\S+)$", re.MULTILINE)
_CLOCK = re.compile(r"(\d+):(\d+):(\d+(?:\.\d+)?)")
#: those that change what is routed or told when they end, by the functions of FRR 8.4 that do;
#: not those that send hellos and keepalives, wait for those of others, try sessions, or refresh
#: what is known
_ACTING = frozenset(
    {
        # bgpd: announcements between intervals, on a condition, of new neighbours, at its start;
        # policies; who comes and goes; who is let in again; who is kept though it is gone
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
        # zebra, and queues of all
        "zebra_route_map_update_timer",
        "zebra_gr_route_stale_delete_timer_expiry",
        "work_queue_run",
        # ospfd: areas, outside routes, neighbours that are asked, and what it says of itself
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
#: bgpd looks so often whether a default is told, where a route map says on what condition
_DEFAULTS_S, _DEFAULT_MAP = 5.0, "defaultRouteMap"
#: after how many repetitions neighbours of OSPF have told each other all they know, if they can
_ROUNDS = 4
#: of OSPF's neighbours: states that last
_LASTING = ("Full", "2-Way", "Down", "Deleted")
#: of BGP's peers: states that last, by the words of their administrators
_SHUT = ("Idle (Admin)", "Idle (PfxCt)")
_ESTABLISHED, _BOTH = "Established", "advertisedAndReceived"
#: in which an end waits for the other
_WAITING = ("OpenSent", "OpenConfirm", _ESTABLISHED)
#: of what daemons say of themselves: what stays the same while nothing happens
_OSPF_FACTS = ("lsaExternalCounter", "lsaExternalChecksum")
_INTERFACE_FACTS = ("ifUp", "area", "state", "cost", "drId", "bdrId", "nbrAdjacentCount")
_BGP_FACTS = ("tableVersion", "ribCount")
_PEER_FACTS = ("pfxRcd", "pfxSnt")
_PENDING = ("spfTimerDueInMsecs",)

#: router, protocol, and who is at the other end
Adjacency: TypeAlias = tuple[str, str, str]


class Standing(NamedTuple):
    """Of one adjacency: ``state`` in the daemon's words, ``mark`` which grows or jumps when it is
    heard of, ``next_s`` when it is tried again at the latest, ``lost`` how often it was there and
    ended; ``lasting`` unless it is under way, ``up`` if it is there, ``shut`` if nobody tries,
    ``low`` at the end whose address sorts first."""

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
    """What all daemons said, and the kernel, at one time (monotonic, s); most had done so soon
    after they were ``asked``, one may have been late."""

    at: float
    asked: float = 0.0
    adjacencies: dict[Adjacency, Standing] = field(default_factory=dict)
    neighbours: set[Neighbour] = field(default_factory=set)
    #: sessions, (router, address), that are not there as this end sees it, but for those that
    #: nobody tries
    failing: list[tuple[str, str]] = field(default_factory=list)
    #: those that are by one end alone, which is this one: none where a daemon has not answered, as
    #: it may be the other
    halves: list[tuple[str, str]] = field(default_factory=list)
    #: addresses (own, the other's) of the ends of sessions that stand as these ends see it
    ends: set[tuple[str, str]] = field(default_factory=set)
    #: (router, port) -> the type of the network there, as OSPF takes it
    types: dict[tuple[str, str], str] = field(default_factory=dict)
    #: how long each daemon has waited for a processor since it began
    delayed_s: Sequence[float] = ()
    waiting: bool = False
    #: until the last timer ends that acts, s, or none where timers were not asked for; and whether
    #: a default is told on a condition
    acts_s: float | None = None
    defaults: bool = False
    digest: str = ""
    #: (router, area) -> what is in its database; router id -> routers; and (router, area, id) of
    #: neighbours that have not acknowledged something
    databases: dict[tuple[str, str], str] = field(default_factory=dict)
    routers: dict[str, list[str]] = field(default_factory=dict)
    owed: list[tuple[str, str, str]] = field(default_factory=list)
    facts: list[object] = field(default_factory=list)

    def differs(self) -> bool:
        """Whether a neighbour lacks what it was told and has not acknowledged: a second later it
        may only not have said so yet."""
        for router, area, number in self.owed:
            match self.routers.get(number, []):
                case [other]:
                    known = self.databases.get((router, area))
                    if known != self.databases.get((other, area)):
                        return True
        return False


class _Tries:
    """What has changed in one wait, and of the sessions that are not there, (router, address),
    which are told to try anew: none that ``failed`` before, nor one that will not be there, if the
    ``neighbours`` are known."""

    def __init__(
        self,
        start: Look,
        failed: AbstractSet[Adjacency],
        neighbours: AbstractSet[Neighbour] | None,
    ) -> None:
        self._start, self._failed, self._neighbours = start, failed, neighbours
        #: the first look since the last change of what is known
        self.moved = start
        #: that look, of when each was told
        self._told: dict[tuple[str, str], Look] = {}
        self._losses: dict[Adjacency, int] = {}
        #: the look in which each was lost last, or after it was told
        self._since: dict[Adjacency, Look] = {}
        self._together: dict[Adjacency, Look] = {}
        #: the first look since then at each that is under way: some open and fail for ever
        self._entered: dict[Adjacency, Look] = {}

    def concerns(self, one: Adjacency) -> bool:
        """Whether something is to come of it; of a session it is known whether it will be there,
        of neighbours of OSPF only by port."""
        is_awaited = self._neighbours is None or one[1] != "bgp" or one in self._neighbours
        return is_awaited and one not in self._failed

    def missing(self, now: Look) -> list[tuple[str, str]]:
        """Those that are to be told now: each once, and again where something has moved since,
        nothing does any more, and it would not be tried soon by itself."""
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
        """They have been told, soon before a look."""
        self._told |= dict.fromkeys(sessions, self.moved)
        self._since |= {(router, "bgp", peer): look for router, peer in sessions}

    def note(self, before: Look, now: Look) -> None:
        """What has changed between two looks, and which sessions were lost."""
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
        """One end each of those that were lost a little ago, and wait for their next try."""
        due = [one for one, look in self._together.items() if _ran_s(look, now) >= _APART_S]
        for one in due:
            del self._together[one]
            self._since[one] = now
        states = {one: found.state for one, found in now.adjacencies.items()}
        return [(one[0], one[2]) for one in due if states.get(one) == "Idle"]

    def is_under_way(self, one: Adjacency, now: Look) -> bool:
        """Whether it is in a state that may lead on, and came to one a moment ago at first."""
        entered = self._entered.get(one, self.moved)
        return not now.adjacencies[one].lasting and _ran_s(entered, now) < _BUILD_S

    def since(self, one: Adjacency, now: Look) -> Look:
        """After which look it must have been tried. Who cannot be told to is not waited for
        again."""
        looks = [self._since.get(one, self._start)]
        if (one[0], one[2]) in now.failing + now.halves:
            looks.append(self.moved)
        return max(looks, key=lambda look: look.at)


class Settling:
    """Of one network; ``routers`` are its machines with their daemons, ``kernel`` tells what is
    routed now, ``delayed_s`` how long each daemon has waited for a processor since it began."""

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
        #: that were not there when it was settled last, though they were tried
        self._failing: set[Adjacency] = set()
        #: the last look, and why it was not settled then, in words
        self.last = Look(0.0)
        self.why = ""

    def wait(
        self,
        *,
        changed: bool,
        neighbours: AbstractSet[Neighbour] | None = None,
    ) -> bool:
        """Return when it is settled, true, or when it has not been for ``SETTLE_S``; for a little
        longer where it rests then, and only sessions are still tried.

        ``neighbours`` are those that there will be, if that is known; then it is known what will
        be seen, too, and what acts later is not waited for.
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
            # looks cost the daemons' time: before anything can be settled there are few
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
            # what is told again, say, has a long timer for a moment
            too_late = acting and _ran_s(start, now) + (now.acts_s or 0.0) > SETTLE_S
            endless = endless or now if too_late else None
            if endless is not None and _ran_s(endless, now) >= _BUILD_S:
                return False
            if not self.why:
                self._failing |= down
                self._failing -= {one for one, found in now.adjacencies.items() if found.up}
                return True
            # a keepalive that waits to be sent, say, is no unrest
            if _ran_s(start, now) > SETTLE_S + (0.0 if moved and moving else _TRIES_S):
                return False

    def _try_now(self, sessions: Sequence[tuple[str, str]]) -> None:
        """Clear what is not there, at both ends: it is tried as for the first time, a second later,
        and no end waits for what the other has given up."""
        orders: dict[Who, list[str]] = {}
        for router, peer in sessions:
            orders.setdefault((router, "bgpd"), []).append(f"clear bgp ipv4 unicast {peer}")
        self._terminals.ask(orders)

    def _missing(self, start: Look, now: Look, tries: _Tries) -> str:
        """Which neighbours may still come or go; empty if none. Of those that are there each must
        be heard of since the last change of what is known: its packets may take another way. A
        session that is not there must be tried since then, too, and since it was lost."""
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
        """What is so now. Timers are asked for first: what those do that are over shows then."""
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
        # those that try in vain go from one state to the next: that is no change
        look.facts += sorted(one for one, found in look.adjacencies.items() if found.up)
        told = hashlib.blake2b(self._kernel(), digest_size=16)
        told.update(repr(look.facts).encode())
        look.digest = told.hexdigest()
        look.waiting |= look.differs()
        self.last = look
        return look


def _ran_s(before: Look, now: Look) -> float:
    """The time between two looks less what the two daemons, as a session has, waited that waited
    longest for a processor; at most ``STARVED_S``."""
    waited = sorted(max(0.0, b - a) for a, b in zip(before.delayed_s, now.delayed_s, strict=True))
    return now.at - before.at - min(sum(waited[-2:]), STARVED_S)


def _is_late(session: Adjacency, moved: Look, now: Look, rest_s: float) -> bool:
    """Whether it would not be tried soon after the last change: the next try is far, or an end has
    waited since for an answer to what was sent before."""
    known, found = moved.adjacencies.get(session), now.adjacencies.get(session)
    if known is None or found is None:
        return False
    waits = known.state == found.state and found.state in _WAITING and rest_s >= _BUILD_S
    return waits or (found.lasting and known.next_s > _SOON_S)


def _moving(now: Look, rest_s: float) -> str:
    """What is on its way; empty if nothing."""
    if now.waiting:
        return "something waits to be computed"
    return "what is known changes" if rest_s < REST_S else ""


def _acting(now: Look, rest_s: float) -> str:
    """Whether something acts later than all else; empty if not."""
    late = now.acts_s != 0.0 or (now.defaults and rest_s < _DEFAULTS_S + REST_S)
    return "a change may still act" if late else ""


def _acts_s(text: str) -> float:
    """How long the last of the timers runs that act, s; 0 without any."""
    times = [left for name, left in _TIMER.findall(text) if name in _ACTING]
    return max((_seconds(left) for left in times), default=0.0)


def _ages_s(text: str) -> float:
    """How long until the last advertisement of a database is taken out of it that was not refreshed
    in time, s; 0 without any."""
    ages = [age for age in map(int, _AGE.findall(text)) if _REFRESHED_S < age < _MAX_AGE_S]
    return float(_MAX_AGE_S - min(ages)) if ages else 0.0


def _seconds(left: str) -> float:
    """The rest of a timer, which is over a little later at the earliest; what is told otherwise
    than in hours, minutes and seconds takes days."""
    if found := _CLOCK.fullmatch(left):
        hours, minutes, seconds = found.groups()
        return 3600.0 * int(hours) + 60.0 * int(minutes) + float(seconds) + _LEAST_S
    return float("inf")


def _heard(began: Standing, found: Standing) -> bool:
    """Whether it was heard of since. Of OSPF the mark is when it would be given up, which stays
    the same until a hello moves it; of BGP it is how much has come."""
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
        # a passive one waits for nobody
        look.waiting |= one.get("state") == "Waiting" and "timerHelloInMsecs" in one
    look.waiting |= any(name in whole for name in _PENDING)


def _ends(answers: list[Answer]) -> set[tuple[str, str]]:
    """The addresses, own first, of the sessions that stand as a router sees it."""
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
        # one end alone may take a session for there until it has heard nothing for the hold time,
        # and again and again, where the other takes none of its packets
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
            # told in whole seconds that are over
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
            # an end that takes it for there is told by the other, or has only heard of it first
            kind = look.halves if state == _ESTABLISHED else look.failing
            kind.append((router, name))
            # what came by it ends with it
            look.waiting |= bool(_number(row.get("pfxRcd")))


def _is_telling(session: dict[str, Any]) -> bool:
    """Whether the other end of a session that is there has not told all that it knows: it says so
    at its end (RFC 4724) where both can, soon after."""
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
