"""A waterworks whose tickets request changes, one of which may be impossible.

Each closed valve is a requested change: open it. In every query with an even index, one more change
is requested for a valve that does not exist. A correct declaration refuses this change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from netarena_toy import Toy, ToyTickets

from netarena.config import Config
from netarena.errors import ReplyRefused
from netarena.model import Cause, Claim, Move, Query, Refusal

#: Reasons that a declaration may give for a refused change.
WORDS = ("no_valve", "rust")
_DONE = re.compile(r"done((?: v\d)*)((?:; \d+: \w+)*)")


class OrderTickets(ToyTickets):
    """Tickets with a change per closed valve, and an impossible change in every other query."""

    def requested(self, query: Query) -> int:
        return len(query.actions) + (query.index % 2 == 0)

    def refusals(self, query: Query) -> Sequence[Refusal]:
        if query.index % 2:
            return ()
        change = 1 + query.index // 2 % (len(query.actions) + 1)
        return (Refusal(change=change, because="no_valve"),)

    def refuses(self, config: Config) -> bool:
        return True

    def declaration(self, move: Move) -> Claim | None:
        match = _DONE.fullmatch(move) if isinstance(move, str) else None
        if match is None:
            return None
        causes = tuple(Cause(valve, "closed") for valve in match[1].split())
        pairs = [one.split(": ") for one in match[2].split("; ")[1:]]
        refused = tuple(Refusal(change=int(change), because=word) for change, word in pairs)
        return Claim(causes=causes or None, refused=refused)

    def declare_refused(self, causes: Sequence[Cause], refused: Sequence[Refusal]) -> str:
        return "".join(
            [self.declare(causes), *(f"; {one.change}: {one.because}" for one in refused)]
        )


class Orders(Toy):
    """The waterworks with ``OrderTickets``."""

    tickets = OrderTickets()

    def parse(self, reply: str) -> Move:
        match = _DONE.fullmatch(reply.strip())
        if match is None:
            return super().parse(reply)
        for one in match[2].split("; ")[1:]:
            change, _, word = one.partition(": ")
            if word not in WORDS or int(change) < 1:
                raise ReplyRefused(f"{one} is not a change and one of {', '.join(WORDS)}")
        return reply.strip()
