from __future__ import annotations

import pytest

from netarena.task.application import load
from netarena.task.tool import fence, read_causes

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
def test_tool_call_is_parsed_to_its_values(name, values, move):
    application = load(name)
    (tool,) = application.tools.kinds(application.config_type())
    assert [parameter.name for parameter in tool.parameters] == list(values)
    read = application.parse(application.tools.reply(tool.name, values))
    trimmed = {k: v.strip() for k, v in read.items()} if isinstance(read, dict) else read.strip()
    assert trimmed == move


def test_application_without_specific_tools_takes_replies():
    application = load("toy")
    (tool,) = application.tools.kinds(application.config_type())
    assert tool.name == "reply"
    assert application.tools.reply("reply", {"text": "open v1"}) == "open v1"


def test_causes_are_parsed_line_by_line():
    text = "deploy/a: image\r\n  h1 :route \nnothing\n\nx:y:z"
    assert read_causes(text) == [("deploy/a", "image"), ("h1", "route"), ("x:y", "z")]


@pytest.mark.parametrize("text", ["", "a", "```", "x ````` y", "```\n````"])
def test_text_never_closes_its_own_fence(text):
    first, *inside, last = fence(text, "sh").split("\n")
    assert "\n".join(inside) == text
    assert first == last + "sh"
    assert last not in text
