"""docs/purple-agent.md: its agents run as the page says, and their replies are graded."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from netarena.cli import main
from tests.fake.provider import openai_stub, tool_call

PAGE = Path(__file__).parents[2] / "docs" / "purple-agent.md"
SOLUTION = [f"open v{number}" for number in range(1, 9)]


def blocks() -> dict[str, str]:
    """Return the page's programs by file name."""
    found = re.findall(
        r"<!-- file (\S+?):?(?: [^\n]*)?-->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL
    )
    return dict(found)


def plain_agent() -> str:
    return blocks()["my_agent.py"]


def tool_agent() -> str:
    """Return the plain agent's program with the class of the tool agent."""
    plain, other = plain_agent(), blocks()["my_tool_agent.py"]
    assert plain.count("class MyAgent") == plain.count("\nmodel = ") == 1
    plain = re.sub(r"class MyAgent.*?\n\n\n", lambda _: other + "\n\n", plain, flags=re.DOTALL)
    return re.sub(r"\nmodel = [^\n]*", "", plain)


class Model:
    """Opens one valve after the other; prompts identify the turn of each conversation."""

    def __init__(self, *, tools: bool) -> None:
        self.tools = tools
        self.results: list[str] = []

    def __call__(self, messages):
        last = messages[-1]
        if last["role"] == "tool":
            self.results.append(last["content"])
        elif self.tools:
            return tool_call("network_of", {"address": "10.0.1.7/24"})
        prompt = next(m["content"] for m in reversed(messages) if m["role"] == "user")
        done = len(set(re.findall(r"open v\d", str(prompt))) & set(SOLUTION))
        return SOLUTION[min(done, 7)]


def examine(folder: Path, program: str, capsys, *, tools: bool) -> tuple[dict, Model]:
    (folder / "my_agent.py").write_text(program)
    model = Model(tools=tools)
    with openai_stub(answer=model) as stub, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MODEL_NAME", "m")
        patch.setenv("OPENAI_API_KEY", "k")
        patch.setenv("OPENAI_BASE_URL", stub.url)
        command = f"{sys.executable} my_agent.py --port {{port}}"
        arguments = ["--agent-cmd", command, "--num-queries", "1", "--verbose", "--json"]
        assert main(["run", "toy", *arguments]) == 0
    out, err = capsys.readouterr()
    assert "── the agent: my-agent, http://127.0.0.1:" in err
    return json.loads(out), model


def test_plain_agent_of_the_page_has_thirty_lines():
    lines = [line for line in plain_agent().splitlines() if line.strip()]
    assert len(lines) <= 32


def test_plain_agent_of_the_page_passes_an_assessment(tmp_path, capsys):
    document, _ = examine(tmp_path, plain_agent(), capsys, tools=False)
    outcomes = document["results"][-1]["outcomes"]
    assert outcomes["solved"] == 3, outcomes


def test_agent_with_tools_of_the_page_uses_them_and_passes_an_assessment(tmp_path, capsys):
    document, model = examine(tmp_path, tool_agent(), capsys, tools=True)
    outcomes = document["results"][-1]["outcomes"]
    assert outcomes["solved"] == 3, outcomes
    assert set(model.results) == {"10.0.1.0/24"}
