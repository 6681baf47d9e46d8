"""tests/conftest.py: a missing requirement is a visible skip, or a failure if it is demanded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
INI = """
[tool.pytest]
addopts = ["-rs"]
markers = ["requires(name): as in the project"]
"""
# "shared" is missing, because no folder ../shared exists next to this copy of conftest.py
BODY = """
import pytest

@pytest.mark.requires("shared")
def test_marked():
    pass

def test_by_fixture(requirement):
    requirement("shared")

def test_data(shared_data):
    pass

def test_other():
    pass
"""


def run(
    folder: Path, demanded: str, body: str = BODY, *arguments: str
) -> subprocess.CompletedProcess[str]:
    tests = folder / "project" / "tests"
    tests.mkdir(parents=True)
    (tests.parent / "pyproject.toml").write_text(INI)
    (tests / "conftest.py").write_text(CONFTEST.read_text())
    (tests / "test_it.py").write_text(body)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore",
            "tests",
            *arguments,
        ],
        cwd=tests.parent,
        env={
            **os.environ,
            "NETARENA_REQUIRE": demanded,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # faster, and no plugin is needed
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("demanded", ["", "landlock", "docker, a2a03"])
def test_missing_requirement_skips_the_test_with_its_reason(tmp_path, demanded):
    done = run(tmp_path, demanded)
    assert "1 passed, 3 skipped" in done.stdout
    assert "needs shared: there is no ../shared/data next to the project" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize("demanded", ["shared", "landlock, shared"])
def test_missing_demanded_requirement_fails_the_test(tmp_path, demanded):
    done = run(tmp_path, demanded)
    # a fixture fails in set-up, which pytest counts as an error
    assert "1 failed, 1 passed, 2 errors" in done.stdout
    assert "NETARENA_REQUIRE names shared, but there is no ../shared/data" in done.stdout
    assert done.returncode == 1


def test_misspelt_demand_is_refused(tmp_path):
    done = run(tmp_path, "sharde")
    assert "NETARENA_REQUIRE: 'sharde' is not one of landlock, " in done.stderr
    assert done.returncode == pytest.ExitCode.USAGE_ERROR


def test_misspelt_requirement_fails(tmp_path):
    done = run(tmp_path, "", "def test_it(requirement):\n    requirement('sharde')\n")
    assert "'sharde' is not one of landlock, " in done.stdout
    assert done.returncode == 1


def test_option_every_keeps_every_nth_test_and_all_marked_tests(tmp_path):
    body = "def test_0():\n    pass\ndef test_1():\n    pass\n"
    body += "@pytest.mark.every_python\ndef test_2():\n    pass\n"
    done = run(tmp_path, "", f"import pytest\n{body}", "--every", "3", "-v")
    assert [f"test_{number} PASSED" in done.stdout for number in range(3)] == [True, False, True]


def test_every_nth_test_of_a_module_is_kept(tmp_path):
    body = "".join(f"def test_{number}():\n    pass\n" for number in range(7))
    done = run(tmp_path, "", body, "--every", "3", "-v")
    assert [f"test_{number} PASSED" in done.stdout for number in range(7)] == [
        number % 3 == 0 for number in range(7)
    ]
    assert "3 passed, 4 deselected" in done.stdout
    assert (
        run(tmp_path / "none", "", body, "--every", "0").returncode == pytest.ExitCode.USAGE_ERROR
    )
