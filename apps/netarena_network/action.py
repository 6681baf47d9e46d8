"""Actions of route queries: a fault as data, with its injection, repair and description."""

from __future__ import annotations

from netarena.sdk import Action, JsonValue, Query, Record


class Command(Record):
    """One shell command line, run as root in the network namespace of ``machine``."""

    machine: str
    command: str


class Fault(Record):
    """One fault; ``fault.table.expected`` computes which pairs it breaks."""

    #: A kind of ``fault.table.KINDS``, and one of its methods.
    kind: str
    method: str
    #: The machine that it acts on.
    machine: str
    #: Its site: indices of subnets and names of machines, as ``fault.method.Site`` reads them.
    parameters: dict[str, JsonValue]
    #: A sentence without a full stop.
    words: str
    #: Commands that run in this order and must all succeed.
    inject: tuple[Command, ...]
    #: Commands that restore exactly the intended state, whatever other faults exist.
    repair: tuple[Command, ...]
    #: In tickets: the name that the following fields of other faults use.
    name: str = ""
    #: Ordered pairs that must not work, but do because of this fault.
    opens: tuple[tuple[str, str], ...] = ()
    #: Faults that show on no pair until this one is repaired.
    masks: tuple[str, ...] = ()
    #: Faults that must be repaired before this one, since its repair would otherwise break or open
    #: a pair.
    after: tuple[str, ...] = ()
    #: Faults that have no effect while this one exists.
    bypasses: tuple[str, ...] = ()


#: Fields that an action contains only if they are set.
_RARE = ("name", "opens", "masks", "after", "bypasses")


def action_of(fault: Fault) -> Action:
    """Return a fault as an action of a query."""
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
    """Return a description of the fault that names machines and interfaces."""
    return fault_of(action).words
