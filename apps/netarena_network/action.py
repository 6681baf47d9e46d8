"""Actions of network queries. An action is a fault as data, with its injection, repair and
description."""

from __future__ import annotations

from netarena.sdk import Action, JsonValue, Query, Record


class Command(Record):
    """One shell command line, run as root in the network namespace of ``machine``."""

    machine: str
    command: str


class Fault(Record):
    """One fault; an application's ``fault.table`` defines the kinds and their methods."""

    #: A key of the application's ``fault.table.KINDS``, and a method of this kind.
    kind: str
    method: str
    #: The machine that the fault changes, or the first one if it changes several machines.
    machine: str
    #: Parameters that, together with the method, determine the fault in the query's world. In
    #: route, they are indices of subnets and names of machines, as in ``fault.method.Site``.
    parameters: dict[str, JsonValue]
    #: Description of the fault: a sentence without a full stop.
    words: str
    #: Commands that inject the fault. They run in this order and must all succeed.
    inject: tuple[Command, ...]
    #: Commands that restore exactly the intended settings, regardless of other faults.
    repair: tuple[Command, ...]
    #: Name of this fault in the fields ``masks``, ``after`` and ``bypasses`` of other faults; set
    #: only in tickets.
    name: str = ""
    #: Ordered pairs that must not work but work because of this fault.
    opens: tuple[tuple[str, str], ...] = ()
    #: Faults whose effect on pairs is hidden until this fault is repaired.
    masks: tuple[str, ...] = ()
    #: Faults that must be repaired before this fault. Otherwise the repair of this fault would
    #: break or open a pair.
    after: tuple[str, ...] = ()
    #: Faults that have no effect while this fault exists.
    bypasses: tuple[str, ...] = ()


#: Fields that are omitted from an action if they are not set.
_RARE = ("name", "opens", "masks", "after", "bypasses")


def action_of(fault: Fault) -> Action:
    """Return the action that represents a fault in a query."""
    told = fault.model_dump(mode="json")
    return Action(
        kind=fault.kind,
        parameters={key: value for key, value in told.items() if value or key not in _RARE},
    )


def fault_of(action: Action) -> Fault:
    """Return the fault that an action represents; the inverse of ``action_of``."""
    return Fault.model_validate(action.parameters)


def faults_of(query: Query) -> tuple[Fault, ...]:
    """Return the faults of a query in the order of injection."""
    return tuple(map(fault_of, query.actions))


def describe(action: Action) -> str:
    """Return a description of the fault; it names machines and interfaces."""
    return fault_of(action).words
