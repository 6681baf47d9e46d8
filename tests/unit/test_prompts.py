"""The renderer: every style is complete, and differs where it should."""

from __future__ import annotations

import pytest

from netarena.prompts import Example, PromptParts, PromptStyle, render

PARTS = PromptParts(
    rules="RULES",
    reply_format="FORMAT",
    task="TASK",
    situation="SITUATION",
    history=("FIRST", "SECOND"),
    examples=(Example("E-TASK", "E-THOUGHT", "E-REPLY"),),
)


@pytest.mark.parametrize("style", PromptStyle)
def test_every_style_is_complete_and_ends_with_the_task(style: PromptStyle) -> None:
    prompt = render(style, PARTS, refused="BECAUSE")
    words = ("RULES", "FORMAT", "FIRST", "SECOND", "BECAUSE", "SITUATION")
    places = [prompt.index(word) for word in words]
    assert places == sorted(places)
    assert prompt.endswith("TASK")
    assert ("E-REPLY" in prompt) is style.has_examples
    assert ("E-THOUGHT" in prompt) is (style is PromptStyle.FEWSHOT_COT)


def test_styles_differ_and_empty_parts_are_left_out() -> None:
    assert len({render(style, PARTS) for style in PromptStyle}) == len(PromptStyle)
    bare = render(PromptStyle.ZEROSHOT_BASE, PromptParts("RULES", "FORMAT", "TASK"))
    assert bare == "RULES\n\n## Form of the reply\nFORMAT\n\n## Task\nTASK"


def test_only_react_asks_for_a_thought_and_an_action() -> None:
    for style in PromptStyle:
        asks = "Thought:" in render(style, PARTS) and "Action:" in render(style, PARTS)
        assert asks is (style is PromptStyle.REACT)
