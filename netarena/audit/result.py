"""Result of an audit: the numbers of checked queries, and the flaws of invalid queries.

A ``Ledger`` records the findings during the audit, and can return the result at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

from netarena.audit.draw import Item
from netarena.config import with_seed_text
from netarena.model import Record
from netarena.task.application import Application


class Reason(StrEnum):
    """The condition that a query violates (see ``netarena.audit.check``)."""

    ENVIRONMENT = "environment"  # the world breaks or cannot be built, or a fault has no effect
    SOLVED = "solved"  # doing nothing solves the query
    UNSTABLE = "unstable"  # observations of an unchanged world differ
    REFUSED = "refused"  # the parser refuses the reference solution
    UNSOLVED = "unsolved"  # the reference solution does not solve the query
    UNSAFE = "unsafe"  # the reference solution breaks a safety rule
    ORDER = "order"  # a wrong order of repairs is safe
    RECORD = "record"  # duplicate id, empty text, or query changed by a JSON round trip
    BUG = "bug"  # NetArena's own code raised an error


class Flaw(Record):
    """A flaw of one query: the violated condition, and details."""

    id: str
    variant: str
    label: str
    level: str
    reason: Reason
    detail: str


class Audit(Record):
    """Result of an audit. ``retried`` is the number of additional attempts to build worlds."""

    application: str
    version: str
    seed: int
    #: Number of checked queries by variant and label. The variant is "" for a config without
    #: variants.
    drawn: dict[str, dict[str, int]]
    levels: dict[str, int]
    retried: int
    flaws: tuple[Flaw, ...]
    #: Number of queries that an interrupted audit did not reach.
    not_checked: int = 0

    @property
    def queries(self) -> int:
        """Return the number of checked queries."""
        return sum(self.labels.values())

    @property
    def labels(self) -> dict[str, int]:
        """Return the number of checked queries by label."""
        counts: Counter[str] = Counter()
        for labels in self.drawn.values():
            counts.update(labels)
        return dict(sorted(counts.items()))

    @property
    def variants(self) -> dict[str, int]:
        """Return the number of checked queries by variant, in the order of the variants."""
        return {variant: sum(labels.values()) for variant, labels in self.drawn.items()}

    @property
    def invalid(self) -> int:
        """Return the number of invalid queries. A query with several flaws counts once."""
        return len({flaw.id for flaw in self.flaws})

    def reasons(self) -> dict[str, int]:
        """Return the number of flaws by reason."""
        return dict(sorted(Counter(flaw.reason.value for flaw in self.flaws).items()))

    def as_json(self) -> dict[str, object]:
        """Return the data that ``netarena audit --json`` prints."""
        return {
            "application": self.application,
            "version": self.version,
            **with_seed_text({"seed": self.seed}),
            "queries": self.queries,
            "invalid": self.invalid,
            "not_checked": self.not_checked,
            "reasons": self.reasons(),
            "labels": self.labels,
            "levels": self.levels,
            "variants": self.variants,
            "retried": self.retried,
            "flaws": [flaw.model_dump(mode="json") for flaw in self.flaws],
        }


class Checked(NamedTuple):
    """A checked query and its flaw, if any. ``tries`` is 1 plus the number of worlds that were
    rebuilt."""

    item: Item
    flaw: Flaw | None
    tries: int


#: Callback for checked queries.
Count = Callable[[Iterable[Checked]], None]


class Ledger:
    """The findings of an audit so far."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._checked: set[str] = set()
        self._flaws: list[Flaw] = []
        self._retried = 0

    def enter(self, item: Item) -> None:
        """Record a query that the audit will check."""
        self._items.append(item)

    def add(self, flaws: Iterable[Flaw]) -> None:
        """Add flaws that were found without building a world."""
        self._flaws += flaws

    def check(self, checked: Checked) -> None:
        """Record a checked query."""
        self._checked.add(checked.item.query.id)
        self._retried += checked.tries - 1
        if checked.flaw is not None:
            self._flaws.append(checked.flaw)

    def audit(self, application: Application, seed: int, total: int) -> Audit:
        """Return the current result of an audit of ``total`` queries.

        The result covers the queries that were checked or have a flaw.
        """
        told = self._checked | {flaw.id for flaw in self._flaws}
        items = [item for item in self._items if item.query.id in told]
        order = {item.query.id: number for number, item in enumerate(items)}
        drawn: dict[str, dict[str, int]] = {}
        for (variant, label), number in Counter((i.variant, i.query.label) for i in items).items():
            drawn.setdefault(variant, {})[label] = number
        return Audit(
            application=application.name,
            version=" and ".join(sorted({application.version_of(i.config) for i in items}))
            or application.version,
            seed=seed,
            drawn=drawn,
            levels=_count(item.query.level for item in items),
            retried=self._retried,
            flaws=tuple(sorted(self._flaws, key=lambda flaw: order[flaw.id])),
            not_checked=total - len(items),
        )


def _count(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))
