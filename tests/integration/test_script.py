"""scripts/venv, which scripts/demo and scripts/test use, reports in one line what is missing."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ["scripts/demo", "scripts/test", "scripts/venv", "scripts/lock", ".ci/run"]


@pytest.fixture
def machine(tmp_path):
    """Copy the files that the scripts need to a folder that acts as a machine without Python."""
    for name in ("scripts", "requirements"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("bash", "cat", "cut", "dirname", "rm", "sha256sum"):
        (commands / name).symlink_to(str(shutil.which(name)))
    return tmp_path


def call(machine: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", *command],
        cwd=machine,
        env={**os.environ, "PATH": str(machine / "bin"), "HOME": str(machine)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def add_python(machine: Path, body: str) -> None:
    command = machine / "bin" / "python3"
    command.write_text(f"#!/bin/sh\n{body}\n")
    command.chmod(0o755)


@pytest.mark.parametrize("script", ["demo", "test"])
def test_missing_python_is_reported_with_the_package_to_install(machine, script):
    done = call(machine, f"scripts/{script}")
    assert done.stderr == (
        "scripts/venv: needs Python 3.11 or newer, found none: "
        "apt-get install python3 python3-venv\n"
    )
    assert done.returncode == 1


def test_python_that_is_too_old_is_refused(machine):
    add_python(machine, "exit 1  # as the version check ends there")
    assert "needs Python 3.11 or newer" in call(machine, "scripts/venv", ".venv", "all").stderr


def test_missing_venv_module_is_reported_with_the_package_to_install(machine):
    add_python(machine, 'case "$2" in *ensurepip*) exit 1 ;; esac')
    done = call(machine, "scripts/venv", ".venv", "all")
    assert done.stderr == (
        "scripts/venv: python3 cannot make virtual environments: apt-get install python3-venv\n"
    )
    assert done.returncode == 1


def test_environment_of_another_python_is_recreated(machine):
    """Another Python needs a new environment: the old one may lack packages, such as Harbor."""
    home = machine / ".venv-readers" / "bin"
    home.mkdir(parents=True)
    text = "".join(
        (machine / name).read_text() for name in ("requirements/readers.txt", "scripts/venv")
    )
    digest = hashlib.sha256((text.rstrip("\n") + "\n").encode()).hexdigest()[:16]
    (home.parent / "netarena.stamp").write_text(f"readers {digest}")
    for path, version in (
        (home / "python", "(3, 11)"),
        (machine / "bin" / "python3.13", "(3, 13)"),
    ):
        path.write_text(
            f"#!/bin/sh\ncase \"$*\" in *print*) echo '{version}' ;; *venv*) exit 7 ;; esac"
        )
        path.chmod(0o755)
    command = ("scripts/venv", ".venv-readers", "readers")
    assert call(machine, *command).returncode == 0
    assert call(machine, *command, "python3.13").returncode != 0


def test_unknown_dependency_set_is_refused(machine):
    done = call(machine, "scripts/venv", ".venv", "everything")
    assert done.stderr == (
        "venv: SET: everything is not one of dev, all, a2a03, readers, gymnasium, openenv, ray, "
        "trl, verifiers\n"
    )
    assert done.returncode == 2


@pytest.mark.parametrize("number", ["x", "0", "1.5", ""])
def test_demo_keeps_results_when_it_rejects_a_number(machine, number):
    kept = machine / "netarena-runs" / "demo-malt" / "kept"
    kept.mkdir(parents=True)
    done = call(machine, "scripts/demo", "malt", number)
    assert done.stderr == (
        f"demo: QUERIES PER LABEL: must be a whole number from 1 to 99999, not '{number}'\n"
    )
    assert done.returncode == 2
    assert kept.exists()


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_executable_bash(script):
    path = ROOT / script
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/usr/bin/env bash\n")
    subprocess.run(["bash", "-n", path], check=True, timeout=30)


def test_pinned_requirements_have_hashes_and_name_no_host():
    for path in (ROOT / "requirements").glob("*.txt"):
        text = path.read_text()
        assert "://" not in text, path
        entries = [line for line in text.splitlines() if line and line[0] not in " #"]
        assert entries
        for entry in entries:
            assert "==" in entry, (path, entry)
            assert entry.endswith("\\"), (path, entry)  # its hashes are on the next lines
