from __future__ import annotations

import json

import pytest

from netarena.errors import ReplyRefused
from netarena.model import Cause, Claim
from netarena.task.ticket import MAX_CAUSES
from netarena_network.action import Command, Fault
from netarena_network.declaration import claim_of, make_move
from netarena_route.declaration import GLOSSARY, WORDS, read_reply
from netarena_route.fault.table import ALL_KINDS

COMMAND = '{"machine": "p1_r0", "command": "ip route"}'


def _read(reply: str) -> Claim | None:
    return claim_of(read_reply(reply))


@pytest.mark.parametrize(
    ("reply", "causes"),
    [
        ('{"done": true}', None),
        ('{"done": true, "causes": []}', None),
        ('{"done": true, "causes": null}', None),
        ('{"machine": null, "command": null, "done": true, "causes": []}', None),
        ('{"ruled_out": [{"place": "a", "what": "link"}], "done": true}', None),
        ('{"done": true, "causes": [], "no": [{"place": "a", "what": "rule"}]}', None),
        ('{"done": true, "causes": [{"place": "p1_h2", "what": "route"}]}', [("p1_h2", "route")]),
        ('{"causes": [{"what": "Link", "place": " p1_r0 "}], "done": true}', [("p1_r0", "link")]),
        ("```json\n{'done': True, 'causes': []}\n```", None),
        ('All is well now.\n{"DONE": "true"}', None),
        ('{"arguments": "{\\"done\\": true}"}', None),
        ('{"tool": {"done": true, "causes": [{"place": "a", "what": "rule"}]}}', [("a", "rule")]),
        ('<think>{"done": true}</think>{"done": true, "causes": []}', None),
    ],
)
def test_declaration_is_parsed(reply: str, causes: list[tuple[str, str]] | None) -> None:
    assert _read(reply) == Claim(causes=causes and tuple(Cause(*cause) for cause in causes))


@pytest.mark.parametrize(
    "reply",
    [
        COMMAND,
        f'{COMMAND} {{"done": true}}',
        f'{{"done": true}} {COMMAND}',
        '{"machine": "p1_r0", "command": "ip route", "done": true}',
        'Machine: p1_r0\nCommand: ip route\n\n{"done": true}',
        '{"machine": "p1_r0", "command": "echo \'{\\"done\\": true}\'"}',
    ],
)
def test_reply_with_a_command_is_not_a_declaration(reply: str) -> None:
    move = read_reply(reply)
    assert isinstance(move, dict)
    assert move["machine"] == "p1_r0"
    assert claim_of(move) is None


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ('{"done": false}', "no object with machine and command"),
        ('{"done": 1}', "no object with machine and command"),
        ('<think>{"done": true}', "no"),
        ('{"done": true, "causes": "route"}', "causes must be a list of objects"),
        ('{"done": true, "causes": ["p1_h2: route"]}', "causes must be a list of objects"),
        ('{"done": true, "causes": [{"place": "p1_h2"}]}', "causes must be a list of objects"),
        ('{"done": true, "causes": [{"place": 1, "what": "rule"}]}', "a cause must be an object"),
        (
            '{"done": true, "causes": [{"place": "a", "what": "hex"}]}',
            "'hex' is not one of the words",
        ),
        # a word of backbone tickets
        (
            '{"done": true, "causes": [{"place": "a", "what": "cost"}]}',
            "'cost' is not one of",
        ),
        (
            json.dumps(make_move([Cause("a", "rule")] * (MAX_CAUSES + 1))),
            f"{MAX_CAUSES + 1} causes; at most {MAX_CAUSES} are allowed",
        ),
    ],
)
def test_incomplete_declaration_is_refused(reply: str, told: str) -> None:
    with pytest.raises(ReplyRefused, match=told):
        read_reply(reply)


def test_place_with_invalid_unicode_is_refused() -> None:
    with pytest.raises(ReplyRefused, match="not valid Unicode"):
        read_reply('{"done": true, "causes": [{"place": "\\ud800", "what": "rule"}]}')


def test_every_fault_has_a_listed_cause_word() -> None:
    named = [
        Fault(
            kind=kind,
            method=one.name,
            machine="m",
            parameters={},
            words="",
            inject=(),
            repair=(),
        )
        for kind, methods in ALL_KINDS.items()
        for one in methods
    ]
    assert {GLOSSARY.word_of(fault) for fault in named} == {*WORDS} - {"guard"}
    assert GLOSSARY.causes_of(named[:1]) == [Cause("m", "forwarding")]


def test_command_is_not_a_declaration() -> None:
    assert claim_of({"machine": "p1_r0", "command": "done"}) is None
    assert claim_of(None) is None
    assert claim_of({"done": "true"}) is None


@pytest.mark.parametrize(
    ("kind", "method", "inject", "word", "fits"),
    [
        ("policy_rule", "source_table", "ip rule add from 10.1.0.0/24 lookup 9", "route", True),
        ("disable_routing", "ip_forward", "sysctl -w net.ipv4.ip_forward=0", "setting", True),
        ("guard", "apart", "ip rule del pref 3 prohibit", "rule", True),
        ("guard", "apart", "ip rule del pref 3 prohibit", "filter", False),
        ("host_setting", "ttl", "sysctl -w net.ipv4.ip_default_ttl=1", "route", False),
    ],
)
def test_second_cause_word_that_describes_a_fault_is_accepted(
    kind: str, method: str, inject: str, word: str, *, fits: bool
) -> None:
    command = Command(machine="p1_r0", command=inject)
    fault = Fault(
        kind=kind,
        method=method,
        machine="p1_r0",
        words="",
        parameters={},
        inject=(command,),
        repair=(command,),
    )
    (own,) = GLOSSARY.causes_of([fault])
    named = [Cause("p1_r0", word), Cause("p1_h1", word)]
    assert GLOSSARY.as_injected([fault], named) == [own if fits else named[0], named[1]]
