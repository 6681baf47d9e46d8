"""Actions of network queries: a fault as data, with its injection, repair and description."""

from __future__ import annotations

from netarena.sdk import Action, JsonValue, Query, Record


class Command(Record):
    """One shell command line, run as root in the network namespace of ``machine``."""

    machine: str
    command: str


class Fault(Record):
    """One fault; an application's ``fault.table`` defines the kinds and their methods."""

    #: A kind of the application's ``fault.table.KINDS``, and a method of this kind.
    kind: str
    method: str
    #: The machine that the fault changes, or the first of several machines.
    machine: str
    #: Parameters that, with the method, determine the fault in the query's world. In route, they
    #: are indices of subnets and names of machines, as in ``fault.method.Site``.
    parameters: dict[str, JsonValue]
    #: Description of the fault: a sentence without a full stop.
    words: str
    #: Commands that inject the fault. They run in this order and must all succeed.
    inject: tuple[Command, ...]
    #: Commands that restore exactly the intended settings, regardless of other faults.
    repair: tuple[Command, ...]
    #: In tickets: the name of this fault in the fields ``masks``, ``after`` and ``bypasses`` of
    #: other faults.
    name: str = ""
    #: Ordered pairs that work because of this fault although they must not work.
    opens: tuple[tuple[str, str], ...] = ()
    #: Faults that affect no pair until this fault is repaired.
    masks: tuple[str, ...] = ()
    #: Faults to repair before this fault; otherwise its repair would break or open a pair.
    after: tuple[str, ...] = ()
    #: Faults that have no effect while this fault exists.
    bypasses: tuple[str, ...] = ()


#: Fields that an action contains only if they are set.
_RARE = ("name", "opens", "masks", "after", "bypasses")


def action_of(fault: Fault) -> Action:
    """Return a query's action that represents a fault."""
    told = fault.model_dump(mode="json")
    return Action(
        kind=fault.kind,
        parameters={key: value for key, value in told.items() if value or key not in _RARE},
    )


def fault_of(action: Action) -> Fault:
    """Return the fault of an action made by ``action_of``."""
    return Fault.model_validate(action.parameters)


def faults_of(query: Query) -> tuple[Fault, ...]:
    """Return the faults of a query in the order of injection."""
    return tuple(map(fault_of, query.actions))


def describe(action: Action) -> str:
    """Return a description of the fault, with names of machines and interfaces."""
    return fault_of(action).words
