"""Replies are parsed leniently in form, strictly in meaning, and in linear time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from netarena.errors import ReplyRefused
from netarena.task import command_line
from netarena_network import reply
from netarena_network.reply import MAX_COMMAND_BYTES
from netarena_route.declaration import read_reply
from tests.thorough import THOROUGH

_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=80)
_COMMAND = _TEXT.filter(lambda text: not command_line.lacks(text))


_QUOTED = "{'machine': 'b', 'command': 'y'}"
_SINGLE_CURLED = str.maketrans("<>", "\u2018\u2019")
_FORMS = [
    "{}",
    "So:\n```json\n{}\n```\nDone.",
    "```\n{}",
    "~~~yaml\n{}\n~~~",
    "Action: {} {{so}}",
    "I'd say {{'tis}}: {}",
    '{{"action": {{"input": [1, {}, {{"why": null}}]}}}}',
    '{{"machine": "first", "command": "first"}} {}',
]


def _curled(value: dict[str, str]) -> str:
    """Return the object with the quotation marks of a word processor; inner ones are escaped."""
    pairs = (
        f"“{key}”: “{json.dumps(text)[1:-1].replace('“', chr(92) + 'u201c')}”"
        for key, text in value.items()
    )
    return "{" + ", ".join(pairs) + "}"


#: forms in which models write an object; each has only one possible meaning
_WRITTEN: dict[str, Callable[[dict[str, str]], str]] = {
    "json": json.dumps,
    "unescaped letters": lambda value: json.dumps(value, ensure_ascii=False),
    "comma too many": lambda value: json.dumps(value, indent=2)[:-2] + ",\n}",
    "capitals": lambda value: json.dumps({key.upper(): text for key, text in value.items()}),
    "another order": lambda value: json.dumps({"n": [0, {}], **dict(reversed(value.items()))}),
    "a tool's arguments": lambda value: json.dumps({"arguments": json.dumps(value)}),
    "bare keys": lambda value: json.dumps(value).replace('"machine":', "machine:"),
}


@THOROUGH
@given(
    machine=_TEXT,
    command=_COMMAND,
    form=st.sampled_from(_FORMS),
    written=st.sampled_from(sorted(_WRITTEN)),
)
def test_any_json_object_is_parsed(machine: str, command: str, form: str, written: str) -> None:
    text = form.format(_WRITTEN[written]({"machine": machine, "command": command}))
    assert read_reply(text) == {"machine": machine.strip(), "command": command}


@THOROUGH
@given(machine=_TEXT, command=_COMMAND, curled=st.booleans())
def test_object_with_other_quotes_is_parsed(machine: str, command: str, curled: bool) -> None:
    plain = {"machine": machine.strip(), "command": command}
    if curled:
        assume(not {"”", "“"} & {*machine, *command})
        assert read_reply(_curled(plain)) == plain
    else:
        # Python knows escapes that JSON does not
        assume((machine + command).isprintable())
        assert read_reply(f"Next: {plain!r}.") == plain


@THOROUGH
@given(machine=_TEXT, command=_COMMAND, form=st.sampled_from(_FORMS[:4]), data=st.data())
def test_truncated_reply_gives_the_whole_command_or_is_refused(
    machine: str, command: str, form: str, data: st.DataObject
) -> None:
    whole = form.format(json.dumps({"machine": machine, "command": command}))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with suppress(ReplyRefused):
        assert read_reply(cut) == {"machine": machine.strip(), "command": command}


@THOROUGH
@given(
    thought=st.lists(
        st.sampled_from(
            [
                _QUOTED,
                '{"machine": "b", "command": "',
                "{",
                '"',
                "'",
                "Machine: b\n",
                "Command: y\n",
            ]
        ),
        max_size=6,
    ).map("".join),
    command=st.sampled_from(["ip a", "echo '</think>'", "echo '<think> </reasoning>'"]),
    form=st.sampled_from(["{}", "So:\n```json\n{}\n```\nDone."]),
)
def test_reasoning_does_not_change_the_command(thought: str, command: str, form: str) -> None:
    said = {"machine": "a", "command": command}
    assert read_reply(f"<think>{thought}</think>{form.format(json.dumps(said))}") == said


@THOROUGH
@given(st.text(max_size=400))
def test_prose_is_not_parsed_as_a_command(text: str) -> None:
    """Text without a quoted key and without two labelled lines contains no command."""
    assume(not re.search("machine|command", text, re.IGNORECASE))
    with pytest.raises(ReplyRefused):
        read_reply(text)


@pytest.mark.parametrize(
    ("reply_", "command"),
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
        ('{"machine": "a", "command": "x", "instead_of": {"machine": "b", "command": "y"}}', "x"),
        ("""{"machine": "a", "command": "x", "not": "{'machine': 'b', 'command': 'y'}"}""", "x"),
        ("""{"machine": "a", "command": "{'machine': 'b', 'command': 'y'}"}""", _QUOTED),
        ('{"machine": "a", "command": "ip a"', "ip a"),
        ('{"machine": "a", "command": "ip a",', "ip a"),
        ('```json\n{"machine": "a", "command": "ip a"\n```\nThat shows it.', "ip a"),
        ('{"action": {"machine": "a", "command": "ip a"', "ip a"),
        ('[{"machine": "a", "command": "ip a"}', "ip a"),
        ("{'Machine': 'a', 'Command': 'ip a', 'sure': True, 'n': [1.5, None],}", "ip a"),
        ('{“machine”: “a”, “command”: “grep "it\'s" x”}', 'grep "it\'s" x'),
        ("{<machine>: <a>, <command>: <ip a>}".translate(_SINGLE_CURLED), "ip a"),
        ("{ machine : 'a', command: 'ip a' }", "ip a"),
        ("Machine: a\nCommand: ip -o addr | grep ': '", "ip -o addr | grep ': '"),
        ("I look.\n\n**Machine:** `a`\n\n**Command:** `ip a`\n\nThen we see.", "ip a"),
        ("Machine: a\nCommand: tr a b <<<aa", "tr a b <<<aa"),
        ("""{"tool": "run", "arguments": " {'machine': 'a', 'command': 'ip a'} "}""", "ip a"),
        ("- machine: a\r\n- command: sysctl -w x='1'\r\n", "sysctl -w x='1'"),
        ('> COMMAND: "ip a"\n> MACHINE: "a"', "ip a"),
        ("Machine: b\nCommand: x\nMachine: a\nCommand: ip a", "ip a"),
        ("Command: x\nMachine: b\nCommand: ip a\nMachine: a", "ip a"),
        # the last line is incomplete, so the earlier command belongs to the earlier machine
        ("Machine: a\nCommand: ip a\nMachine: b\nCommand:", "ip a"),
        ("Machine: a\nCommand: ip a\nMachine: b", "ip a"),
        ("Machine: a\nCommand: ip a  # it's a look", "ip a  # it's a look"),
        ("Machine: a\nCommand: ip a\nMachine: b\nCommand: echo 'ip", "ip a"),
        ('Machine: b\nCommand: x\n{"machine": "a", "command": "ip a"}', "ip a"),
        ("Machine: a\nCommand: echo `date` $((1 << 2))", "echo `date` $((1 << 2))"),
        # reasoning
        (f'{_QUOTED} is wrong.</think>{{"machine": "a", "command": "ip a"}}', "ip a"),
        (f'{{"machine": "a", "command": "ip a"}} <think>{_QUOTED}', "ip a"),
        ('{"thought": "<think>no</think>", "machine": "a", "command": "ip a"}', "ip a"),
        ("Machine: b\nCommand: y\n</think>\nMachine: a\nCommand: ip a", "ip a"),
        ("Machine: a\nCommand: echo '</think>'", "echo '</think>'"),
        ("Machine: a\nCommand: ip a\n- Why: to see", "ip a"),
    ],
)
def test_replies_of_real_models_are_parsed(reply_: str, command: str) -> None:
    assert read_reply(reply_) == {"machine": "a", "command": command}


@pytest.mark.parametrize(
    ("reply_", "told"),
    [
        ("ip a", "no object"),
        ('{"machine": "a"}', "no object"),
        # an incomplete command would be another command
        ('{"machine": "a", "command": "ip addr flush', "no object"),
        ('{"machine": "a", "command": "sh -c "ip a""}', "no object"),
        ('{"machine": "a", "command": "ip a" and then', "no object"),
        (
            '{"machine": "a", "command": "ip a"} is what {"machine": "a", "command": 1}',
            "must be strings",
        ),
        ('{"machine": "a" "command": "ip a"}', "no object"),
        ("{machine: a, command: ip a}", "no object"),
        ("Machine: a", "no object"),
        ("Machine: a\nWhat next?\nCommand: ip a", "no object"),
        ("The machine: a router\nCommand: ip a", "no object"),
        ("Machine: the router\nCommand: look at the routes", "no object"),
        ("Machine: a\nCommand:", "no object"),
        ("Machine: a\nCommand: iptables -m comment --comment 'a rou", "no object"),
        ("Command: x\nMachine: a\nCommand: y", "no object"),
        ("On machine a I would run the command: ip a", "no object"),
        # prose about a command
        ("""{"note": "{'machine': 'a', 'command': 'ip a'} would be wrong"}""", "no object"),
        ("""{"note": "not {'machine': 'a', 'command': 'ip a'}"}""", "no object"),
        ("Machine: a\nCommand: `ip a`, then `ip rule`", "no object"),
        ("Machine: a\nCommand: ```ip a", "no object"),
        # the rest of the command is on the next lines
        ("Machine: a\nCommand: ip a &&\nip rule", "no object"),
        ("Machine: a\nCommand: ip route flush \\\ntable 7", "no object"),
        ("Machine: a\nCommand: nft -f - <<EOF\nflush ruleset\nEOF", "no object"),
        ("Machine: a\nCommand: ip a ||", "no object"),
        ('Machine: a\nCommand: echo "$(ip a"', "no object"),
        ("Machine: a\nCommand: iptables -A FORWARD -j DROP\n  -s 10.0.0.1", "no object"),
        ("> Machine: a\n> Command: iptables -A FORWARD -j DROP\n>  -s 10.0.0.1", "no object"),
        ("Machine: a\nCommand: ip route flush ^\n table 7", "no object"),
        (r'{"machine": "a", "command": "ip route del default \\"}', "incomplete .*backslash"),
        (
            r'{"machine": "a", "command": "iptables -A FORWARD -j DROP \\\n"}',
            "incomplete .*backslash",
        ),
        (
            r'{"machine": "a", "command": "iptables -A FORWARD -j DROP\n -s 1.1.1.1"}',
            "incomplete .*rest",
        ),
        (
            r'{"machine": "a", "command": "sh <<EOF\nip link set eth1 down"}',
            "incomplete .*no line EOF",
        ),
        # reasoning
        ("Machine: a\nCommand: ip link set eth1 down # no</think>\nNo.", "end of the reasoning"),
        (f"<think>{_QUOTED}</think> I cannot do that.", "before the end of the reasoning"),
        (f"{_QUOTED}</thinking>", "before the end of the reasoning"),
        (f"<think>{_QUOTED}", "opened and never closed"),
        (f"<think>{'x' * reply.MAX_READ_CHARS}{_QUOTED}", "opened and never closed"),
        ("Machine: b\nCommand: y</think>", "before the end of the reasoning"),
        ('{"machine": "a", "command": ["ip", "a"]}', "must be strings"),
        (r'{"machine": "a", "command": "\ud800"}', "not valid Unicode"),
        (r'{"machine": "a\ud800", "command": "ip"}', "the machine is not valid"),
        (r'{"machine": "a", "command": "a\u0000b"}', "NUL"),
        (json.dumps({"machine": "a", "command": "x" * 65_537}), f"{MAX_COMMAND_BYTES} are allowed"),
    ],
)
def test_ambiguous_reply_is_refused(reply_: str, told: str) -> None:
    with pytest.raises(ReplyRefused, match=told):
        read_reply(reply_)


#: name -> function that returns a text with n pieces; naive parsers are slow on these texts
_HOSTILE: dict[str, Callable[[int], str]] = {
    "objects that do not end": lambda n: '{"a":' * n,
    "lists that do not end": lambda n: '{"a":' + "[" * n,
    "elements": lambda n: '{"a":[' + "1," * n,
    "braces": lambda n: "{" * n,
    "empty objects": lambda n: "{}" * n,
    "texts that do not end": lambda n: '{"a' * n,
    "single quotes": lambda n: "{'a" * n,
    "curled quotes": lambda n: "{“" * n + "k”:{" + '"a":1,' * n + "} x",
    "low quotes": lambda n: "{„" * n + "k”:{" + '"a":1,' * n + "} x",
    "two ways to read it": lambda n: "{" + """'s':'{"x":"','k':'","y":"',""" * n,
    "no commas": lambda n: "{'a':'b'" * n,
    "spaces": lambda n: "{'a':'b'" + " " * n,
    "backslashes": lambda n: '{"a":"' + "\\" * (2 * n + 1),
    "all but the last closed": lambda n: '{"a":' * n + "1" + "}" * (n - 1) + " x",
    "values that are missing": lambda n: '{"machine": "a", "command":' * n,
    "objects in texts": lambda n: '{"a":"' + "{'b':'c'}" * n + '"}',
    "lines": lambda n: "Machine: a\n" * n,
    "empty lines": lambda n: "Command:" + "\n" * n,
    "marks": lambda n: "*" * n + " " * n,
}


class Counted:
    """A pattern; ``cost`` counts match attempts and the characters that they examined."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self.cost = 0

    def __getattr__(self, name: str) -> Any:
        def count(text: str, place: int = 0) -> re.Match[str] | None:
            match: re.Match[str] | None = getattr(self._pattern, name)(text, place)
            self.cost += 1 + (match.end() - match.start() if match else len(text) - place)
            return match

        return count


@pytest.mark.parametrize("kind", _HOSTILE)
def test_parsing_time_is_linear(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def cost(pieces: int) -> int:
        with pytest.MonkeyPatch.context() as patch:
            counted = {name: Counted(getattr(reply, name)) for name in ("_TOKEN", "_LINE")}
            for name, pattern in counted.items():
                patch.setattr(reply, name, pattern)
            with pytest.raises(ReplyRefused):
                read_reply(_HOSTILE[kind](pieces))
        return sum(pattern.cost for pattern in counted.values())

    monkeypatch.setattr(reply, "MAX_READ_CHARS", 1 << 30)
    assert cost(2000) <= 2.2 * cost(1000) + 100


@pytest.mark.parametrize(
    "kind", ["objects that do not end", "single quotes", "two ways to read it", "lines"]
)
def test_long_text_is_parsed_up_to_the_limit(kind: str) -> None:
    text = _HOSTILE[kind](1000)
    text = (text * (800_000 // len(text) + 1))[:800_000]
    assert len(text) > 6 * reply.MAX_READ_CHARS
    with pytest.raises(ReplyRefused):
        read_reply(text)
    said = {"machine": "a", "command": "ip a"}
    assert read_reply(f'{text}" \n\n{json.dumps(said)}') == said
