"""Fixed patterns parse canonical prompts, and no others."""

from __future__ import annotations

from functools import cache

import pytest

from netarena.config import PromptStyle
from netarena.model import JsonValue, Query
from netarena.task.prompt import render
from netarena_malt.app import Malt
from netarena_malt.parser import read
from netarena_malt.query import LABELS

GRAPH = "Answer with type 'graph': both data and updated_graph are the changed network."
REMOVE = (
    "Remove 'a', everything that it contains directly or through other nodes, and every edge from "
    "or to a removed node. Nothing else goes: a block, rack or control domain that loses its last "
    f"switch stays.\n{GRAPH}"
)


@cache
def draw(phrasing: str) -> list[Query]:
    values: dict[str, JsonValue] = {"phrasing": phrasing, "complexity_level": ["level1", "level3"]}
    return list(Malt().generate(Malt.config_type.parse(values), 3))


def prompt_of(query: Query, style: PromptStyle) -> str:
    return render(style, Malt().prompt(query, None, ()))


@pytest.mark.parametrize("style", [PromptStyle.ZEROSHOT_BASE, PromptStyle.FEWSHOT_COT])
def test_canonical_prompt_is_parsed_to_the_program_of_its_actions(style: PromptStyle) -> None:
    queries = draw("canonical")
    assert {query.label for query in queries} < set(LABELS)
    for query in queries:
        found = Malt.baselines.parser_reply(prompt_of(query, style))
        if "add" not in query.label:  # contents of a new node are separate sentences
            assert found == Malt().solve(query)[0]


@pytest.mark.parametrize("phrasing", ["varied", "held_out"])
def test_parser_agent_cannot_parse_other_phrasings(phrasing: str) -> None:
    for query in draw(phrasing):
        with pytest.raises(ValueError, match=r"."):
            Malt.baselines.parser_reply(prompt_of(query, PromptStyle.ZEROSHOT_BASE))


@pytest.mark.parametrize(
    "text",
    [
        "",
        GRAPH,
        "Count the node 'a'.",
        "Add the port 'a'.\n" + GRAPH,
        f"Do this in order, each step on the network as the step before left it.\n2. {REMOVE}",
    ],
)
def test_text_outside_the_canonical_language_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read(text)


def test_only_canonical_queries_are_flagged_as_solvable_by_a_parser() -> None:
    flags = {
        phrasing: Malt.baselines.solved_unseen_by(Malt.config_type.parse({"phrasing": phrasing}))
        for phrasing in ("canonical", "varied", "held_out")
    }
    assert flags == {"canonical": "parser", "varied": None, "held_out": None}
