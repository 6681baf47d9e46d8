"""Declarations that refuse requested changes are parsed as leniently as those with causes."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.errors import ReplyRefused
from netarena.model import Cause, Claim, Refusal
from netarena_backbone.app import Backbone
from netarena_backbone.declaration import REFUSALS, read_reply
from netarena_network.declaration import MAX_REFUSED, claim_of, make_move
from netarena_route import declaration as route
from netarena_route.app import Route
from tests.thorough import THOROUGH

FORM = 'send {"done": true, "refused": [{"change": 2, "because": "<word>"}]}'
WORDS = "no_redundancy, address_in_use, own_prefix, documented_service"
COMMAND = {"machine": "p1_r0", "command": "ip route"}


def _read(reply: str) -> list[tuple[int, str]]:
    claim = claim_of(read_reply(reply))
    assert claim is not None
    return [(one.change, one.because) for one in claim.refused]


def _done(*refused: Any, **more: Any) -> str:
    return json.dumps({"done": True, "refused": [*refused], **more})


def _one(change: Any, because: Any = "no_redundancy") -> dict[str, Any]:
    return {"change": change, "because": because}


@pytest.mark.parametrize(
    "reply",
    [
        '{"done": true, "refused": [{"change": 2, "because": "no_redundancy"}]}',
        '{"done": true, "causes": [], "refused": [{"change": 2, "because": "no_redundancy"}]}',
        '{"done": true, "causes": null, "refused": [{"because": "no_redundancy", "change": 2}]}',
        '```json\n{"done": true, "refused": [{"change": "2", "because": "no_redundancy"}]}\n```',
        "All is well.\n{'done': True, 'refused': [{'change': '2', 'because': 'no_redundancy'}]}",
        '{DONE: "true", REFUSED: [{Change: 2, Because: "NO_REDUNDANCY"}]}',
        '{"done": true, "refused": [{"change": "change 2", "because": " no redundancy "}]}',
        '{"done": true, "refused": [{"change": "#2", "because": "no-redundancy"}]}',
        '{"done": true, "refused": [{"change": 2.0, "because": "no_redundancy", "why": [1]}]}',
        (
            '{"arguments": "{\\"done\\": true, \\"refused\\": [{\\"change\\": 2, '
            '\\"because\\": \\"no_redundancy\\"}]}"}'
        ),
        '{"tool": {"done": true, "refused": [{"change": 2, "because": "no_redundancy"}]}}',
        (
            '{"machine": null, "command": null, "done": true, "causes": null, '
            '"refused": [{"change": 2, "because": "no_redundancy"}]}'
        ),
        '{"done": true, "refused": [{"change": 2, "because": "no_redundancy"},]',
        (
            '<think>{"done": true}</think>{"done": true, '
            '"refused": [{"change": 2, "because": "no_redundancy"}]}'
        ),
        (
            '{"done": true, "refused": []} {"done": true, '
            '"refused": [{"change": 2, "because": "no_redundancy"}]}'
        ),
        _done(_one(2), _one("2"), _one("#2")),
    ],
)
def test_refused_change_is_parsed(reply: str) -> None:
    assert _read(reply) == [(2, "no_redundancy")]


@pytest.mark.parametrize("value", ["[]", "null", "None", "[ ]"])
def test_empty_list_refuses_nothing_in_every_application(value: str) -> None:
    reply = f'{{"done": true, "refused": {value}}}'
    assert read_reply(reply) == route.read_reply(reply) == {"done": True, "causes": []}
    assert Backbone().parse(reply) == Route().parse(reply) == {"done": True, "causes": []}


def test_refused_changes_and_causes_are_independent() -> None:
    reply = _done(_one(3, "own_prefix"), _one(1), causes=[{"place": "r1", "what": "cost"}])
    refused = (Refusal(change=3, because="own_prefix"), Refusal(change=1, because="no_redundancy"))
    causes = (Cause("r1", "cost"),)
    move = Backbone().parse(reply)
    assert Backbone.tickets.declaration(move) == Claim(causes=causes, refused=refused)
    written = Backbone.tickets.declare_refused(causes, refused)
    assert Backbone().parse(written) == move == make_move(causes, refused)
    # without refused changes, the form of declarations is unchanged
    assert Backbone.tickets.declare_refused(causes, ()) == Backbone.tickets.declare(causes)
    assert "refused" not in Backbone.tickets.declare(causes)


@pytest.mark.parametrize(
    "reply",
    [
        json.dumps({**COMMAND, "refused": [_one(2)]}),
        json.dumps({**COMMAND, "done": True, "refused": [_one(2)]}),
        f"{json.dumps(COMMAND)} {_done(_one(2))}",
        f"{_done(_one('no number'))} {json.dumps(COMMAND)}",
        json.dumps({**COMMAND, "change": 2, "because": "no_redundancy"}),
    ],
)
def test_command_is_run_instead_of_a_declaration(reply: str) -> None:
    assert read_reply(reply) == COMMAND


def test_number_in_place_of_a_command_is_treated_as_null() -> None:
    reply = '{"machine": 0, "command": 1, "done": true, "causes": 2}'
    assert read_reply(reply) == {"done": True, "causes": []}


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        ("no_redundancy", "refused must be a list of objects with change and because"),
        ({"change": 2, "because": "no_redundancy"}, "refused must be a list of objects"),
        (2, "refused must be a list of objects"),
        (float("nan"), "refused must be a list of objects"),
        (False, "refused must be a list of objects"),
        (True, "refused must be a list of objects"),
        ([2], "refused must be a list of objects"),
        (["change 2: no_redundancy"], "refused must be a list of objects"),
        ([[_one(2)]], "refused must be a list of objects"),
        ([_one(2), None], "refused must be a list of objects"),
        ([{"change": 2}], "refused must be a list of objects"),
        ([{"because": "no_redundancy"}], "refused must be a list of objects"),
        ([{}], "refused must be a list of objects"),
        ([_one(2, "risky")], f"'risky' is not one of the words for refused changes: {WORDS}"),
        ([_one(2, "")], f"'' is not one of the words for refused changes: {WORDS}"),
        ([_one(2, None)], f"because must be one of the words for refused changes: {WORDS}"),
        ([_one(2, 3)], "because must be one of the words for refused changes"),
        ([_one(2, ["no_redundancy"])], "because must be one of the words for refused changes"),
        # words for causes are not accepted for refused changes
        ([_one(2, "cost")], "'cost' is not one of the words for refused changes"),
        ([_one(2, "\ud800")], r"'\ud800' is not one of the words"),
        ([_one(0)], "0 is not the number of a requested change; numbers start at 1"),
        ([_one(-2)], "-2 is not the number of a requested change; numbers start at 1"),
        ([_one("0")], "0 is not the number of a requested change; numbers start at 1"),
        ([_one(True)], "change must be the number of a requested change"),
        ([_one(False)], "change must be the number of a requested change"),
        ([_one(None)], "change must be the number of a requested change"),
        ([_one(2.5)], "change must be the number of a requested change"),
        ([_one(float("nan"))], "change must be the number of a requested change"),
        ([_one(float("inf"))], "change must be the number of a requested change"),
        ([_one(10**4000)], "change must be the number of a requested change"),
        ([_one("9" * 4000)], "change must be the number of a requested change"),
        ([_one([2, 3])], "change must be the number of a requested change"),
        ([_one({"change": 2})], "change must be the number of a requested change"),
        ([_one("all of them")], "change must be the number of a requested change"),
        ([_one("1 and 2")], "change must be the number of a requested change"),
        (
            [_one(1), _one("1", "own_prefix")],
            "change 1 is refused twice, with different words",
        ),
        (
            [_one(1 + n) for n in range(MAX_REFUSED + 1)],
            f"refused has {MAX_REFUSED + 1} entries; at most {MAX_REFUSED} are allowed",
        ),
        ([_one(1)] * (MAX_REFUSED + 1), f"refused has {MAX_REFUSED + 1} entries"),
    ],
    ids=str,
)
def test_malformed_refusal_is_refused_with_the_right_form(refused: Any, told: str) -> None:
    with pytest.raises(ReplyRefused) as why:
        read_reply(json.dumps({"done": True, "refused": refused}))
    assert str(why.value).startswith(told)
    assert str(why.value).endswith(FORM)
    assert "\n" not in str(why.value)


def test_as_many_refusals_as_allowed_are_parsed() -> None:
    some = [_one(1 + n) for n in range(MAX_REFUSED)]
    assert len(_read(_done(*some))) == MAX_REFUSED


@pytest.mark.parametrize("refused", [[_one(2)], [_one(0)], "none", [[]], {}, True])
def test_application_without_requested_changes_refuses_nothing(refused: Any) -> None:
    with pytest.raises(ReplyRefused) as why:
        Route().parse(json.dumps({"done": True, "refused": refused}))
    assert str(why.value) == (
        'the task requests no changes: omit the key "refused": {"done": true}'
    )


def test_every_word_for_refused_changes_has_a_meaning_and_is_parsed() -> None:
    assert ", ".join(REFUSALS) == WORDS
    assert all(meaning.strip() and not meaning.endswith(".") for meaning in REFUSALS.values())
    for word in REFUSALS:
        assert _read(_done(_one(1, word))) == [(1, word)]


def test_backbone_ticket_without_requests_is_settled_without_refusals() -> None:
    app = Backbone()
    query = next(app.generate(app.config_type.parse({"error_types": ["ospf_cost"]}), 3))
    tickets = app.tickets
    assert (tickets.requested(query), [*tickets.refusals(query)]) == (0, [])
    for claim in (None, Claim(), tickets.declaration(app.parse(tickets.reference(query)))):
        assert not tickets.unsettled(query, claim)
    assert tickets.reference(query) == tickets.declare(tickets.causes(query))


_refusals = st.dictionaries(
    st.integers(1, 10**9 - 1), st.sampled_from(sorted(REFUSALS)), max_size=MAX_REFUSED
)
_numbers = st.sampled_from([int, str, "#{}".format, "change {}".format, " Change #{} ".format])
_words = st.sampled_from([str, str.upper, lambda word: word.replace("_", " ")])
_forms = st.sampled_from(["{}", "So:\n```json\n{}\n```\nDone.", "```\n{}", "I'd say {{'tis}}: {}"])


@THOROUGH
@given(said=_refusals, form=_forms, data=st.data())
def test_refusals_in_any_accepted_form_are_parsed(
    said: dict[int, str], form: str, data: st.DataObject
) -> None:
    entries = [
        _one(data.draw(_numbers)(change), data.draw(_words)(word)) for change, word in said.items()
    ]
    whole = _done(*entries) if data.draw(st.booleans()) else repr(json.loads(_done(*entries)))
    assert _read(form.format(whole)) == [*said.items()]


@THOROUGH
@given(said=_refusals, data=st.data())
def test_truncated_declaration_refuses_no_other_change(
    said: dict[int, str], data: st.DataObject
) -> None:
    whole = _done(*(_one(change, word) for change, word in said.items()))
    with suppress(ReplyRefused):
        found = _read(whole[: data.draw(st.integers(0, len(whole) - 1))])
        assert found == [*said.items()][: len(found)]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["change", "because", "done", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@THOROUGH
@given(_json)
def test_any_value_of_refused_is_parsed_or_refused(value: Any) -> None:
    with suppress(ReplyRefused):
        claim = claim_of(read_reply(json.dumps({"done": True, "refused": value})))
        assert claim is not None
        assert all(one.change > 0 and one.because in REFUSALS for one in claim.refused)


@pytest.mark.parametrize(
    "inner",
    [
        '{"change": ' * 50_000,
        '{"change": [' * 40_000 + "]}" * 40_000,
        "[" * 60_000 + "]" * 60_000,
        '{"change": ' + "9" * 120_000 + ', "because": "no_redundancy"}',
        '{"change": "' + " " * 120_000 + '2x", "because": "no_redundancy"}',
        '{"change": "change' + " " * 120_000 + '#x", "because": "no_redundancy"}',
        '{"change": 2, "because": "' + "no " * 40_000 + '"}',
    ],
    ids=range(7),
)
def test_hostile_refusal_is_refused_quickly(inner: str) -> None:
    with pytest.raises(ReplyRefused):
        read_reply(f'{{"done": true, "refused": [{inner}]}}')
