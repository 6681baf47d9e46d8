"""The audit reads the refused changes of a reference solution."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import pytest
from netarena_toy import ToyConfig
from orders import Orders, OrderTickets

from netarena.audit.check import audit
from netarena.audit.result import Audit
from netarena.config import Config
from netarena.model import Claim, Query, Refusal

CONFIG = {"briefing": "ticket", "quiet": False, "complexity_level": ["level2"]}


def run(application: Orders, **values: object) -> Audit:
    config: Config = ToyConfig.parse({**CONFIG, **values})
    return asyncio.run(audit(application, config, 7, 4))


def with_tickets(kind: type[OrderTickets]) -> Orders:
    application = Orders()
    application.tickets = kind()
    return application


class Declared(Orders):
    """Orders whose reference solutions end with a declaration."""

    def solve(self, query: Query) -> Sequence[str]:
        return [*super().solve(query), self.tickets.reference(query)]

    def solutions(self, query: Query) -> Iterable[Sequence[str]]:
        *repairs, end = self.solve(query)
        return [[*repairs, end], [*repairs[::-1], end]]


class Forgets(OrderTickets):
    def reference(self, query: Query) -> str:
        return self.declare(self.causes(query))


class Others(OrderTickets):
    """Tickets whose reference refuses the first change, for the reason ``rust``."""

    def reference(self, query: Query) -> str:
        return self.declare_refused((), (Refusal(change=1, because="rust"),))


class Unreadable(OrderTickets):
    def reference(self, query: Query) -> str:
        return "done; 1: thirst"


class Unrequested(OrderTickets):
    def requested(self, query: Query) -> int:
        return 0


class Never(OrderTickets):
    def unsettled(self, query: Query, claim: Claim | None) -> str:
        return "Nothing is ever settled."


def test_reference_that_refuses_the_right_change_is_valid() -> None:
    for application in (Orders(), Declared()):
        found = run(application)
        assert (found.queries, found.flaws) == (4, ())


@pytest.mark.parametrize(
    ("kind", "number", "reason", "told"),
    [
        (Forgets, 2, "unsolved", "The agent did not refuse a requested change"),
        (Others, 2, "unsolved", "The agent refused"),
        (Unreadable, 2, "refused", "turn 3: 1: thirst is not a change"),
        (Unrequested, 2, "refused", "turn 3: the task requests no changes"),
        (
            Never,
            4,
            "unsolved",
            "the reference solution does not solve it: Nothing is ever settled.",
        ),
    ],
)
def test_wrong_reference_refusal_is_reported_as_a_flaw(
    kind: type[OrderTickets], number: int, reason: str, told: str
) -> None:
    found = run(with_tickets(kind))
    assert found.reasons() == {reason: number}
    assert all(told in flaw.detail for flaw in found.flaws)


def test_wrong_declaration_at_the_end_of_a_solution_is_a_flaw() -> None:
    application = Declared()
    application.tickets = Others()
    # the reference refuses a change even in queries whose changes can all be made
    assert run(application).reasons() == {"unsolved": 4}


def test_solution_ends_with_its_declaration() -> None:
    class Longer(Orders):
        def solve(self, query: Query) -> Sequence[str]:
            repair, *others = super().solve(query)
            return [repair, self.tickets.reference(query), *others]

    found = run(Longer())
    assert found.reasons() == {"unsolved": 4}
    assert all("is closed" in flaw.detail for flaw in found.flaws)


def test_replies_after_the_right_declaration_are_not_sent() -> None:
    class Chatty(Declared):
        def solutions(self, query: Query) -> Iterable[Sequence[str]]:
            return [[*self.solve(query), "close v1"]]

    assert not run(Chatty()).flaws


def test_declaration_uses_up_one_turn_of_the_solution() -> None:
    for application in (Orders(), Declared()):
        assert not run(application, max_iterations=3).flaws
    found = run(Orders(), max_iterations=2)
    assert {flaw.detail for flaw in found.flaws} == {
        "the reference solution takes 3 turns; the limit is 2"
    }
    assert len(found.flaws) == 2


def test_declaration_without_a_ticket_is_refused_and_not_required() -> None:
    assert not run(Orders(), briefing="full").flaws

    class First(Orders):
        def solve(self, query: Query) -> Sequence[str]:
            return [self.tickets.reference(query), *super().solve(query)]

    found = run(First(), briefing="full")
    assert found.reasons() == {"refused": 4}
    assert all("There is nothing to declare" in flaw.detail for flaw in found.flaws)
