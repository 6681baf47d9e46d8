"""Prompts: the rules, the form of a reply, worked examples, and the task.

The texts are files in ``prompts``. The examples use a network with another name, so that no example
can be a drawn query. The tasks of the examples are rendered from actions like the tasks of queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from string import Template
from types import MappingProxyType

from netarena.sdk import Action, Example, PromptParts, Query, Step, read_examples, read_text
from netarena_malt.action import (
    Addition,
    Condition,
    Loop,
    NewNode,
    Question,
    Removal,
    Selection,
    Update,
    act,
)
from netarena_malt.base_network import TOPOLOGY
from netarena_malt.query import plan_data, render
from netarena_malt.topology import (
    CAPACITY,
    EK_PACKET_SWITCH,
    EK_PORT,
    INDEX_WITHIN_JUPITER,
    JUPITER_TYPE,
    NODE_KINDS,
    SWITCH_LOC,
    Topology,
)

_PACKAGE = "netarena_malt"


@dataclass(frozen=True)
class Limits:
    """Limits of a program and its answer, as stated in the prompt."""

    #: Maximum number of characters of the program.
    code_chars: int
    #: Processor time in s.
    cpu_s: int
    memory_mib: int
    #: Wall time in s. It is far above ``cpu_s``, so that a verdict does not depend on the load of
    #: the machine.
    wall_s: int
    #: Maximum size of data as JSON, and maximum numbers of values and of nesting levels in data.
    #: Data above a limit is wrong.
    data_kib: int
    data_values: int
    data_levels: int
    #: Maximum size of the complete result as JSON. A program with a larger result counts as failed.
    result_mib: int


#: Network of the examples. Its name differs from the name of ``topology.RELEASED``.
EXAMPLE_TOPOLOGY = Topology(
    name="dc9", superblocks=2, spine_blocks=2, agg_blocks=2, columns=3, ports=4, exceptions_bps={}
)


def _ask(kind: str, select: Selection) -> Action:
    return act(kind, Question(select=select))


_NEW_SWITCH = NewNode(
    name="dc9.s1.s2c7",
    kind=EK_PACKET_SWITCH,
    attributes={SWITCH_LOC: {"stage": 2.0}},
    parents=("dc9.s1", "dc9.s1rack", "dc9.s1.dom"),
    contents=(NewNode(name="dc9.s1.s2c7.p1", kind=EK_PORT, attributes={CAPACITY: 7e9}),),
)

_NEW_PORT = NewNode(name="$1.p9", kind=EK_PORT, attributes={CAPACITY: 3e9}, parents=("$1",))
_PORTS_OF_EACH = Selection(name="$1", scope="children", kind=EK_PORT)

#: File of an example in ``prompts`` (thought, a line ``---``, reply) -> the actions of the example.
EXAMPLES: Mapping[str, tuple[Action, ...]] = MappingProxyType(
    {
        "example_count": (
            _ask(
                "count",
                Selection(name="dc9.a2", scope="descendants", kind=EK_PORT, at_least_bps=3e9),
            ),
        ),
        "example_update": (
            act(
                "update",
                Update(
                    select=Selection(name="dc9.a1.m2.s3c1", scope="children", kind=EK_PORT),
                    times=5.0,
                ),
            ),
        ),
        "example_remove_rank": (
            act("remove", Removal(names=("dc9.a1.m1.s2c2",))),
            _ask("rank", Selection(name="dc9.a1.m1", scope="children")),
        ),
        "example_add_list": (
            act("add", Addition(nodes=(_NEW_SWITCH,))),
            _ask("list", Selection(name="dc9.s1rack", scope="children", kind=EK_PACKET_SWITCH)),
        ),
        "example_each_rank": (
            act(
                "each",
                Loop(
                    select=Selection(name="dc9.s2", scope="children", kind=EK_PACKET_SWITCH),
                    when=Condition(measure="stage", equals=2.0),
                    then=(act("add", Addition(nodes=(_NEW_PORT,))),),
                    otherwise=(act("update", Update(select=_PORTS_OF_EACH, times=3.0)),),
                ),
            ),
            _ask("rank", Selection(name="dc9.s2", scope="children", kind=EK_PACKET_SWITCH)),
        ),
    }
)

#: Attribute -> description of its value.
_VALUES: Mapping[str, str] = MappingProxyType(
    {
        JUPITER_TYPE: "a string",
        INDEX_WITHIN_JUPITER: "a number",
        SWITCH_LOC: "a dictionary with the number stage",
        CAPACITY: "a positive number",
    }
)


def tell_attempt(number: int, attempts: int) -> str:
    """Return text with the number of an attempt, which also states whether the attempt counts."""
    if number == attempts:
        return f"This is attempt {number} of {attempts}, the last one. Only this attempt counts."
    return (
        f"This is attempt {number} of {attempts}. Your program is run, and the next prompt reports "
        "the objective of its plan and a violated constraint. Only the last attempt counts, even "
        "if it fails; you may send the same program again."
    )


def _tell_step(number: int, step: Step) -> str:
    """Return text about an earlier attempt, with its program and its result."""
    code = step.move["code"] if isinstance(step.move, dict) else None
    shown = f"\n```python\n{code}\n```" if code else ""
    judged = step.judgement.reason if step.judgement is not None else ""
    told = judged or step.refused or step.output or "Nothing was run."
    return f"Attempt {number}:{shown}\nResult: {told}"


def prompt_parts(query: Query, limits: Limits, steps: Sequence[Step] = ()) -> PromptParts:
    """Return the parts of the prompt for ``query``. The sandbox enforces ``limits``.

    ``steps`` are the earlier attempts at a planning task.
    """
    if plan_data(query) is not None:
        return PromptParts(
            rules=read_text(_PACKAGE, "plan_rules"),
            reply_format=_template("plan_reply").substitute(asdict(limits)),
            task=query.text,
            examples=read_examples(_PACKAGE, ("plan_example",)),
            history=tuple(_tell_step(number, step) for number, step in enumerate(steps, start=1)),
        )
    initial = query.initial if isinstance(query.initial, Mapping) else {}
    return PromptParts(
        rules=_rules(own=TOPOLOGY in initial),
        reply_format=_template("reply").substitute(asdict(limits)),
        task=query.text,
        examples=examples(loops=any(action.kind == "each" for action in query.actions)),
    )


@lru_cache
def examples(*, loops: bool) -> tuple[Example, ...]:
    """Return the worked examples. Examples with a loop are included only if the task has
    ``loops``."""
    found = []
    for name, actions in EXAMPLES.items():
        if loops or all(action.kind != "each" for action in actions):
            thought, _, reply = read_text(_PACKAGE, name).partition("\n---\n")
            example = Example(task=render(actions), thought=thought.strip(), reply=reply.strip())
            found.append(example)
    return tuple(found)


@lru_cache
def _rules(*, own: bool) -> str:
    """Return the rules of the prompt. ``own`` is true if the network is not made from the released
    model."""
    kinds = "\n".join(map(_describe_kind, NODE_KINDS))
    origin = read_text(_PACKAGE, "origin_own" if own else "origin").strip()
    return _template("rules").substitute(kinds=kinds, origin=origin)


def _describe_kind(name: str) -> str:
    """Return a line of the rules with the properties of all nodes of a kind."""
    kind = NODE_KINDS[name]
    attributes = " and ".join(f"{key} ({_VALUES[key]})" for key in kind.attributes)
    parents = ", ".join(f"one {' or '.join(group)}" for group in kind.parents)
    return (
        f"- {kind.noun}: type {list(kind.types)!r}; "
        f"{attributes or 'no further attribute'}; "
        f"{f'parents: {parents}' if parents else 'no parent'}"
    )


def _template(name: str) -> Template:
    return Template(read_text(_PACKAGE, name))
