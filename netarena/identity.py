"""Query ids and their sealed form.

An id consists of application, generator version, hash of the keys that shape queries, seed and
index. A reader of the id can therefore draw the query, its solution and all others of the run. If
records leave the service during a run, ids are sealed: an HMAC under the seed replaces seed and
index. The index of a sealed id can be found with the seed (in a run's ``config.json``).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from enum import IntEnum

from netarena.model import Query

#: hex digits of a sealed id that stand in place of seed and index
SEAL_DIGITS = 32
#: indexes that are tried for a sealed id
MOST_TRIED = 2**17
_OPEN = re.compile(r"(.+)-([0-9a-f]{8})-(\d{1,20})-(\d{1,9})")
_SEALED = re.compile(rf"(.+)-([0-9a-f]{{8}})-([0-9a-f]{{{SEAL_DIGITS}}})")


class Secrecy(IntEnum):
    """What leaves a run besides verdicts; a run that is resumed keeps the stricter."""

    #: ids and summaries tell the seed
    OPEN = 0
    #: ids do; a summary only when nothing is left to ask (``netarena.assessment``)
    SERVED = 1
    #: ids are sealed; a summary as above
    SEALED = 2


@dataclass(frozen=True)
class Identity:
    """What an id says; ``seed`` and ``index`` are null where it is sealed."""

    #: application and generator version, joined by a hyphen
    generator: str
    shape_hash: str
    seed: int | None = None
    index: int | None = None


def read_id(text: str) -> Identity | None:
    """Take an id apart; None for what is none."""
    if match := _OPEN.fullmatch(text):
        return Identity(match[1], match[2], int(match[3]), int(match[4]))
    if match := _SEALED.fullmatch(text):
        return Identity(match[1], match[2])
    return None


def seal_id(query_id: str, seed: int) -> str:
    """The sealed form of an open id: HMAC-SHA256 of it under the seed, the first 128 bits."""
    digest = hmac.digest(str(seed).encode(), query_id.encode(), hashlib.sha256)
    return f"{query_id.rsplit('-', 2)[0]}-{digest.hex()[:SEAL_DIGITS]}"


def seal(query: Query) -> Query:
    """The same query under its sealed id."""
    return query.model_copy(update={"id": seal_id(query.id, query.seed)})


def find_index(sealed: str, seed: int, size: int) -> int | None:
    """The index, of ``size`` ones, that a sealed id of ``seed`` stands for; None where it is of
    another seed."""
    rest = sealed.rpartition("-")[0]
    for index in range(min(size, MOST_TRIED)):
        if seal_id(f"{rest}-{seed}-{index}", seed) == sealed:
            return index
    return None
