"""Reading replies: lenient in form, strict in meaning, linear in length."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.errors import ReplyRefused
from netarena_route.reply import MAX_COMMAND_BYTES, read_reply

_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=80)


@given(
    machine=_TEXT,
    command=_TEXT,
    form=st.sampled_from(["{}", "So:\n```json\n{}\n```\nDone.", "```\n{}", "Action: {} {{so}}"]),
    earlier=st.booleans(),
)
def test_any_object_is_read_back(machine: str, command: str, form: str, earlier: bool) -> None:
    reply = form.format(json.dumps({"machine": machine, "command": command}))
    if earlier:
        reply = '{"machine": "first", "command": "first"} ' + reply
    assert read_reply(reply) == {"machine": machine.strip(), "command": command}


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("{'machine': 'a', 'command': 'ip a'}", "ip a"),
        ("{'machine': 'a', 'command': 'say \"it\\'s\"'}", 'say "it\'s"'),
        ('{"machine": "a", "command": "ip a",}', "ip a"),
        ('{"command": "ip a", "machine": "a", "why": "to see"}', "ip a"),
        ('{"machine": "a", "command": "line\nline"}', "line\nline"),
        (r'{"machine": "a", "command": "grep \"x\|y\""}', r'grep "x\|y"'),
        (r'{"machine": "a", "command": "printf \\|"}', r"printf \|"),
        ('{"machine": "a", "command": "awk \'{print $1}\'"}', "awk '{print $1}'"),
        ('{"action": {"machine": "a", "command": "ip a"}} {"done": true}', "ip a"),
        ('{"machine": "a", "command": ""}', ""),
        ('{"machine": "a", "command": "x"} {"machine": "a", "command": "y"} {"machine": 1}', "y"),
    ],
)
def test_what_models_send_is_read(reply: str, command: str) -> None:
    assert read_reply(reply) == {"machine": "a", "command": command}


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ("ip a", "no object"),
        ('{"machine": "a"}', "no object"),
        ('{"machine": "a", "command": ["ip", "a"]}', "must be texts"),
        (r'{"machine": "a", "command": "\ud800"}', "not valid Unicode"),
        (r'{"machine": "a\ud800", "command": "ip"}', "the machine is not valid"),
        (r'{"machine": "a", "command": "a\u0000b"}', "NUL"),
        (json.dumps({"machine": "a", "command": "x" * 65_537}), f"{MAX_COMMAND_BYTES} are allowed"),
    ],
)
def test_what_cannot_be_meant_is_refused(reply: str, told: str) -> None:
    with pytest.raises(ReplyRefused, match=told):
        read_reply(reply)


@pytest.mark.parametrize(
    "reply",
    [
        '{"a":' * 100_000,
        '{"a' * 100_000,
        "{'a" * 100_000,
        "{'a':'b'" * 50_000,
        "{'a':'b'" + " " * 300_000,
        '{"a":"' + "\\" * 300_001,
        '{"machine": "a", "command":' * 10_000,
    ],
    ids=range(7),
)
def test_hostile_text_is_read_to_its_end(reply: str) -> None:
    """Quadratic reading would take the better part of an hour: the suite's own limit is hit."""
    with pytest.raises(ReplyRefused):
        read_reply(reply)
