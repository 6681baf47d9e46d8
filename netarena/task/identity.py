"""Query ids and their sealed form.

An id consists of application, generator version, hash of the keys that determine queries, seed and
index. A reader of the id can therefore generate the query, its solution and the run's other
queries. If clients receive records during a run, ids are sealed: an HMAC with the seed as key
replaces seed and index. A reader who knows the seed (from ``config.json``) can find the index.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from enum import IntEnum

from netarena.model import Query

#: Number of hex digits in a sealed id that replace seed and index.
SEAL_DIGITS = 32
#: Maximum number of indices that are tried for a sealed id.
MOST_TRIED = 2**17
_OPEN = re.compile(r"(.+)-([0-9a-f]{8})-(\d{1,20})-(\d{1,9})")
_SEALED = re.compile(rf"(.+)-([0-9a-f]{{8}})-([0-9a-f]{{{SEAL_DIGITS}}})")


class Secrecy(IntEnum):
    """Visibility of a run's seed to readers of its records.

    A resumed run uses the stricter of the old and the new value.
    """

    #: Ids and summaries contain the seed.
    OPEN = 0
    #: Ids contain the seed. A summary contains it only when no further query will be asked
    #: (``netarena.run.assessment``).
    SERVED = 1
    #: Ids are sealed. A summary contains the seed under the same condition as with ``SERVED``.
    SEALED = 2


@dataclass(frozen=True)
class Identity:
    """Contents of an id; ``seed`` and ``index`` are null if the id is sealed."""

    #: Application and generator version, joined by a hyphen.
    generator: str
    shape_hash: str
    seed: int | None = None
    index: int | None = None


def read_id(text: str) -> Identity | None:
    """Parse an id; return None if it is invalid."""
    if match := _OPEN.fullmatch(text):
        return Identity(match[1], match[2], int(match[3]), int(match[4]))
    if match := _SEALED.fullmatch(text):
        return Identity(match[1], match[2])
    return None


def seal_id(query_id: str, seed: int) -> str:
    """Return the sealed form of an open id: 128 bits of its HMAC-SHA256 with the seed as key."""
    digest = hmac.digest(str(seed).encode(), query_id.encode(), hashlib.sha256)
    return f"{query_id.rsplit('-', 2)[0]}-{digest.hex()[:SEAL_DIGITS]}"


def seal(query: Query) -> Query:
    """Return the same query with its sealed id."""
    return query.model_copy(update={"id": seal_id(query.id, query.seed)})


def find_index(sealed: str, seed: int, size: int) -> int | None:
    """Return the index of a sealed id; None if no index below ``size`` of ``seed`` has this id."""
    rest = sealed.rpartition("-")[0]
    for index in range(min(size, MOST_TRIED)):
        if seal_id(f"{rest}-{seed}-{index}", seed) == sealed:
            return index
    return None
