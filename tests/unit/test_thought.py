"""Thoughts are not read, whatever they hold; what counts may hold their markers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.errors import ReplyRefused
from netarena.thought import Found, Sieve, drop_thoughts, read_answer


def first_in_brackets(reply):
    """Read ``[...]``, the first one, as an application reads its form."""

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
        # what is opened there ends a thought that was not told of
        ("cut [x bad</think>[a]", "a"),
        # the thought that is not closed is not read
        ("[a]<think>[x]", "a"),
        ("[a]<reasoning>", "a"),
        ("</think>[a]", "a"),
        ("[x]</think>" * 20 + "[a]", "a"),
    ],
)
def test_what_counts_is_found_outside_of_thoughts(reply, value):
    assert first_in_brackets(reply) == value


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("a", "^no brackets$"),
        ("<think>[x]</think>", "no brackets; what stands before the end of a thought"),
        ("[x]</think>", "no brackets; what stands"),
        ("<think>[x]", "opened and never closed"),
        ("Well. <think>[x]", "opened and never closed"),
        ("<think>[x]</think><think>[y]", "opened and never closed"),
        ("[x]</think>[]", "empty"),
    ],
)
def test_what_stands_in_thoughts_alone_is_refused(reply, why):
    with pytest.raises(ReplyRefused, match=why):
        first_in_brackets(reply)


pieces = st.sampled_from(
    ["[x]", "[", "]", "text", "<think>", "</think>", "</thinking>", "<reasoning>", " ", "\n"]
)


@given(st.lists(pieces, max_size=12).map("".join))
def test_what_counts_has_no_marker_behind_it(reply):
    try:
        value = first_in_brackets(reply)
    except ReplyRefused:
        return
    rest = reply[reply.rindex(f"[{value}]") + len(value) + 2 :]
    assert "</" not in rest


@given(
    thought=st.lists(st.sampled_from(["[x]", "[", "]", "<think>", "a "]), max_size=6).map("".join),
    answer=st.sampled_from(["[a]", "So: [a </think>].", "[</reasoning>] [b]"]),
)
def test_a_thought_that_is_closed_changes_nothing(thought, answer):
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
    "note='</think>'": "note='</think>'",
}


@pytest.mark.parametrize("answer", DROPPED)
def test_thoughts_are_dropped_of_any_form(answer):
    assert drop_thoughts(answer) == DROPPED[answer]


@given(
    answer=st.lists(
        st.sampled_from([" ", "<think>", "</think>", "a", "<", "<thin", "<b>", "king>"]), max_size=9
    ).map("".join),
    data=st.data(),
)
def test_a_sieve_passes_what_follows_the_first_thoughts(answer, data):
    sieve, passed, rest = Sieve(), "", answer
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        passed, rest = passed + sieve.take(rest[:size]), rest[size:]
    whole = Sieve().take(answer)
    assert passed == whole
    assert answer.endswith(passed)
    assert not passed.lstrip().startswith("<think>")


def test_a_long_thought_in_many_pieces_is_looked_through_once():
    sieve = Sieve()
    assert not any(sieve.take(piece) for piece in ["<think>", *["x" * 9] * 50_000, "</thi", "nk>"])
    assert sieve.take(" a") + sieve.take("b") == " ab"
