"""The parts of a model's answer that are passed on, and the time at which this happens."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from a2a_purple.provider import Way, _Stream


def chunk(text: str) -> SimpleNamespace:
    delta = SimpleNamespace(content=text, tool_calls=None)
    return SimpleNamespace(choices=[SimpleNamespace(delta=delta, finish_reason=None)])


@pytest.mark.parametrize(
    ("said", "passed", "answer"),
    [
        (["a", " b"], ["a", " b"], "a b"),
        (["<thi", "nk>no", " </thin", "k>", "a", "b"], ["", "", "", "", "a", "b"], "ab"),
        (["<think>", "no"], ["", ""], ""),
        # only the closing marker shows that the text before it was reasoning
        (["no", "</think>", "a"], ["no", "</think>", "a"], "a"),
        (['x = "', "</think>", '"'], ['x = "', "</think>", '"'], 'x = "</think>"'),
    ],
)
def test_reasoning_is_removed_from_the_answer(said, passed, answer):
    stream = _Stream()
    assert [stream.take(chunk(text)) for text in said] == passed
    assert stream.answer == answer


@pytest.mark.parametrize(
    ("words", "other"),
    [
        *(
            (words, Way(usage=True, system=False))
            for words in (
                "System role not supported",
                "Conversation roles must alternate user/assistant/user/assistant/...",
                'messages: roles must alternate between "user" and "assistant"',
                "Developer instruction is not enabled for models/gemma-3-1b-it",
                "This model doesn't support system messages. Try another model",
                "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
                "Invalid value: 'system'. Supported values are: 'user' and 'assistant'.",
                'messages: Unexpected role "system"',
                "messages[0].role: unknown variant `system`, expected `user` or `assistant`",
                "Only user and assistant roles are supported!",
                "System prompts aren't supported by this model",
                "role 'system' is not allowed",
                "body.messages.0.role: Input should be 'user' or 'assistant'",
            )
        ),
        *(
            (words, Way(streaming=False, usage=True))
            for words in (
                "Streaming is not supported by this model",
                "Your organization must be verified to stream this model",
                "stream=true is not implemented",
                "Unrecognized request argument supplied: stream",
                "body.stream: Extra inputs are not permitted",
            )
        ),
        *(
            (words, Way())
            for words in (
                "Unrecognized request argument supplied: stream_options",
                "body.stream_options: Extra inputs are not permitted",
                'json: unknown field "include_usage"',
            )
        ),
        *(
            (words, None)
            for words in (
                "Your system prompt was flagged as a violation of our usage policy",
                "The system message holds content that is not allowed",
                "System messages are not allowed to contain personal data",
                "maximum context length is 8192 tokens: shorten the system prompt or the messages",
                "invalid system prompt: more than 4096 tokens",
                "the system could not process the message",
                "the message must be shorter; a system prompt counts",
                "the stream ended: context length exceeded",
                "the prompt asks for a stream of threats",
                "bad request: {'stream': True, 'stream_options': {'include_usage': True}}",
                "invalid api key",
            )
        ),
    ],
)
def test_request_form_changes_only_after_an_error_message_about_it(words, other):
    assert Way(usage=True).other(words) == other
