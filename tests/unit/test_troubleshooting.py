"""docs/troubleshooting.md quotes only messages that the code contains."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from netarena.errors import FailureReason

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
#: the first cell of each row; two backticks enclose text that contains a backtick
ROWS = [text for _, text in re.findall(r"^\| (``|`) ?(.+?) ?\1 \| .+ \|$", PAGE, re.MULTILINE)]


def said() -> set[str]:
    """Return every string of the code, with ``…`` for formatted values."""
    texts = set()
    for folder in ("netarena", "apps", "a2a_purple"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [v.value if isinstance(v, ast.Constant) else "…" for v in node.values]
                    texts.add("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.add(node.value)
    return texts | {(ROOT / "scripts" / "venv").read_text()}


@pytest.fixture(scope="module")
def texts():
    return said()


def ways(text: str) -> list[list[str]]:
    """Return the ways to split a message into string literals of the source code.

    An error message may be one literal, or ``where: words`` from two literals. Formatted
    values at the ends are removed.
    """
    where, colon, words = text.partition(": ")
    apart = [[where, words]] if colon else []
    return [[piece.strip("…") for piece in pieces] for pieces in ([text], *apart)]


@pytest.mark.parametrize("text", ROWS)
def test_each_message_of_the_page_is_in_the_code(text, texts):
    assert any(
        all(any(piece in one for one in texts) for piece in pieces) for pieces in ways(text)
    ), text


def test_message_that_is_missing_in_the_code_is_detected(texts):
    assert not any(
        all(any(piece in one for one in texts) for piece in pieces)
        for pieces in ways("participants: must be at least seventeen, not …")
    )


def test_every_failure_reason_of_an_agent_has_a_row_on_the_page():
    assert {reason.value for reason in FailureReason} <= set(ROWS)
