"""The wheel: its contents, and each extra alone in a fresh environment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# pinned together with all applications; test_training_framework.py and test_ray.py test them
WITH_APPLICATIONS = {"gymnasium", "openenv", "ray", "trl", "verifiers"}
EXTRAS = sorted(set(PROJECT["project"]["optional-dependencies"]) - WITH_APPLICATIONS)
#: top-level packages of the wheel, and the folders of their sources
PACKAGES = {
    Path(package).name: ROOT / package
    for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
}

#: the parts of the stock client's result file that a leaderboard reads
SAMPLE = {
    "participants": {"malt_operator": "somebody"},
    "results": [
        {"Result-Correctness": "Pass", "Result-Safety": "Pass", "Label": "capacity planning"},
        {"avg_correctness": 1.0, "avg_safety": 1.0, "avg_latency_s": 0.5},
    ],
}

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, f"{sys.argv[1]}."):
    importlib.import_module(module.name)
"""

#: program that runs commands in one process, to import only once, and prints their statuses and
#: outputs
SEVERAL = """
import contextlib, io, json, sys
from netarena.cli import main
told = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments)
    told.append((status, out.getvalue(), err.getvalue()))
json.dump(told, sys.stdout)
"""

pytestmark = pytest.mark.slow


def call(*command: str | Path, cwd: Path | None = None, status: int = 0) -> str:
    """Run a command that must exit with ``status``; return its standard output."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + (done.stderr if status else "")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the wheel from a copy of the tree, without the files of earlier builds."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("netarena", "netarena_verifiers", "a2a_purple", "apps"):
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", ".*")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    call(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", folder, source),
    )
    (built,) = folder.glob("netarena-*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """Return a function that installs the wheel and exactly one extra, and returns the commands.

    All extras share one environment: uv removes the packages that an extra does not name. The
    remaining packages keep their compiled modules, so an extra costs seconds instead of minutes.
    """
    uv = shutil.which("uv", path=Path(sys.executable).parent) or shutil.which("uv")
    assert uv is not None, "uv is part of the dev requirements"
    folder = tmp_path_factory.mktemp("extras") / "venv"
    call(uv, "venv", "--quiet", "--python", sys.executable, folder)
    python = folder / "bin" / "python"

    def make(extra: str) -> Path:
        change = (uv, "pip", "sync", "--quiet", "--system-certs", "--python", python)
        call(*change, "--require-hashes", ROOT / "requirements" / f"{extra}.txt")
        call(uv, "pip", "install", "--quiet", "--python", python, "--no-deps", wheel)
        call(uv, "pip", "check", "--quiet", "--python", python)
        return folder / "bin"

    return make


def test_wheel_contains_every_source_file_and_the_licence(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for package, source in PACKAGES.items():
        assert f"{package}/py.typed" in names
        files = {
            f"{package}/{path.relative_to(source)}"
            for path in source.rglob("*")
            if path.is_file() and path.suffix != ".pyc" and not path.name.startswith(".")
        }
        assert files <= names, f"not in the wheel: {sorted(files - names)}"
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_licence_text_matches_the_declared_licence():
    assert PROJECT["project"]["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_every_extra_has_pinned_requirements():
    assert {f"{extra}.txt" for extra in EXTRAS} <= {
        path.name for path in (ROOT / "requirements").iterdir()
    }


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_extra_works_without_the_others(environment, tmp_path, extra):
    commands = environment(extra)
    # the installed command is the same with each extra
    if extra == EXTRAS[0]:
        assert "doctor" in call(commands / "netarena", "--help", cwd=tmp_path)
    assert "--strategy" in call(commands / "netarena-purple", "--help", cwd=tmp_path)

    # imports every module of an application, with only the packages of its extra
    for app in {"malt", "route", "k8s"} & ({extra} if extra != "all" else set(EXTRAS)):
        call(commands / "python", "-c", IMPORT_ALL, f"netarena_{app}", cwd=tmp_path)

    sample = tmp_path / "results.json"
    sample.write_text(json.dumps(SAMPLE))
    arguments = [
        ["--help"],
        ["doctor"],
        ["run", "malt", "--json", "--set", "complexity_level=level1"],
        ["view", "nowhere"],
        ["leaderboard", str(sample)],
    ]
    told = json.loads(call(commands / "python", "-c", SEVERAL, json.dumps(arguments), cwd=tmp_path))
    shown, doctor, run, view, board = told
    assert shown[0] == 0, shown
    assert "doctor" in shown[1]
    assert doctor[0] == 0, doctor

    if extra in {"malt", "all"}:
        assert run[0] == 0, run
        assert json.loads(run[1])["results"][-1]["avg_solved_safely"] == 1.0
    else:
        assert_missing(run, 'pip install "netarena[malt]"')

    # litellm installs the packages that pages need
    has_pages = extra in {"view", "purple", "all"}
    assert view[0] == 2
    assert ("nowhere is not a directory" if has_pages else '"netarena[view]"') in view[2]

    if extra in {"leaderboard", "export", "all"}:
        assert board[0] == 0, board
        assert "somebody" in board[1]
    else:
        assert_missing(board, 'pip install "netarena[leaderboard]"')


def assert_missing(told: list[Any], words: str) -> None:
    """Assert that a command ended with status 2 and one line that says what to install."""
    status, out, err = told
    assert (status, len((out + err).splitlines())) == (2, 1), told
    assert words in err
