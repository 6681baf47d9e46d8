"""The published contract tests fail for each flaw that they check for."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from typing import ClassVar

import pytest
from netarena_toy import Toy, Waterworks
from orders import Orders, OrderTickets

import netarena.testing
from netarena.model import Execution, Judgement
from netarena.task.prompt import PromptParts
from netarena.testing import ApplicationContract


class Contract(ApplicationContract):
    application = "toy"
    config: ClassVar = {"num_queries": 2}


def with_world(**methods):
    works = type("Works", (Waterworks,), methods)

    class Changed(Toy):
        def environment(self, query, config):
            return works(query)

    return Changed


class OneGenerator(Toy):
    def rng(self, config, seed, index):
        if index == 0:
            self.shared = super().rng(config, seed, 0)
        return self.shared


class TellsSeed(Toy):
    def prompt(self, query, state, steps):
        return PromptParts(f"seed {query.seed}", "", query.text)


class TellsSolutionLater(Toy):
    def prompt(self, query, state, steps):
        hint = self.solve(query)[-1] if steps else ""
        return PromptParts(hint, "", query.text)


class RecordsSolution(Toy):
    def record(self, query, episode):
        return {"solution": list(self.solve(query))}


class AlwaysRight(Toy):
    def judge(self, query, initial, before, after):
        return Judgement(correct=True)


class ShowsNoLook(Toy):
    def demonstrate(self, query):
        return self.solve(query)


class TellsProgress(Toy):
    def progress(self, query, state):
        return sum(map(bool, state.values())) / len(state)


class NeverWhole(TellsProgress):
    def progress(self, query, state):
        return 0.9 * super().progress(query, state)


class KnowsFaults(TellsProgress):
    def progress(self, query, state):
        shut = [
            one.parameters["valve"] for one in query.actions if not state[one.parameters["valve"]]
        ]
        return 1.0 - len(shut) / 8


class ReadsAnything(Toy):
    def parse(self, reply):
        return "open v1"


class ReadsEmptyFence(Toy):
    def parse(self, reply):
        return "open v1" if reply == "``````" else super().parse(reply)


class RefusesNothing(OrderTickets):
    def declare_refused(self, causes, refused):
        return self.declare(causes)


class RefusesUnasked(OrderTickets):
    def requested(self, query):
        return 0


class AnyRefusal(OrderTickets):
    def unsettled(self, query, claim):
        return "" if claim is not None and claim.refused else super().unsettled(query, claim)


class NeedsNoDeclaration(OrderTickets):
    def unsettled(self, query, claim):
        return "" if claim is None else super().unsettled(query, claim)


def with_tickets(kind):
    class Changed(Orders):
        tickets = kind()

    return Changed


async def change_and_deny(self, move):
    await Waterworks.execute(self, move)
    return Execution(output="", executed=False)


async def observe_and_change(self):
    state = await Waterworks.observe(self)
    if self.turner.returncode is None:
        await self.turn("close" if state["v8"] else "open", "v8")
    return state


async def leave_folder(self):
    self.folder = None
    await Waterworks.close(self)


DAEMONS: list[int] = []


def start_daemon():
    """Start a process whose parent has ended."""
    command = "sleep 60 >/dev/null & echo $!"
    done = subprocess.run(command, shell=True, check=True, stdout=subprocess.PIPE)
    DAEMONS.append(int(done.stdout))


async def leave_daemon(self):
    await asyncio.to_thread(start_daemon)
    await Waterworks.close(self)


async def leave_when_cancelled(self):
    await asyncio.sleep(0)
    tempfile.mkdtemp()
    await asyncio.sleep(0)
    return await Waterworks.open(self)


async def break_afterwards(self):
    """Build a world as intended, then break it: the last written file reveals the fault."""
    actions, self.query = self.query.actions, self.query.model_copy(update={"actions": ()})
    await Waterworks.open(self)
    await asyncio.sleep(0.02)  # longer than the resolution of file times
    for action in actions:
        await self.turn("close", str(action.parameters["valve"]))
    return await self.observe()


FLAWS = {
    "one generator for all queries": (OneGenerator, "its_own_random_generator"),
    "the seed in a prompt": (TellsSeed, "reveal_nothing_hidden"),
    "the solution in a later prompt": (TellsSolutionLater, "reveal_nothing_hidden"),
    "the solution in a record": (RecordsSolution, "reveal_nothing_hidden"),
    "a judge that says yes": (AlwaysRight, "doing_nothing"),
    "a parser that reads anything": (ReadsAnything, "garbage"),
    "a parser that reads one kind of garbage": (ReadsEmptyFence, "garbage"),
    "a change that counts as not executed": (
        with_world(execute=change_and_deny),
        "reference_solution_solves",
    ),
    "a demonstration without a look": (ShowsNoLook, "demonstration"),
    "progress that never is whole": (NeverWhole, "progress_is_1"),
    "progress that knows the faults": (KnowsFaults, "progress_is_1"),
    "refused changes that are not written": (with_tickets(RefusesNothing), "declaration_is_parsed"),
    "refused changes that are not requested": (
        with_tickets(RefusesUnasked),
        "declaration_is_parsed",
    ),
    "any refused change counts": (with_tickets(AnyRefusal), "right_refusals"),
    "no declaration counts": (with_tickets(NeedsNoDeclaration), "right_refusals"),
    "observing changes the state": (with_world(observe=observe_and_change), "observing"),
    "a world that is healthy first and broken then": (
        with_world(open=break_afterwards),
        "hand_written_rules",
    ),
    "a folder left behind": (with_world(close=leave_folder), "tear_down"),
    "a process left behind": (with_world(close=leave_daemon), "tear_down"),
    "a folder left by a cancelled opening": (with_world(open=leave_when_cancelled), "tear_down"),
}


def named(contract, word):
    return [
        getattr(contract, name)
        for name in dir(contract)
        if name.startswith("test_") and word in name
    ]


@pytest.fixture
def daemons():
    yield
    while DAEMONS:
        os.kill(DAEMONS.pop(), signal.SIGKILL)


@pytest.mark.parametrize("flaw", FLAWS)
@pytest.mark.usefixtures("daemons")
def test_contract_test_fails_if_the_application_has_a_flaw(flaw, monkeypatch):
    application, word = FLAWS[flaw]
    monkeypatch.setattr(netarena.testing, "load", lambda name: application())
    (test,) = named(Contract(), word)
    with pytest.raises(AssertionError, match=r"\w+ \w+ \w+"):  # the message describes the flaw
        test()


@pytest.mark.parametrize("word", sorted({word for _, word in FLAWS.values()}))
def test_contract_test_of_an_application_without_the_flaw_passes(word):
    (test,) = named(Contract(), word)
    test()


@pytest.mark.parametrize(
    "word", ["right_refusals", "declaration_is_parsed", "reference_solution_and_declaration"]
)
def test_contract_of_tickets_with_refused_changes_passes(word, monkeypatch):
    monkeypatch.setattr(netarena.testing, "load", lambda name: Orders())
    (test,) = named(Contract(), word)
    test()


def test_progress_test_of_an_application_without_a_flaw_passes(monkeypatch):
    monkeypatch.setattr(netarena.testing, "load", lambda name: TellsProgress())
    Contract().test_progress_is_1_exactly_in_correct_states()
