"""Observations after a change: which pairs are probed, when, and how long."""

import asyncio
import itertools
from typing import Any, cast

from k8s_real import OPEN, SHUT, WIDE, Enforcer, at_once, standing

from netarena.errors import EnvironmentFailed
from netarena_k8s.real import workload_set
from netarena_k8s.real.measure import Finding, Round
from netarena_k8s.world.model import (
    Policy,
    render_policy,
)


class Late(Enforcer):
    """A fake plug-in that enforces its policies only from a given round on."""

    def __init__(self, world, follows_at):
        super().__init__(world, lambda _: False)
        self._follows_at = follows_at

    async def measure(self, net, wait, pairs):
        if len(self.asked) >= self._follows_at:
            self._force = {name: one["spec"] for name, one in self._stored.items()}
        return await super().measure(net, wait, pairs)


def looked_at(follows_at, within_s, *specs):
    """Return the number of pairs per round, and the observation, after the given policies."""
    enforcer = cast("Any", Late(WIDE, follows_at))

    async def scene():
        one = standing(enforcer, WIDE)
        for spec in specs:
            enforcer.asked.clear()
            await one.put([render_policy(Policy(name="web", spec=spec), "shop")])
            sight = await one.look(within_s)
        return enforcer.asked, sight

    return asyncio.run(scene())


def test_only_pairs_that_should_change_are_probed_until_they_change():
    asked, sight = looked_at(3, 60.0, OPEN, SHUT)
    assert asked == [2, 2, 2, 2, 4, 4]
    wanted = tuple(pair.target != "web" for pair in WIDE.pairs)
    assert (sight.reached, sight.disagreement) == (wanted, ())


def test_all_pairs_are_probed_from_the_first_round_if_no_change_is_expected():
    asked, sight = looked_at(0, 60.0, OPEN, OPEN)
    assert asked == [4, 4]
    assert (all(sight.reached), sight.disagreement) == (True, ())


def test_all_pairs_are_probed_from_the_first_round_of_the_first_measurement():
    asked, sight = looked_at(0, 60.0, SHUT)
    assert asked == [4, 4]
    assert sight.disagreement == ()


class Losing(Late):
    """A fake plug-in that enforces no policy; one of its rounds fails because a pod is lost."""

    def __init__(self, world, lost_in):
        super().__init__(world, 1_000_000)
        self._lost_in = lost_in

    async def measure(self, net, wait, pairs):
        await asyncio.sleep(0.01)
        found = await super().measure(net, wait, pairs)
        if len(self.asked) == self._lost_in:
            raise EnvironmentFailed("a pod went")
        return found


class Replaced(workload_set.Shop):
    """A deployment whose pods are replaced within half a minute."""

    async def _find_pods(self, within_s):
        await asyncio.sleep(30.0)


def rounds_in_vain(lost_in=None):
    """Return (pairs per round, number of consecutive rounds) of an observation of 3.9 s.

    The observation waits for a change that never happens.
    """
    enforcer = cast("Any", Losing(WIDE, lost_in))
    one = Replaced(enforcer, "shop", WIDE, "image")
    one._meter = enforcer

    async def scene():
        one._reached = (True,) * len(WIDE.pairs)
        await one.put([render_policy(Policy(name="web", spec=SHUT), "shop")])
        assert (await one.look(3.9)).disagreement

    at_once(scene())
    return [(pairs, len(list(same))) for pairs, same in itertools.groupby(enforcer.asked)]


def test_pairs_that_should_change_are_probed_every_50_ms_for_a_quarter_of_the_time():
    (some, times), (every, _) = rounds_in_vain()
    assert (some, times, every) == (2, 20, 4)


def test_observation_restarts_after_pods_were_replaced():
    *before, last = rounds_in_vain(lost_in=21)
    assert before == [(2, 20), (4, 1), (2, 20)]
    assert last[0] == 4


def test_probing_of_pairs_that_never_change_ends_at_the_time_limit():
    asked, sight = looked_at(1_000_000, 0.4, OPEN, SHUT)
    assert asked == sorted(asked)
    assert set(asked) == {2, 4}
    assert len(sight.disagreement) == 2
    assert all(sight.reached)


class Dawdling(Late):
    """A fake plug-in that enforces late and answers only rounds with a long enough wait."""

    def __init__(self, world, follows_at, answers_ms):
        super().__init__(world, follows_at)
        self._answers_ms = answers_ms
        self.waits = []

    async def measure(self, net, wait, pairs):
        self.waits.append(wait)
        found = await super().measure(net, wait, pairs)
        if wait.expected_ms >= self._answers_ms:
            return found
        return Round(tuple(Finding("ok", "silent") for _ in found.found), 1)


def waits_of(enforcer, *specs):
    """Return the wait times of rounds that probe only the changing pairs, after the last spec."""

    async def scene():
        one = standing(cast("Any", enforcer), WIDE)
        for spec in specs:
            enforcer.asked.clear()
            enforcer.waits.clear()
            await one.put([render_policy(Policy(name="web", spec=spec), "shop")])
            await one.look(8.0)
        rounds = zip(enforcer.waits, enforcer.asked, strict=True)
        return [wait.expected_ms for wait, asked in rounds if asked < len(WIDE.pairs)]

    return asyncio.run(scene())


def test_pair_expected_to_open_gets_a_longer_wait_after_each_silence():
    assert waits_of(Dawdling(WIDE, 2, 100), SHUT, OPEN) == [50, 75, 112]


def test_pair_expected_to_close_is_probed_again_with_the_same_wait():
    assert waits_of(Dawdling(WIDE, 4, 0), OPEN, SHUT) == [50, 50, 50, 50, 50]


def test_wait_for_unexpected_answers_is_short():
    enforcer = Dawdling(WIDE, 2, 100)
    scouts = len(waits_of(enforcer, SHUT, OPEN))
    assert [wait.unexpected_ms for wait in enforcer.waits[:scouts]] == [50, 50, 50]


def test_wait_for_changing_pairs_is_bounded():
    waits = waits_of(Dawdling(WIDE, 2, 2000), SHUT, OPEN)
    assert waits[:2] == [50, 75]
    assert waits[-2:] == [1000, 1000]
