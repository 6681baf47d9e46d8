"""The system call filter, run by a BPF interpreter, for both architectures."""

from __future__ import annotations

import errno
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import seccomp
from hypothesis import given
from hypothesis import strategies as st
from seccomp import ALLOW, ARCHITECTURE, COLUMN, KILL, MACHINES, header_numbers, refused

from netarena.sandbox import protection
from tests.thorough import THOROUGH

numbers = st.integers(0, 600)
words = st.integers(0, 2**64 - 1) | st.integers(0, 5000)


compiled = cache(protection.make_filter)


def decide(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    return seccomp.decide(compiled(machine), machine, number, *arguments, architecture=architecture)


@pytest.mark.parametrize("machine", MACHINES)
def test_system_call_tables_agree_with_the_kernel_headers(machine: str) -> None:
    column = COLUMN[machine]
    table = {name: numbers[column] for name, numbers in protection.ALLOWED.items()}
    table |= {name: guard.numbers[column] for name, guard in protection.GUARDED.items()}
    table |= {name: numbers[column] for name, (numbers, _) in protection.REFUSED_AS.items()}
    seccomp.check_numbers(machine, table)


@pytest.mark.parametrize("machine", MACHINES)
def test_unlisted_system_calls_are_refused(machine: str) -> None:
    listed = {*protection.ALLOWED, *protection.GUARDED, *protection.REFUSED_AS, "fstatat"}
    unlisted = {
        name: number for name, number in header_numbers(machine).items() if name not in listed
    }
    assert len(unlisted) > 200
    for name, number in unlisted.items():
        assert decide(machine, number) == refused(), name


@pytest.mark.parametrize("machine", MACHINES)
@THOROUGH
@given(number=numbers, first=words, second=words, third=words)
def test_random_system_calls_are_allowed_only_as_the_tables_say(
    machine: str, number: int, first: int, second: int, third: int
) -> None:
    column = COLUMN[machine]
    allowed = {pair[column] for pair in protection.ALLOWED.values()}
    guarded = {guard.numbers[column]: guard for guard in protection.GUARDED.values()}
    otherwise = {pair[column]: value for pair, value in protection.REFUSED_AS.values()}
    got = decide(machine, number, first, second, third)
    if number in allowed:
        assert got == ALLOW
    elif guard := guarded.get(number):
        word = (first, second, third)[guard.argument]
        low = word & 0xFFFFFFFF  # these calls take 32-bit arguments, except for the pointer
        fits = (
            low in guard.values
            if guard.values
            else not low & guard.forbidden
            if guard.forbidden
            else word == 0
        )
        assert got == (ALLOW if fits else refused())
    else:
        assert got == refused(otherwise.get(number, errno.EPERM))


@pytest.mark.parametrize("machine", MACHINES)
def test_files_can_be_opened_only_for_reading(machine: str) -> None:
    openat = protection.GUARDED["openat"].numbers[COLUMN[machine]]
    assert openat is not None
    for flags in (os.O_RDONLY, os.O_CLOEXEC, os.O_DIRECTORY, os.O_NOFOLLOW | os.O_CLOEXEC):
        assert decide(machine, openat, 0, 0, flags) == ALLOW
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND, 3):
        assert decide(machine, openat, 0, 0, flags) == refused()
        assert decide(machine, openat, 0, 0, flags | os.O_CLOEXEC | 1 << 40) == refused()


@pytest.mark.parametrize("machine", MACHINES)
def test_only_private_futexes_are_allowed(machine: str) -> None:
    futex = protection.GUARDED["futex"].numbers[COLUMN[machine]]
    assert futex is not None
    wait, wake, wait_bitset, clock_realtime, private = 0, 1, 9, 256, 128
    for command in (wait, wake, wait_bitset, wait_bitset | clock_realtime):
        assert decide(machine, futex, 1, command | private) == ALLOW
        assert decide(machine, futex, 1, command) == refused()
    for inheriting in (6, 7, 8, 11, 12, 13):
        assert decide(machine, futex, 1, inheriting | private) == refused()


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("call", ["clock_gettime", "clock_getres", "clock_nanosleep"])
def test_only_system_clocks_and_own_clocks_can_be_read(machine: str, call: str) -> None:
    number = protection.GUARDED[call].numbers[COLUMN[machine]]
    assert number is not None
    for clock in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC, time.CLOCK_PROCESS_CPUTIME_ID, -6):
        assert decide(machine, number, clock & 2**64 - 1) == ALLOW
    for process in (1, 1234, 2**22):
        for kind in (2, 6):  # clock of the process, of a thread
            assert decide(machine, number, (~process << 3 | kind) & 2**64 - 1) == refused()
    assert decide(machine, number, (~5 << 3 | 3) & 2**64 - 1) == refused()  # clock of a descriptor


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("architecture", [0x40000003, 0x40000028, 0xC00000B7, 0xC000003E, 7])
def test_system_call_of_another_architecture_kills_the_process(
    machine: str, architecture: int
) -> None:
    expected = ALLOW if architecture == ARCHITECTURE[machine] else KILL
    getpid = protection.ALLOWED["getpid"][COLUMN[machine]]
    assert getpid is not None
    assert decide(machine, getpid, architecture=architecture) == expected


@THOROUGH
@given(st.integers(0x40000000, 0xFFFFFFFF))
def test_x32_system_call_kills_the_process(number: int) -> None:
    assert decide("x86_64", number) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_filter_program_fits_the_kernels_length_limit(machine: str) -> None:
    assert len(protection.make_filter(machine)) % 8 == 0
    assert len(protection.make_filter(machine)) // 8 < 4096


def test_machine_without_a_filter_is_reported_with_supported_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    (seccomp,) = [one for one in protection.examine([]) if one.name == "seccomp"]
    assert not seccomp.ok
    assert seccomp.essential
    assert "riscv64" in seccomp.detail
    assert "aarch64" in seccomp.remedy


@pytest.mark.parametrize(("lacking", "name"), [("landlock_version", "landlock")])
def test_kernel_without_landlock_is_reported_with_a_remedy(
    lacking: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protection, lacking, lambda: 0)
    (found,) = [one for one in protection.examine([]) if one.name == name]
    assert (found.ok, found.essential) == (False, True)
    assert "5.13" in found.remedy


def own_user(
    monkeypatch: pytest.MonkeyPatch, path: Path, *, root: bool, landlock: bool
) -> protection.Protection:
    """Return the "own user" finding for ``path`` with the given user and Landlock."""
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr(protection, "own_user_possible", lambda _: root)
    monkeypatch.setattr(protection, "may_keep_reading", lambda: root)
    monkeypatch.setattr(protection, "landlock_version", lambda: 6 if landlock else 0)
    (found,) = [one for one in protection.examine([str(path)]) if one.name == "own user"]
    return found


@pytest.fixture
def public() -> Iterator[Path]:
    """Yield a folder that every user may enter; the parents of ``tmp_path`` are closed."""
    with tempfile.TemporaryDirectory(prefix="netarena-public-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_service_running_as_root_uses_separate_users_or_reports_a_failure(
    public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = public / "closed"
    closed.mkdir(mode=0o700)
    assert own_user(monkeypatch, public, root=True, landlock=False).ok
    assert own_user(monkeypatch, closed, root=True, landlock=True).ok
    failed = own_user(monkeypatch, closed, root=True, landlock=False)
    assert (failed.ok, failed.essential) == (False, True)
    assert "as root" in failed.detail
    assert "ordinary user" in failed.remedy
    ordinary = own_user(monkeypatch, closed, root=False, landlock=True)
    assert (ordinary.ok, ordinary.essential) == (False, False)


def test_folder_closed_to_other_users_is_not_readable_by_all(public: Path) -> None:
    library = public / "closed" / "library"
    library.mkdir(parents=True)
    for place in (library.parent, library):  # independent of the umask
        place.chmod(0o755)
    assert protection.readable_by_all(str(library))
    library.parent.chmod(0o700)
    assert not protection.readable_by_all(str(library))
    assert not protection.readable_by_all(str(public / "absent"))
