"""Scripts of the images: the entry point and the health check."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILES = [*ROOT.glob("Dockerfile.*"), ROOT / "a2a_purple" / "Dockerfile"]


def run(
    commands: Path, script: Path, *arguments: object, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a script with the commands of a folder first in PATH."""
    return subprocess.run(
        ["sh", script, *map(str, arguments)],
        env={"PATH": f"{commands}:{os.environ['PATH']}", **environ},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def stand_in(folder: Path, **bodies: str) -> None:
    for name, body in bodies.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("served", "environ", "asked"),
    [
        ("netarena serve malt", {}, "localhost:9009"),
        ("serve-image malt --port 9999", {}, "localhost:9999"),
        ("docker-init -- netarena serve route --host=:: --port=80 --out x", {}, "localhost:80"),
        ("netarena serve k8s --port 1 --port 2 --host 10.0.0.1", {}, "10.0.0.1:2"),
        ("netarena-purple --model x/y --host fd00::1", {}, "[fd00::1]:9009"),
        ("netarena openenv k8s", {}, "localhost:8000"),
        ("netarena openenv malt --port=9999", {}, "localhost:9999"),
        ("netarena serve malt", {"NETARENA_HOST": "127.0.0.2"}, "127.0.0.2:9009"),
        ("netarena serve malt", {"NETARENA_HOST": "0.0.0.0"}, "localhost:9009"),
    ],
)
def test_health_check_requests_the_served_address(tmp_path, served, environ, asked):
    stand_in(tmp_path, curl='echo "$@"; exit 7')
    line = tmp_path / "cmdline"
    line.write_text(served.replace(" ", "\0") + "\0")
    done = run(tmp_path, ROOT / "scripts" / "image-health", line, **environ)
    page = "health" if "openenv" in served else ".well-known/agent-card.json"
    assert done.stdout.split()[-1] == f"http://{asked}/{page}"
    # the exit status is that of curl
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda path: path.name)
def test_every_image_has_the_health_check_and_all_files_it_copies(file):
    text = file.read_text()
    assert 'CMD ["image-health"]\n' in text
    (copied,) = re.findall(r"COPY --chmod=755 (.*) /usr/local/bin/\n", text)
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    for name in copied.split():
        assert f"!{name}" in sent
        assert os.access(ROOT / name, os.X_OK)


#: replacement of setpriv that removes its options
DROPS = """\
while case $1 in -*) ;; *) false ;; esac; do
  case $1 in --re*|--inh*|--bound*) shift ;; esac
  shift
done
AS=netarena exec "$@"
"""
#: replacement of sh that treats a folder as writable if its group may write to it
MAY_WRITE = """\
case $2 in
  test*) test "$(stat -c %A "$4" | cut -c 6)" = w ;;
  *) exec /bin/sh "$@" ;;
esac
"""


class Started:
    """Runs the entry point as in a container whose mounted folder has the given rights."""

    def __init__(self, folder: Path, *, user: str = "0", mode: int = 0o755, setpriv: str = ""):
        commands = folder / "bin"
        self.runs = folder / "runs"
        commands.mkdir()
        self.runs.mkdir()
        self.runs.chmod(mode)
        # a variable names the service's user, who may write where the group may write
        stand_in(
            commands,
            id=f"echo {user}",
            setpriv=setpriv or DROPS,
            sh=MAY_WRITE,
            chgrp=f'echo "chgrp $@" >>{folder}/calls',
            netarena='echo "${AS-root} $HOME: netarena $*"',
        )
        script = folder / "serve-image"
        text = (ROOT / "scripts" / "serve-image").read_text()
        assert text.count("/netarena-runs\n") == 1
        script.write_text(text.replace("/netarena-runs\n", f"{self.runs}\n"))
        self.done = run(commands, script, "malt", "--port", "9999", HOME="/home")
        calls = folder / "calls"
        self.calls = calls.read_text().splitlines() if calls.exists() else []


def test_directory_created_by_docker_is_writable_without_root(tmp_path):
    started = Started(tmp_path)
    assert started.done.stdout == "netarena /nonexistent: netarena serve malt --port 9999\n"
    assert started.calls == [f"chgrp netarena {started.runs}"]
    assert started.runs.stat().st_mode & 0o777 == 0o775


def test_writable_directory_is_left_unchanged(tmp_path):
    started = Started(tmp_path, mode=0o770)
    assert started.done.stdout.startswith("netarena /nonexistent: netarena serve malt")
    assert started.calls == []


def test_entry_point_without_root_only_starts_the_service(tmp_path):
    started = Started(tmp_path, user="1000")
    assert started.done.stdout == "root /home: netarena serve malt --port 9999\n"
    assert started.calls == []


def test_root_that_cannot_drop_privileges_gets_a_remedy(tmp_path):
    started = Started(tmp_path, setpriv="exit 1")
    assert (started.done.returncode, started.done.stdout) == (2, "")
    assert started.done.stderr.endswith("docker run --user 9009\n")
