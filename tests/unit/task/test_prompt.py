"""Prompts in every style are complete, and differ where they should."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.config import PromptStyle
from netarena.sandbox.shell import Kept
from netarena.task.prompt import (
    MAX_HARM_LINES,
    Example,
    PromptParts,
    bound,
    clip,
    cut,
    read_text,
    render,
    tell_harm,
    without_form,
)

PARTS = PromptParts(
    rules="RULES",
    reply_format="FORMAT",
    task="TASK",
    situation="SITUATION",
    history=("FIRST", "SECOND"),
    examples=(Example("E-TASK", "E-THOUGHT", "E-REPLY"),),
)


@pytest.mark.parametrize("style", PromptStyle)
def test_every_prompt_style_is_complete_and_ends_with_the_task(style: PromptStyle) -> None:
    prompt = render(style, PARTS, refused="BECAUSE")
    words = ("RULES", "FORMAT", "FIRST", "SECOND", "BECAUSE", "SITUATION")
    places = [prompt.index(word) for word in words]
    assert places == sorted(places)
    assert prompt.endswith("TASK")
    assert ("E-REPLY" in prompt) is style.has_examples
    assert ("E-THOUGHT" in prompt) is (style is PromptStyle.FEWSHOT_COT)


def test_prompt_for_a_person_omits_the_reply_format() -> None:
    prompt = render(PromptStyle.ZEROSHOT_BASE, PARTS)
    shorter = without_form(prompt)
    assert PARTS.reply_format in prompt
    assert PARTS.reply_format not in shorter
    assert shorter.startswith(f"{PARTS.rules}\n\n## ")
    assert shorter.endswith(PARTS.task)
    assert without_form(shorter) == shorter


def test_prompt_styles_differ_and_empty_parts_are_omitted() -> None:
    assert len({render(style, PARTS) for style in PromptStyle}) == len(PromptStyle)
    bare = render(PromptStyle.ZEROSHOT_BASE, PromptParts("RULES", "FORMAT", "TASK"))
    assert bare == "RULES\n\n## Form of the reply\nFORMAT\n\n## Task\nTASK"


def test_only_react_asks_for_a_thought_and_an_action() -> None:
    for style in PromptStyle:
        asks = "Thought:" in render(style, PARTS) and "Action:" in render(style, PARTS)
        assert asks is (style is PromptStyle.REACT)


def test_long_text_is_cut_in_the_middle_with_a_note() -> None:
    assert clip("abc", 3) == "abc"
    assert clip("abcdefghij", 5) == "abc\n[… 5 characters left out …]\nij"
    assert clip("abcdefghij", 1) == "a\n[… 9 characters left out …]\n"


def test_output_is_cut_at_line_ends_with_the_number_of_lines_left_out() -> None:
    lines = [f"line {number:02}" for number in range(40)]
    assert cut("\n".join(lines), 319) == "\n".join(lines)
    shown = cut("\n".join(lines), 80).splitlines()
    assert shown == [*lines[:5], "[… 30 lines left out …]", *lines[-5:]]
    assert cut("\n".join(lines[:11]), 80).splitlines()[5] == "[… 1 line left out …]"


def test_line_longer_than_the_limit_is_cut_only_in_its_middle() -> None:
    text = "\n".join(["first", "x" * 50 + "y" * 50, "second last", "[exit status 0]"])
    shown = cut(text, 80)
    assert shown.startswith("first\nxxx")
    assert shown.endswith("y\nsecond last\n[exit status 0]")
    assert "characters left out" in shown
    assert "lines left out" not in shown
    assert cut("z" * 100, 10) == clip("z" * 100, 10)


@given(st.text(alphabet="ab\n", max_size=300), st.integers(1, 120))
def test_cut_output_fits_the_limit_and_accounts_for_each_line(text: str, most: int) -> None:
    shown = cut(text, most)
    if len(text) <= most:
        assert shown == text
        return
    notes = re.findall(r"\[… (\d+) (characters|lines?) left out …\]", shown)
    assert 1 <= len(notes) <= 2
    assert len(shown) <= most + 40 * len(notes)
    if all(kind.startswith("line") for _, kind in notes):
        left_out = sum(int(number) for number, _ in notes)
        kept = [line for line in shown.split("\n") if not line.startswith("[… ")]
        assert len(kept) + left_out == len(text.split("\n"))


def test_number_of_omitted_lines_includes_lines_that_were_omitted_before() -> None:
    lines = [f"line {number:02}" for number in range(40)]
    kept = Kept(200)
    kept.add("\n".join(f"line {number:06}" for number in range(9_000)).encode())
    for text, total in ((cut("\n".join(lines), 160), 40), (kept.text(), 9_000)):
        shown = cut(text, 80).split("\n")
        (note,) = [line for line in shown if line.startswith("[… ")]
        assert note == f"[… {total - len(shown) + 1} lines left out …]"


@pytest.mark.parametrize(
    "note",
    [
        f"[… {'9' * 5_000} lines left out …]",
        "[… 700 lines left out …]",
        "[… 1 line left out …]",
        "[… 20 characters left out …]",
    ],
    ids=["huge", "lines", "line", "characters"],
)
@pytest.mark.parametrize("kept_bytes", [200, 1 << 20], ids=["dropped", "whole"])
def test_line_of_a_command_that_looks_like_a_note_counts_as_one_line(
    note: str, kept_bytes: int
) -> None:
    lines = [f"line {number:06}" for number in range(9_000)]
    for place in (5, -6):
        written = [*lines]
        written[place] = note
        kept = Kept(kept_bytes)
        kept.add("\n".join(written).encode())
        shown = cut(kept.text(), 80).split("\n")
        assert f"[… {len(lines) - len(shown) + 1} lines left out …]" in shown


def test_note_with_a_huge_number_does_not_break_a_prompt() -> None:
    text = "\n".join(["first", f"[… {'9' * 5_000} lines left out …]", "last"])
    assert "characters left out" in cut(text, 200)
    assert cut("\n".join(["a" * 60, text, "b" * 60]), 20)


def test_line_that_is_cut_twice_counts_as_one_line() -> None:
    text = "\n".join(["first", "x" * 200, "last"])
    assert cut(cut(text, 120), 20).split("\n") == ["first", "[… 1 line left out …]", "last"]


def test_newest_output_is_complete_and_older_outputs_are_shortened() -> None:
    old, new = "\n".join(["old"] * 200), "\n".join(["new"] * 300)
    kept = bound([old, old, new], 1500)
    assert kept[2] == new
    assert all("lines left out" in entry for entry in kept[:2])


def test_newest_output_is_complete_after_a_turn_without_output() -> None:
    old, new = (f"Turn\nOutput:\n{'row' * 3}" + f"\n{word}" * 300 for word in ("old", "new"))
    refused = "Turn 3: the reply contains no command"
    kept = bound([old, new, refused, refused], 1500)
    assert kept[1:] == (new, refused, refused)
    assert "lines left out" in kept[0]
    kept = bound([old, new, *[refused] * 100], 1500)
    assert kept[1:] == (new, "[… 96 turns left out …]", *[refused] * 4)


def test_shortened_turn_keeps_the_beginning_and_the_end_of_a_long_command() -> None:
    command = f"kubectl patch -p {'x' * 900} END"
    turn = "\n".join(["Turn 1", f"Command: {command}", "Output:", *["row"] * 500])
    shortened, newest = bound([turn, "Turn 2\nOutput:\nnew"], 1200)
    assert newest.endswith("\nnew")
    assert "Command: kubectl patch" in shortened
    assert " END\nOutput:\nrow\n" in shortened
    assert "lines left out" in shortened


@given(
    st.lists(st.integers(0, 2000), max_size=40).map(lambda sizes: ["x" * n for n in sizes]),
    st.integers(600, 6000),
)
def test_shortened_history_keeps_its_first_and_last_turns_and_fits_the_limit(
    history: list[str], most: int
) -> None:
    kept = bound(history, most)
    note = 40  # length of the note about a cut
    newest = len(history[-1]) if history else 0
    # a quarter of the limit is left for the other entries
    assert sum(map(len, kept)) <= max(most, newest + most // 4) + note * (len(kept) + 1)
    if sum(map(len, history)) <= most and len(history) <= most // 600:
        assert list(kept) == history
    if history:
        assert kept[0][:1] == history[0][:1]
        assert kept[-1] == history[-1]
    left_out = len(history) - len(kept) + 1
    assert len(kept) == len(history) or f"[… {left_out} turns left out …]" in kept


def test_unsafe_effects_of_a_turn_are_reported_up_to_a_limit() -> None:
    assert tell_harm([]) == ""
    assert tell_harm(["a is open", "b is gone"]) == (
        "Not safe in this turn:\n- a is open\n- b is gone"
    )
    many = tell_harm(["x" * 10_000] * (MAX_HARM_LINES + 3)).splitlines()
    assert many[-1] == "- 3 more"
    assert sum(map(len, many)) < 20_000


def test_prompt_text_includes_the_texts_that_it_refers_to() -> None:
    rules = read_text("netarena_k8s", "rules")
    assert read_text("netarena_k8s", "common") in rules
    assert "{{" not in rules
