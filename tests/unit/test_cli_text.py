"""Output in encodings that lack some of the characters."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout

import pytest

import a2a_purple.cli
from netarena.cli import main
from netarena.cli.screen import show_table
from netarena.cli.terminal import json_text, open_streams

ENCODINGS = ("ascii", "latin-1", "cp1252", "koi8-r", "shift_jis", "utf-8")


class Terminal(redirect_stdout):
    """Standard output with a given encoding, and the written text."""

    def __init__(self, encoding: str) -> None:
        self.bytes = io.BytesIO()
        super().__init__(io.TextIOWrapper(self.bytes, encoding=encoding, write_through=True))
        self.encoding = encoding

    @property
    def text(self) -> str:
        return self.bytes.getvalue().decode(self.encoding)


@pytest.fixture(params=ENCODINGS)
def terminal(request) -> Terminal:
    return Terminal(request.param)


@pytest.mark.parametrize("arguments", ["--help", "run --help", "leaderboard --help", "purple"])
def test_help_is_shown_in_any_encoding(arguments, terminal):
    with terminal:
        if arguments == "purple":
            assert a2a_purple.cli.main(["--help"]) == 0
        else:
            assert main(arguments.split()) == 0
    # click writes UTF-8 if the encoding is ASCII
    assert "Show this message and exit." in terminal.bytes.getvalue().decode(errors="replace")


def test_table_is_shown_in_any_encoding(terminal):
    with terminal:
        open_streams()
        show_table(("a", "rate"), [("é – × 漢 \udcff", "1 [0–2]")], title="…")
    assert "2]" in terminal.text


def test_unencodable_signs_are_transliterated_or_escaped():
    with Terminal("ascii") as stream:
        open_streams()
        stream.write("[0–2] × 3 … é \U0001f600 \udcff")
    assert stream.buffer.getvalue() == b"[0-2] x 3 ... \\xe9 \\U0001f600 \\udcff"


def test_printed_json_has_the_same_value_in_any_encoding(terminal):
    value = {"agent": "é – 漢 \U0001f600 …", "sign": "×"}
    with terminal:
        open_streams()
        print(json_text(value))
    assert json.loads(terminal.text) == value


def test_run_and_leaderboard_are_shown_in_latin_1(tmp_path):
    out = str(tmp_path / "out")
    terminal = Terminal("latin-1")
    with terminal:
        assert main(["run", "malt", "--seed", "1", "--agent", "noop", "--out", out]) == 0
        assert main(["leaderboard", f"{out}/results.json"]) == 0
    assert "noop" in terminal.text
