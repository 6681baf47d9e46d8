from __future__ import annotations

import pytest
from orders import Orders

from netarena.task.application import load, reply_of, tools_of
from netarena.task.tool import DONE, DONE_OR_REFUSED, fence, read_causes, read_refused

#: arguments of an agent's tool call by application, and the resulting move
CALLS = [
    (
        "route",
        {"machine": "h1", "command": 'echo \'{"machine": "h2"}\' "a\\b"\nip route </think>'},
        {"machine": "h1", "command": 'echo \'{"machine": "h2"}\' "a\\b"\nip route </think>'},
    ),
    ("k8s", {"command": "kubectl get pods"}, "kubectl get pods"),
    (
        "malt",
        {"code": "def process_graph(graph_data):\n    return '```' + '''\n````\n'''"},
        {"code": "def process_graph(graph_data):\n    return '```' + '''\n````\n'''"},
    ),
]


@pytest.mark.parametrize(("name", "values", "move"), CALLS)
def test_arguments_of_a_tool_call_become_the_expected_move(name, values, move):
    application = load(name)
    (tool,) = application.tools.kinds(application.config_type())
    assert [parameter.name for parameter in tool.parameters] == list(values)
    read = application.parse(application.tools.reply(tool.name, values))
    trimmed = {k: v.strip() for k, v in read.items()} if isinstance(read, dict) else read.strip()
    assert trimmed == move


def test_application_without_specific_tools_has_a_tool_for_complete_replies():
    application = load("toy")
    (tool,) = application.tools.kinds(application.config_type())
    assert tool.name == "reply"
    assert application.tools.reply("reply", {"text": "open v1"}) == "open v1"


def test_causes_are_parsed_line_by_line():
    text = "deploy/a: image\r\n  h1 :route \nnothing\n\nx:y:z"
    assert read_causes(text) == [("deploy/a", "image"), ("h1", "route"), ("x:y", "z")]


def test_refused_changes_are_parsed_line_by_line():
    text = "2: no_valve\r\n  change 3 : rust \n\n#4:no: way\nnothing\n: rust\ntrue: rust\n"
    told = [(one.change, one.because) for one in read_refused(text)]
    # a line without a number counts as change 0, which parsers refuse
    assert told == [
        (2, "no_valve"), (3, "rust"), (4, "no: way"), (0, ""), (0, "rust"), (0, "rust"),
    ]  # fmt: skip
    assert read_refused(" \n") == []


@pytest.mark.parametrize("name", ["route", "k8s", "backbone", "toy"])
def test_declaration_has_no_parameter_for_refused_changes_if_none_are_requested(name):
    application = load(name)
    config = application.config_type.parse({"briefing": "ticket"})
    assert tools_of(application, config)[-1] is DONE
    assert [parameter.name for parameter in DONE.parameters] == ["causes"]
    told = application.tickets.declare(())
    assert reply_of(application, "done", {"causes": ""}) == told


def test_declaration_has_a_parameter_for_requested_changes():
    application = Orders()
    full, ticket = (
        application.config_type.parse({"briefing": briefing}) for briefing in ("full", "ticket")
    )
    assert [tool.name for tool in tools_of(application, full)] == ["reply"]
    tool = tools_of(application, ticket)[-1]
    assert tool is DONE_OR_REFUSED
    assert (tool.name, [parameter.name for parameter in tool.parameters]) == (
        "done", ["causes", "refused"],
    )  # fmt: skip
    values = {"causes": "v1: closed", "refused": "change 2: rust\n"}
    assert reply_of(application, "done", values) == "done v1; 2: rust"
    assert reply_of(application, "done", {"causes": "v1: closed"}) == "done v1"


@pytest.mark.parametrize("text", ["", "a", "```", "x ````` y", "```\n````"])
def test_text_cannot_end_its_markdown_code_block(text):
    first, *inside, last = fence(text, "sh").split("\n")
    assert "\n".join(inside) == text
    assert first == last + "sh"
    assert last not in text
