from __future__ import annotations

import pytest

from netarena.errors import ReplyRefused
from netarena.model import Cause
from netarena_k8s.declaration import WORD_OF, WORDS, claim_of, write_claim
from netarena_k8s.fault.table import KINDS
from netarena_k8s.reply import read_reply
from netarena_k8s.solution import fenced

CAUSE = Cause("cart-policy", "port")


@pytest.mark.parametrize(
    "reply",
    [
        "```\ndone\ncart-policy: port\n```",
        "All is right.\n\n```text\ndone\n\n  - cart-policy :  PORT\n```\nBye.",
        "```done\ncart-policy: port\n```",
        "~~~\nDone\ncart-policy: port\n~~~",
        "1. ```\n   done\n   cart-policy: port\n   ```",
        "<think>```\nkubectl get pods\n```</think>```\r\ndone\r\ncart-policy: port\r\n```",
        "```\ndone\ncart-policy: port\n```\n```\nkubectl get pods\n```",
        '```json\n{"command": "done\\ncart-policy: port"}\n```',
    ],
)
def test_declaration_is_parsed_in_any_code_fence(reply):
    claim = claim_of(read_reply(reply))
    assert claim is not None
    assert claim.causes == (CAUSE,)


@pytest.mark.parametrize(
    "reply", ["```\ndone\n```", "```done```", "```done\n```", "```\n$ done\n```"]
)
def test_declaration_without_causes_is_parsed(reply):
    claim = claim_of(read_reply(reply))
    assert claim is not None
    assert claim.causes is None


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("```\ndone\nkubectl delete networkpolicy deny-all\n```", "not a cause"),
        ("```\ndone\ncart-policy: gremlins\n```", "missing, extra"),
        ('```json\n{"command": "done\\ncart-policy: gremlins"}\n```', "missing, extra"),
        ('```json\n{"command": "done\\nkubectl get pods"}\n```', "not a cause"),
        ("```\ndone\nCart Policy: port\n```", "not a cause"),
        ("```\ndone\n" + "a: port\n" * 65 + "```", "65 causes; at most 64"),
        ("```\ndone\n" + "a" * 40_000 + "\n```", "too long"),
        ("```\ndone\n" + "a" * 254 + ": port\n```", "not a cause"),
        ("```\ndone\ncart-policy: port", "no closing backticks"),
        ("done\ncart-policy: port", "no command"),
        ("I am done.", "no command"),
        ("<think>\n```\ndone\n```", "never closed"),
    ],
)
def test_malformed_declaration_is_refused_with_a_reason(reply, why):
    with pytest.raises(ReplyRefused, match=why):
        read_reply(reply)


@pytest.mark.parametrize(
    "command",
    ["for p in a b; do\n  kubectl get networkpolicy $p\ndone", "kubectl get pods # done"],
)
def test_command_is_not_parsed_as_a_declaration(command):
    move = read_reply(fenced(command))
    assert move == command
    assert claim_of(move) is None
    assert claim_of({"done": True}) is None


def test_every_fault_kind_has_a_cause_word_listed_in_the_prompt():
    assert set(WORD_OF) == set(KINDS)
    assert set(WORD_OF.values()) == set(WORDS)
    for word in WORDS:
        move = read_reply(fenced(write_claim([Cause("a", word)])))
        claim = claim_of(move)
        assert claim is not None
        assert claim.causes == (Cause("a", word),)
