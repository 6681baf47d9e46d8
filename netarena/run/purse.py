"""Cost limit of an assessment's replies (``netarena run --max-cost``).

All participants of an assessment share a ``Purse``. Before each request, the purse reserves the
maximum cost of the reply; after the reply, it counts the reported cost. If the remaining budget is
less than this maximum, the request waits for open requests, which usually cost less than their
reservation. If the budget is still too small afterwards, the run ends. The attempt then has no
verdict, and a resumed run repeats it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from netarena.model import Reply, Usage

#: Function that stores the costs of an account, so that a resumed run can read them.
Record = Callable[..., None]
#: Maximum output tokens of one reply, if neither LiteLLM's table nor the agent's command limits
#: them.
MAX_OUTPUT_TOKENS = 16_384


@dataclass(frozen=True)
class Price:
    """Price of a model in US dollars per token, and the maximum number of tokens in one reply."""

    input_usd: float
    output_usd: float
    max_output_tokens: int = MAX_OUTPUT_TOKENS

    def most(self, prompt: str) -> float:
        """Return the maximum cost of a reply to ``prompt``, counting each byte as a token."""
        size = len(prompt.encode("utf-8", "replace"))
        return size * self.input_usd + self.max_output_tokens * self.output_usd

    def of(self, usage: Usage) -> float:
        """Return the reported cost of replies or, without it, the price of the reported tokens."""
        if usage.cost_usd is not None:
            return usage.cost_usd
        return usage.input_tokens * self.input_usd + usage.output_tokens * self.output_usd

    def of_reply(self, prompt: str, reply: Reply) -> float:
        """Return the cost of one reply; if no usage is reported, each byte counts as a token."""
        usage = Usage.read(reply)
        if usage.replies:
            return self.of(usage)
        sizes = [len(text.encode("utf-8", "replace")) for text in (prompt, reply.text)]
        return sizes[0] * self.input_usd + sizes[1] * self.output_usd


#: Price of agents that use no model.
FREE = Price(0.0, 0.0)


@dataclass
class Purse:
    """Limit of the total cost of all participants' replies, in US dollars."""

    limit_usd: float
    #: Prices by role; every participant has one.
    prices: dict[str, Price]
    #: Cost so far, including earlier parts of a resumed run.
    spent_usd: float = 0.0
    #: Whether the remaining budget was too small for a reply, so that no more requests are sent.
    spent_up: bool = False
    #: Maximum cost of the reply for which the remaining budget was too small.
    lacking_usd: float = 0.0
    _reserved: dict[tuple[str, object], float] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def account(
        self,
        role: str,
        paid: Iterable[Usage] = (),
        told_usd: float = 0.0,
        dearest_usd: float = 0.0,
        record: Record = lambda **_: None,
    ) -> Account:
        """Return the account of a participant.

        For a resumed run, ``paid`` is the usage of its graded episodes. ``told_usd`` (the total
        cost) and ``dearest_usd`` (the cost of the most expensive reply) are the values that the run
        stored last. ``record`` stores these two values.
        """
        price = self.prices[role]
        spent = max(sum(map(price.of, paid)), told_usd)
        account = Account(self, role, price, spent, dearest_usd, record)
        self.spent_usd += account.spent_usd
        return account

    def reserved_usd(self, role: str) -> float:
        """Return the amount in US dollars reserved for a participant's open requests."""
        return sum(usd for (owner, _), usd in self._reserved.items() if owner == role)

    def tell(self) -> str:
        """Return a text with the cost so far, and the maximum cost of another reply."""
        return (
            f"{self.spent_usd:.4f} USD of {self.limit_usd:g} have been spent, and one more reply "
            f"may cost {self.lacking_usd:.4f}"
        )

    async def take(self, key: tuple[str, object], most_usd: float) -> bool:
        """Reserve ``most_usd``; return false if the remaining budget is too small.

        If open requests may still free a part of their reservations, wait for them first.
        """
        while not self.spent_up:
            if self.spent_usd + sum(self._reserved.values()) + most_usd <= self.limit_usd:
                self._reserved[key] = most_usd
                return True
            if not self._reserved:
                self.spent_up, self.lacking_usd = True, most_usd
                break
            self._changed.clear()
            await self._changed.wait()
        self._changed.set()
        return False

    def settle(self, key: tuple[str, object], cost_usd: float | None) -> float:
        """Release the reservation of ``key``, and count ``cost_usd``.

        If ``cost_usd`` is None, count the reserved amount. Return the counted amount.
        """
        reserved = self._reserved.pop(key, 0.0)
        paid = reserved if cost_usd is None else cost_usd
        self.spent_usd += paid
        self._changed.set()
        return paid


@dataclass
class Account:
    """One participant's part of a purse.

    Reservations belong to attempts, because each attempt has at most one open request.
    """

    purse: Purse
    role: str
    price: Price
    spent_usd: float
    #: Cost of the most expensive reply so far. It may exceed ``Price.most``, because an agent may
    #: call its model several times.
    dearest_usd: float = 0.0
    #: Stores the result of ``statement``.
    record: Record = lambda **_: None
    _prompts: dict[int, str] = field(default_factory=dict)

    @property
    def spent_up(self) -> bool:
        """Return whether the budget is used up, so that no more requests are sent."""
        return self.purse.spent_up

    async def reserve(self, attempt: object, prompt: str) -> bool:
        """Reserve the cost of a reply to ``prompt``; return false if the budget is too small."""
        most = max(self.price.most(prompt), self.dearest_usd)
        if not await self.purse.take((self.role, id(attempt)), most):
            return False
        self._prompts[id(attempt)] = prompt
        # stored before the request is sent, because the process may be killed afterwards
        self.record(**self.statement())
        return True

    def statement(self) -> dict[str, float]:
        """Return the total cost and the cost of the most expensive reply, for a resumed run.

        For open requests, the reserved amount counts as their cost.
        """
        spent = self.spent_usd + self.purse.reserved_usd(self.role)
        return {"cost_usd": spent, "dearest_usd": self.dearest_usd}

    def pay(self, attempt: object, reply: Reply) -> None:
        """Count the cost of a reply."""
        cost = self.price.of_reply(self._prompts.pop(id(attempt), ""), reply)
        self.dearest_usd = max(self.dearest_usd, cost)
        self._settle(attempt, cost)

    def leave(self, attempt: object, *, lost: bool) -> None:
        """Release an attempt's reservation. If its reply is ``lost``, count the reserved amount."""
        if self._prompts.pop(id(attempt), None) is not None:
            self._settle(attempt, None if lost else 0.0)

    def _settle(self, attempt: object, cost_usd: float | None) -> None:
        self.spent_usd += self.purse.settle((self.role, id(attempt)), cost_usd)
