"""Reasoning is ignored whatever it contains; answers may contain its markers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.errors import ReplyRefused
from netarena.task import reasoning_marker
from netarena.task.reasoning import Found, Sieve, drop_thoughts, read_answer
from tests.growth import is_linear
from tests.thorough import THOROUGH


def first_in_brackets(reply):
    """Return the text in the first ``[...]`` of a reply, as an application's parser does."""

    def find(start, end):
        begin = reply.find("[", start, end)
        close = reply.find("]", begin, end)
        if begin < 0 or close < 0:
            raise ReplyRefused("no brackets")
        value = reply[begin + 1 : close]
        refused = "empty" if value == "" else ""
        return Found(value, begin, close + 1, whole="bad" not in value, refused=refused)

    return read_answer(reply, find)


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("[a]", "a"),
        ("<think>[x]</think>[a]", "a"),
        ("[x]</think>[a]", "a"),
        ("so [x] </THINKING > or [y] </reasoning> [a]", "a"),
        ("<think>1</think> <think>[x]</think> Well: <think>[y]</think>[a]", "a"),
        ("[a </think> <think>]", "a </think> <think>"),
        ("[x]</think>[a </think>]", "a </think>"),
        ("<think>[x]</think>[a </think>] so", "a </think>"),
        # the bracket is closed only after the marker, so the text before the marker is reasoning
        ("cut [x bad</think>[a]", "a"),
        # text of an unclosed reasoning block is ignored
        ("[a]<think>[x]", "a"),
        ("[a]<reasoning>", "a"),
        ("</think>[a]", "a"),
        ("[x]</think>" * 20 + "[a]", "a"),
        ("[x]</think>" * 20 + "[a </think>]", "a </think>"),
        ("So <think>[x]</think>" * 20 + "[a </think>]", "a </think>"),
    ],
)
def test_answer_outside_the_reasoning_is_found(reply, value):
    assert first_in_brackets(reply) == value


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("a", "^no brackets$"),
        ("<think>[x]</think>", "no brackets; text before the end of the reasoning"),
        ("[x]</think>", "no brackets; text before"),
        ("<think>[x]", "opened and never closed"),
        ("Well. <think>[x]", "opened and never closed"),
        ("<think>[x]</think><think>[y]", "opened and never closed"),
        ("[x]</think>[]", "empty"),
    ],
)
def test_answer_inside_the_reasoning_only_is_refused(reply, why):
    with pytest.raises(ReplyRefused, match=why):
        first_in_brackets(reply)


def closing_of(pair):
    """Return the text that closes a pair of markers."""
    texts = [r"Here is my response:", re.sub(r"\\(.)", r"\1", pair.closing)]
    return next(text for text in texts if re.fullmatch(pair.closing, text))


MARKED = [(f"<{tag}>", f"</{tag}>") for tag in reasoning_marker.TAGS]
MARKED += [(pair.opening, closing_of(pair)) for pair in reasoning_marker.PAIRS]
BEGINNINGS = [
    "<|start|>assistant<|channel|>final<|message|>",
    "<|channel|>final <|constrain|>json<|message|>",
    "assistantfinal",
    "<|begin|>assistant<|content|>",
    "<|START_RESPONSE|>",
    "<|begin_of_solution|>",
    "[BEGIN FINAL RESPONSE]",
    "</think>\n<answer>",
]


@pytest.mark.parametrize(("opening", "closing"), MARKED)
def test_every_pair_of_markers_hides_the_reasoning(opening, closing):
    # "[" occurs in the markers, so this application uses braces
    def find(start, end):
        begin = reply.find("{", start, end)
        close = reply.find("}", begin, end)
        if begin < 0 or close < 0:
            raise ReplyRefused("no braces")
        return Found(reply[begin + 1 : close], begin, close + 1)

    reply = f"{opening}{{x}}{closing} {{a}}"
    assert read_answer(reply, find) == "a"
    assert drop_thoughts(reply) == " {a}"


@pytest.mark.parametrize("pair", reasoning_marker.PAIRS, ids=lambda pair: pair.opening)
def test_unclosed_marker_hides_the_rest_or_is_plain_text(pair):
    assert drop_thoughts(f"{pair.opening} a") == ("" if pair.opens else f"{pair.opening} a")
    closing = closing_of(pair)
    assert drop_thoughts(f"a {closing} b") == (" b" if pair.closes else f"a {closing} b")


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_text_before_an_answer_marker_is_reasoning(beginning):
    assert len(BEGINNINGS) == len(reasoning_marker.ANSWERS) + 1
    assert first_in_brackets(f"analysis[x]{beginning}[a]") == "a"


@pytest.mark.parametrize("ending", reasoning_marker.ENDS)
def test_marker_at_the_end_of_an_answer_is_removed(ending):
    assert drop_thoughts(f"a{ending}\n{ending}\n") == "a"
    assert drop_thoughts(f"{ending} a\n") == f"{ending} a\n"


pieces = st.sampled_from(
    ["[x]", "[", "]", "text", "<think>", "</think>", "</thinking>", "<reasoning>", " ", "\n"]
)


@THOROUGH
@given(st.lists(pieces, max_size=12).map("".join))
def test_no_marker_follows_the_answer(reply):
    try:
        value = first_in_brackets(reply)
    except ReplyRefused:
        return
    rest = reply[reply.rindex(f"[{value}]") + len(value) + 2 :]
    assert "</" not in rest


@THOROUGH
@given(
    thought=st.lists(st.sampled_from(["[x]", "[", "]", "<think>", "a "]), max_size=6).map("".join),
    answer=st.sampled_from(["[a]", "So: [a </think>].", "[</reasoning>] [b]"]),
)
def test_closed_reasoning_block_does_not_change_the_answer(thought, answer):
    assert first_in_brackets(f"<think>{thought}</think>{answer}") == first_in_brackets(answer)


CODE = "```python\nx = 'a </think> b'\n```"
DROPPED = {
    "a": "a",
    "<think>x</think>\n\na": "\n\na",
    " <thinking>x</thinking><think>y</think>a": "a",
    "x</think>a": "a",
    "x.</think>```\na\n```": "```\na\n```",
    "x ```\nb\n``` </think>a": "a",
    "a <think>x</think>b": "b",
    "<think>x": "",
    "<think>x</think>": "",
    "<think>x</think>" + CODE: CODE,
    CODE: CODE,
    '{"command": "echo \'a </think> b\'"}': '{"command": "echo \'a </think> b\'"}',
    # an answer that contains a marker is not shortened
    **{
        answer: answer
        for answer in (
            "note='</think>'",
            "kubectl annotate pod x n='a </think> b'",
            "It's so: kubectl annotate pod x n='a </think> b'",
            "def process_graph(g):\n    s = 'a </think> b'\n    return g",
            "Action: ```python\nx = 1  # </think> y\n```",
            "- ```\n  kubectl x # </think> y\n  ```",
            "> ```python\n> # </think> y\n> ```",
            "> ~~~\n> # </think> y\n> ~~~",
            "````\n```\n# </think> y\n````",
            "Run ```kubectl x # </think> y``` so",
            "```\nkubectl x # </think> y```",
            "`</think>` ends it",
        )
    },
    "I don't think it's it </think>a": "a",
    'He said "no </think>a': "a",
    "So ```\nb\n``` or ```c``` </think>```\na\n```": "```\na\n```",
    "```\nb </think>a": "a",
}


@pytest.mark.parametrize("answer", DROPPED)
def test_reasoning_in_any_format_is_dropped(answer):
    assert drop_thoughts(answer) == DROPPED[answer]


@THOROUGH
@given(
    answer=st.lists(
        st.sampled_from([" ", "<think>", "</think>", "a", "<", "<thin", "<b>", "king>"]), max_size=9
    ).map("".join),
    data=st.data(),
)
def test_sieve_passes_the_text_after_the_first_reasoning_block(answer, data):
    sieve, passed, rest = Sieve(), "", answer
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        passed, rest = passed + sieve.take(rest[:size]), rest[size:]
    whole = Sieve().take(answer)
    assert passed == whole
    assert answer.endswith(passed)
    assert not passed.lstrip().startswith("<think>")


@pytest.mark.parametrize(
    ("begin", "fill", "passed"),
    [
        ("", " ", False),
        ("<think", " ", True),
        ("<think>", "x", False),
        ("", "<think></think>", False),
    ],
)
def test_buffered_text_is_scanned_in_linear_time(begin, fill, passed):
    text = begin + fill * (2**16 // len(fill))

    def tell(size):
        sieve = Sieve()
        return "".join(sieve.take(text[place : place + 4]) for place in range(0, size, 4))

    assert tell(len(text)) == (text if passed else "")
    assert is_linear(tell, len(text))


def test_many_empty_reasoning_blocks_are_removed_from_one_text():
    assert Sieve().take("<think></think>" * 70_000 + "a") == "a"


def test_long_reasoning_block_in_many_pieces_is_scanned_once():
    sieve = Sieve()
    assert not any(sieve.take(piece) for piece in ["<think>", *["x" * 9] * 20_000, "</thi", "nk>"])
    assert sieve.take(" a") + sieve.take("b") == " ab"
