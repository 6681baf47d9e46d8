"""Action space: a fault as data, with its injection, its repair, and its description."""

from __future__ import annotations

from netarena.model import Action, JsonValue, Record


class Command(Record):
    """One shell command line, run as root in the network namespace of ``machine``."""

    machine: str
    command: str


class Fault(Record):
    """One broken thing. Which pairs it breaks is computed: ``fault.expected``."""

    #: of ``fault.KINDS``, and one of that kind's methods
    kind: str
    method: str
    #: where its repair is typed
    machine: str
    #: where it acts: indices of subnets and the name of a host, as ``fault.Site`` reads them
    parameters: dict[str, JsonValue]
    #: a sentence without its stop
    words: str
    #: run in this order; each must succeed
    inject: tuple[Command, ...]
    #: brings back exactly the healthy state, whatever else is still broken
    repair: tuple[Command, ...]
    #: of tickets: what the following call it by
    name: str = ""
    #: ordered pairs that work by it, and must not
    opens: tuple[tuple[str, str], ...] = ()
    #: faults that show in no pair until this one is repaired
    masks: tuple[str, ...] = ()
    #: faults that must be repaired before this one: else its repair breaks or opens a pair
    after: tuple[str, ...] = ()
    #: faults that have no effect while this one is there
    bypasses: tuple[str, ...] = ()


#: what is told only where there is any
_RARE = ("name", "opens", "masks", "after", "bypasses")


def action_of(fault: Fault) -> Action:
    """The fault as an action of a query."""
    told = fault.model_dump(mode="json")
    return Action(
        kind=fault.kind,
        parameters={key: value for key, value in told.items() if value or key not in _RARE},
    )


def fault_of(action: Action) -> Fault:
    """The fault that ``action_of`` was given."""
    return Fault.model_validate(action.parameters)


def describe(action: Action) -> str:
    """The fault in words, machines and interfaces named."""
    return fault_of(action).words
