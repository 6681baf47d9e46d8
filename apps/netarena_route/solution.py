"""The reference solution: what an operator who sees through a query's faults would say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import permutations

from netarena.model import Query
from netarena_route.action import Fault
from netarena_route.query import faults_of


def solve(query: Query) -> list[str]:
    """The replies, a diagnosis and the command that follows from it, as few as repair all.

    Each command leaves alone what the others are for.
    """
    return _replies(faults_of(query))


def orders(query: Query) -> Iterator[list[str]]:
    """The reference solution in every order of its repairs; each is safe."""
    for faults in permutations(faults_of(query)):
        yield _replies(faults)


def _replies(faults: Sequence[Fault]) -> list[str]:
    return [
        f"{fault.words}.\n{json.dumps(command.model_dump())}"
        for fault in faults
        for command in fault.repair
    ]
