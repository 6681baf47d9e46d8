"""Scripted agents of an application: the reference solution, an idle agent, and baselines."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import ClassVar

from netarena.config import Briefing, Config
from netarena.model import Query


class Baselines:
    """Replies of the scripted agents; an application overrides the methods of its agents.

    The agents ``oracle`` and ``noop`` need no method: ``oracle`` sends the replies of
    ``Application.solve``, and ``noop`` sends no usable reply.
    """

    #: Agents that do not know the solution, and whose results every ranking should show.
    floors: ClassVar[tuple[str, ...]] = ("noop", "random")

    def offers(self, agent: str) -> bool:
        """Return whether the application has the agent of this name, such as ``random``."""
        (method,) = (name for name in vars(Baselines) if name.startswith(f"{agent}_"))
        return getattr(type(self), method) is not getattr(Baselines, method)

    def random_reply(self, query: Query, rng: random.Random) -> str:
        """Return a plausible, well-formed and wrong reply."""
        raise NotImplementedError

    def hostile_replies(self) -> Sequence[str]:
        """Return replies that attack the sandbox or the grader."""
        raise NotImplementedError

    def blanket_replies(self, answers: Sequence[Query]) -> Sequence[str]:
        """Return the replies, one per turn, that score best on ``answers`` without reading prompts.

        ``answers`` are queries of one label from another seed, with ground truth.
        """
        raise NotImplementedError

    def heuristic_operator(self, briefing: Briefing = Briefing.FULL) -> Callable[[str], str]:
        """Return an operator for one conversation: a function from a prompt to a reply.

        The operator follows a fixed checklist. All prompts of the conversation have this briefing.
        """
        raise NotImplementedError

    def change_replies(self, query: Query) -> Sequence[str]:
        """Return the replies with which the agent ``heuristic`` makes requested changes.

        The agent knows the target configuration, but not a safe order. The result is empty if
        ``query`` requests no changes; the agent then uses ``heuristic_operator``.
        """
        del query
        return ()

    def push_replies(self, query: Query, rng: random.Random | None = None) -> Sequence[str]:
        """Return replies that write the target configuration, one machine per reply.

        The target configuration contains all requested changes. The machines are in the
        order of their names, or in random order with ``rng``. The result is empty if ``query``
        requests no changes.
        """
        del query, rng
        return ()

    def parser_reply(self, prompt: str) -> str:
        """Return the reply that fixed patterns derive from a prompt.

        Raises ValueError for a prompt that matches no pattern.
        """
        raise NotImplementedError

    def solved_unseen_by(self, config: Config) -> str | None:
        """Return the scripted agent that solves nearly all queries of ``config`` without a model.

        Such an agent parses prompts with fixed patterns, or sends a known configuration without
        observations. The result is None if there is no such agent. If there is one, summaries and
        reports show a warning.
        """
        del config
        return None
