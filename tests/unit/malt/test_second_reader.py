"""A second reader that attaches phrases in other ways (``tests/malt_reader/second``).

``benchmarks/bench_malt_readings.py`` reads 10,000 texts. This module reads a few of them. It
also reads ambiguous texts, of which the reader must find each meaning.
"""

from __future__ import annotations

import random
from functools import cache

import pytest

from netarena.model import Query
from netarena.task.application import load
from netarena_malt.action import Question, Removal, Selection, Update, act
from netarena_malt.network_builder import Draft
from netarena_malt.phrasing import phrase
from netarena_malt.query import LABELS
from netarena_malt.topology import EK_PACKET_SWITCH
from tests.malt_reader.second import SecondReader, jarring, networks, objections

#: marked slow, because the benchmark does the same computation with more texts
pytestmark = pytest.mark.slow
MALT = load("malt")
ANSWER = "Answer with type 'graph'. Return the changed network as both data and updated_graph."
BEFORE_IT = "comes just before it by name"
SIXTH = "the aggregation block that comes 6th by name"
BACK = "the largest port of the switch that stands 1st in name order within 'ju1.s1'"


@cache
def reader() -> SecondReader:
    return SecondReader()


@pytest.mark.parametrize("phrasing", ["varied", "held_out"])
def test_every_text_has_exactly_one_reading(phrasing: str) -> None:
    levels = list(MALT.config_type.LEVELS[:4])
    config = MALT.config_type.parse(
        {"num_queries": 1, "complexity_level": levels, "phrasing": phrasing}
    )
    queries = list(MALT.generate(config, 16))
    assert {query.label for query in queries} == set(LABELS)
    for query in queries:
        assert objections(reader(), query) == [], query.text


def asked(actions: tuple[object, ...], text: str) -> Query:
    return Query.model_validate(
        {
            "id": "malt-3-0-0-0",
            "application": "malt",
            "version": "3",
            "seed": 0,
            "index": 0,
            "label": "",
            "level": "level1",
            "text": text,
            "initial": Draft().edits(),
            "actions": actions,
        }
    )


@pytest.mark.parametrize(
    ("words", "names"),
    [
        # 'it' is the sibling's sibling, or that node's sibling
        (
            f"the sibling of the sibling of 'ju1.a3' that {BEFORE_IT} that {BEFORE_IT}",
            {"ju1.a1", "ju1.a2"},
        ),
        (
            "the port that is the 2nd largest in the switch that is the largest in 'ju1.a1'",
            {"ju1.a1.m1.s2c1.p2"},
        ),
        # the superblock has only four blocks, but contains the sixth block of the network
        (
            f"the switch that comes 2nd by name in {SIXTH} in the superblock 'ju1.a2'",
            {"ju1.a2.m2.s2c2"},
        ),
        ("the sibling that by name comes just before 'ju1.a3'", {"ju1.a2"}),
    ],
)
def test_every_reading_of_a_description_is_found(words: str, names: set[str]) -> None:
    action = act("remove", Removal(names=(min(names),)))
    query = asked((action,), f"Remove {words}.\n{ANSWER}")
    found = reader().read_on(query.text, networks(query))
    assert {name for program in found for do in program for name in do.what} == names


def test_description_is_also_resolved_on_the_changed_network() -> None:
    """After the node that is first by name is removed, another one is first."""
    first, second = "ju1.s1.s1c1", "ju1.s1.s1c2"
    actions = (
        act("remove", Removal(names=(first,))),
        act("update", Update(select=Selection(name=f"{second}.p1"), to_bps=5e9)),
    )
    port = "the port that comes 1st by name in the switch that comes 1st by name in 'ju1.s1'"
    then = f"Then, on the changed network: set the capacity of {port} to 5 Gbps."
    text = f"First: remove '{first}'.\n{then}\n{ANSWER}"
    found = reader().read_on(text, networks(asked(actions, text)))
    assert {program[1].what[0].name for program in found} == {f"{first}.p1", f"{second}.p1"}


def test_descriptions_after_a_change_are_right_before_and_after_the_change() -> None:
    """The description of the switch does not depend on the removed switch."""
    switches = [f"ju1.s1.s1c{number}" for number in range(1, 9)]
    question = Question(select=Selection(name=switches[4], scope="descendants", kind="EK_PORT"))
    actions = (
        act("remove", Removal(names=(switches[1],))),
        act("count", question),
    )
    for seed in range(12):
        text = phrase(actions, Draft(), random.Random(seed), held_out=seed % 2 == 1)
        assert objections(reader(), asked(actions, text)) == [], text


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("one one Gbps port", "a word twice"),
        ("the switch that X has has two ports", "a word twice"),
        ("the sibling of the third by name by name", "an order twice"),
        ("one gigabits per second", "one of several"),
        ("the interface that go by the short name 'p3'", "one node in the plural"),
        ("the sibling of 'x' that comes just before it by name", "it"),
        ("change the capacity of all ports to half its present value", "its"),
        ("do this unless x:\n but do that if it is so", "so or not so"),
        (
            "with 5 Gbps or more of port capacity taken together with the spine as a parent",
            "a place that may belong to an amount",
        ),
        ("we no longer need the port of 'x': remove what is named here", "what is named"),
        ("the port of the switch in 'x' with the short name 'p3'", "a name that may be another's"),
    ],
)
def test_clumsy_or_repeated_wording_is_reported(words: str, why: str) -> None:
    assert why in jarring(words)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("the switch that holds 'ju1.s1.s1c1.p3'", "a description that says ju1.s1.s1c1"),
        (f"the switch that holds {BACK}", "a description that leads back to ju1.s1.s1c1"),
    ],
)
def test_description_that_reveals_its_node_is_reported(words: str, why: str) -> None:
    action = act("remove", Removal(names=("ju1.s1.s1c1",)))
    assert objections(reader(), asked((action,), f"Remove {words}.\n{ANSWER}")) == [why]


def test_reader_rejects_the_words_the_same_switch_after_a_loop() -> None:
    text = (
        "First: for each of the switches directly in 'ju1.s1rack':\n"
        "  If the stage of the current switch is 1:\n    Remove the current switch.\n"
        "Then, on the changed network: count all ports directly in {}.\n"
        "Answer with type 'text'. Put the number in data and the changed network in updated_graph."
    )
    select = Selection(name="ju1.s1rack", scope="children", kind=EK_PACKET_SWITCH)
    actions = (act("count", Question(select=select)),) * 2

    def programs(switch: str) -> int:
        query = asked(actions, text.format(switch))
        return len(reader().read_on(query.text, networks(query)))

    assert (programs("the same switch"), programs("'ju1.s1.s2c1'")) == (0, 1)
