"""The pinned packages of ``requirements``."""

import re
import tomllib
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PINS = ROOT / "requirements" / "dev.txt"
#: extras that each need a separate environment
APART = {"gymnasium", "openenv", "ray", "trl", "verifiers"}


@cache
def read_pins(path: Path) -> dict[str, Version]:
    found = re.findall(r"^([^=\s\[]+)(?:\[\S*\])?==([^\s;]+)", path.read_text(), re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in found}


def test_package_required_with_extras_is_pinned_with_these_extras() -> None:
    """pip refuses a list that pins only ``name`` if ``name[extra]`` is required."""
    found = re.findall(r"^([^=\s]+)==", PINS.read_text(), re.MULTILINE)
    pins = {canonicalize_name(pin.name): pin.extras for pin in map(Requirement, found)}
    wanted = [
        (need.name, need.extras)
        for package in distributions()
        if canonicalize_name(package.name) in pins
        for need in map(Requirement, package.requires or [])
        if need.extras and (need.marker is None or need.marker.evaluate({"extra": ""}))
    ]
    assert wanted, "no installed package requires another one with extras"
    assert [name for name, extras in wanted if not extras <= pins[canonicalize_name(name)]] == []


def test_lower_bound_of_a_requirement_is_near_its_pin() -> None:
    """pip before 24 tries all versions down to the lower bound, and takes far too long."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [(line, PINS) for line in project["dependencies"]]
    for name, extra in project["optional-dependencies"].items():
        if name != "all":
            own = PINS.with_stem(name) if name in APART else PINS
            # an extra may contain other extras of this project
            lines += [(line, own) for line in extra if not line.startswith("netarena[")]
    needs = [Requirement(line) for line, _ in lines]
    for need, (_, path) in zip(needs, lines, strict=True):
        pins = read_pins(path)
        bounds = {one.operator: Version(one.version) for one in need.specifier}
        assert bounds.keys() == {">=", "<"}, need
        pin = pins[canonicalize_name(need.name)]
        assert need.specifier.contains(pin, prereleases=True), need
        assert pin.major - bounds[">="].major <= 1 + 4 * (need.name == "setuptools"), need
    # without a direct requirement, installers are slow to find a version that two other packages
    # accept
    assert "python-dateutil" in {need.name for need in needs}
