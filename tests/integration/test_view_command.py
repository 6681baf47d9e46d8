"""``netarena view`` as a process: it prints its address, serves, and ends on a signal."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from netarena.cli import main
from tests.fake import gallery

VIEW = (sys.executable, "-m", "netarena", "view")


def test_viewer_serves_until_a_signal(tmp_path: Path) -> None:
    folder = gallery.mixed(tmp_path / "run")
    pipe = subprocess.PIPE
    with subprocess.Popen([*VIEW, folder], stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", address)
            with httpx.Client(trust_env=False) as client:
                assert "Search tasks" in client.get(address).text
                assert client.get(re.sub(r"/[\w-]{32}/", "/", address)).status_code == 404
                process.send_signal(signal.SIGINT)
                assert process.wait(20) == 0
            assert process.stderr is not None
            assert process.stderr.read() == "netarena: press Ctrl-C to stop\n"
        finally:
            process.kill()


def test_invalid_view_option_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(*arguments: object) -> str:
        assert main(["view", *map(str, arguments)]) == 2
        return capsys.readouterr().err

    folder = gallery.mixed(tmp_path / "run", 1)
    assert say(tmp_path / "nowhere").startswith("netarena: error: directory: ")
    assert "give a new folder" in say(folder, "--static", tmp_path)
    assert "--episode: requires --static" in say(folder, "--episode", "toy-1-abc-7-0")
    monkeypatch.delitem(sys.modules, "netarena.view.site", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    error = (
        'netarena: error: view: needs jinja2, which is not installed: pip install "netarena[view]"'
    )
    assert say(folder) == f"{error}\n"
