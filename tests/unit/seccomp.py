"""An interpreter for seccomp filters (classic BPF), as defined in <linux/filter.h>."""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

ALLOW, KILL = 0x7FFF0000, 0x80000000
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": 0, "aarch64": 1}
MACHINES = sorted(ARCHITECTURE)
_HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
_NAMED_OTHERWISE = {
    "aarch64": {"newfstatat": "fstatat"},
}
_MAYBE_NEWER = {
    "clone3",
    "faccessat2",
    "fchmodat2",
    "file_setattr",
    "memfd_secret",
    "mount_setattr",
    "openat2",
    "process_mrelease",
    "removexattrat",
    "setxattrat",
}


def refused(number: int = errno.EPERM) -> int:
    return 0x00050000 | number


def decide(
    program: bytes, machine: str, number: int, *arguments: int, architecture: int | None = None
) -> int:
    """Run a filter on one system call, and return the filter's result."""
    padded = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("=IIQ6Q", number, architecture or ARCHITECTURE[machine], 0, *padded)
    at, accumulator = 0, 0
    for _ in range(len(program)):  # jumps go forward only
        code, then, otherwise, value = struct.unpack_from("=HBBI", program, at * 8)
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x06:
            return int(value)
        else:
            holds = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x45: bool(accumulator & value),
            }[code]
            at += then if holds else otherwise
    raise AssertionError("the filter does not end")


def header_numbers(machine: str) -> dict[str, int]:
    path = _HEADERS[machine]
    if not path.exists():
        pytest.skip(f"needs the kernel's headers: there is no {path}")
    found = re.finditer(r"#define __NR(?:3264)?_(\w+)\s+(\d+)$", path.read_text(), re.MULTILINE)
    return {match[1]: int(match[2]) for match in found}


def check_numbers(machine: str, table: Mapping[str, int | None]) -> None:
    """Check that the table's numbers equal those of the kernel's headers."""
    known = header_numbers(machine)
    for name, number in table.items():
        header_name = _NAMED_OTHERWISE.get(machine, {}).get(name, name)
        if name in _MAYBE_NEWER and header_name not in known:
            continue  # newer than these headers
        assert known.get(header_name) == number, name
