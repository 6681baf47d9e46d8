"""The pinned packages of ``requirements``."""

import re
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PINS = Path(__file__).parents[2] / "requirements" / "dev.txt"


def test_a_package_wanted_with_extras_is_pinned_with_them() -> None:
    """pip takes the newest ``name[extra]`` where ``name`` alone is pinned, and refuses the list."""
    found = re.findall(r"^([^=\s]+)==", PINS.read_text(), re.MULTILINE)
    pins = {canonicalize_name(pin.name): pin.extras for pin in map(Requirement, found)}
    wanted = [
        (need.name, need.extras)
        for package in distributions()
        if canonicalize_name(package.name) in pins
        for need in map(Requirement, package.requires or [])
        if need.extras and (need.marker is None or need.marker.evaluate({"extra": ""}))
    ]
    assert wanted, "no installed package wants another with extras"
    assert [name for name, extras in wanted if not extras <= pins[canonicalize_name(name)]] == []
