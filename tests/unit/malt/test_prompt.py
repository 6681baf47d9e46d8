from __future__ import annotations

import random

import pytest

from netarena.config import PromptStyle
from netarena.model import Query
from netarena.task.prompt import Example
from netarena.task.prompt import render as render_prompt
from netarena_malt.app import Malt
from netarena_malt.prompt import EXAMPLE_TOPOLOGY, EXAMPLES, Limits, examples, prompt_parts
from netarena_malt.query import PLANNING_LEVEL, MaltConfig, execute
from netarena_malt.topology import NODE_KINDS, build
from tests.fake.deal import deal

from .test_solution import run, same_data, same_graph

LIMITS = Limits(
    code_chars=4444,
    cpu_s=11,
    memory_mib=2222,
    wall_s=77,
    data_kib=55,
    data_values=6666,
    data_levels=88,
    result_mib=33,
)


def draw(number: int = 1, level: str = "level1") -> list[Query]:
    rngs = (lambda index: random.Random(f"prompt-{index}"), "secret-{}".format)
    return list(deal(Malt(), MaltConfig(num_queries=number, complexity_level=(level,)), 1, *rngs))


def test_prompt_contains_the_task_and_nothing_hidden() -> None:
    for query in draw():
        text = render_prompt(PromptStyle.ZEROSHOT_BASE, prompt_parts(query, LIMITS))
        assert query.text in text
        assert "secret" not in text
        assert "$" not in text


def test_prompt_states_the_given_limits() -> None:
    text = prompt_parts(draw()[0], LIMITS).reply_format
    for told in (
        "at most 4444 characters",
        "11 s of processor time",
        "2222 MiB of memory",
        "77 s of elapsed time",
        "more than 33 MiB as JSON",
        "more than 55 KiB as JSON",
        "6666 values",
        "88 levels",
    ):
        assert told in text


def test_rules_describe_every_kind_of_node() -> None:
    rules = prompt_parts(draw()[0], LIMITS).rules
    for kind in NODE_KINDS.values():
        assert f"- {kind.noun}: type {list(kind.types)!r}; " in rules
        assert all(attribute in rules for attribute in kind.attributes)


@pytest.mark.parametrize("style", PromptStyle)
def test_prompt_styles_differ_and_only_few_shot_styles_have_examples(style: PromptStyle) -> None:
    query = draw()[0]
    shown = examples(loops=False)
    text = render_prompt(style, prompt_parts(query, LIMITS))
    assert ("dc9" in text) is style.has_examples
    thoughts = sum(example.thought in text for example in shown)
    assert thoughts == (len(shown) if style is PromptStyle.FEWSHOT_COT else 0)
    others = set(PromptStyle) - {style}
    assert text not in {render_prompt(other, prompt_parts(query, LIMITS)) for other in others}


def test_loop_examples_are_shown_only_for_loop_queries() -> None:
    one, other = draw()[0], draw(level="level4")[0]
    text, with_loop = (
        render_prompt(PromptStyle.FEWSHOT_BASE, prompt_parts(query, LIMITS))
        for query in (one, other)
    )
    assert "dc9.s2" in with_loop
    assert "dc9.s2" not in text
    assert len(examples(loops=False)) == len(EXAMPLES) - 1


def test_example_never_equals_a_drawn_query() -> None:
    shown = examples(loops=True)
    assert len(shown) == len(EXAMPLES) >= 3
    for example in shown:
        words = f"{example.task} {example.thought} {example.reply}"
        assert "ju1" not in words
        assert "dc9" in example.task
    for level in MaltConfig.LEVELS:
        number = 1 if level == PLANNING_LEVEL else 4  # planning tasks take long to draw
        assert not [query for query in draw(number, level) if "dc9" in query.text]


@pytest.mark.parametrize(
    ("name", "example"), list(zip(EXAMPLES, examples(loops=True), strict=True))
)
def test_every_example_is_right(name: str, example: Example) -> None:
    graph = build(EXAMPLE_TOPOLOGY)
    truth = execute(graph, EXAMPLES[name])
    answer = run(example.reply, build(EXAMPLE_TOPOLOGY))
    assert answer["type"] == truth.type
    assert same_graph(answer["updated_graph"], graph)
    if truth.type != "graph":
        assert same_data(truth, answer["data"])
