"""What of a model's answer is passed on, and when."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from a2a_purple.provider import _Stream


def chunk(text: str) -> SimpleNamespace:
    delta = SimpleNamespace(content=text, tool_calls=None)
    return SimpleNamespace(choices=[SimpleNamespace(delta=delta, finish_reason=None)])


@pytest.mark.parametrize(
    ("said", "passed", "answer"),
    [
        (["a", " b"], ["a", " b"], "a b"),
        (["<thi", "nk>no", " </thin", "k>", "a", "b"], ["", "", "", "", "a", "b"], "ab"),
        (["<think>", "no"], ["", ""], ""),
        # that this was a thought is known when it ends
        (["no", "</think>", "a"], ["no", "</think>", "a"], "a"),
        (['x = "', "</think>", '"'], ['x = "', "</think>", '"'], 'x = "</think>"'),
    ],
)
def test_thoughts_are_taken_out(said, passed, answer):
    stream = _Stream()
    assert [stream.take(chunk(text)) for text in said] == passed
    assert stream.answer == answer
