"""The seccomp filter of confined commands, run by a BPF interpreter, and the limits of folders."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import seccomp
from seccomp import ALLOW, COLUMN, MACHINES, decide, refused

from netarena.sandbox import confinement, protection, shell
from netarena.sandbox.scratch import Keep

TABLES = {
    **confinement.REFUSED,
    **confinement.PRETENDED,
    **confinement.SIGNALS,
    **{name: guard.numbers for name, guard in confinement.GUARDED.items()},
    **{name: guard.numbers for name, guard in confinement.GUARDED_SIGNALS.items()},
}


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "machine", lambda: request.param)
    confinement._filter.cache_clear()
    yield request.param
    confinement._filter.cache_clear()


def call(machine: str, name: str, *arguments: int, signals: bool = False) -> int:
    number = TABLES[name][COLUMN[machine]]
    assert number is not None
    return decide(confinement._filter(signals=signals), machine, number, *arguments)


def test_system_call_tables_agree_with_the_kernel_headers(machine: str) -> None:
    seccomp.check_numbers(
        machine, {name: number[COLUMN[machine]] for name, number in TABLES.items()}
    )


def test_calls_that_affect_other_processes_of_the_same_user_are_refused(machine: str) -> None:
    program = confinement._filter(signals=False)
    for numbers in (*shell.REFUSED.values(), *confinement.REFUSED.values()):
        if (number := numbers[COLUMN[machine]]) is not None:
            assert decide(program, machine, number) == refused()
    for numbers in confinement.PRETENDED.values():
        if (number := numbers[COLUMN[machine]]) is not None:
            assert decide(program, machine, number) == refused(0)
    assert call(machine, "prlimit64", 0, 7) == ALLOW
    assert call(machine, "prlimit64", 1, 7) == refused()


def test_only_tcp_sockets_are_allowed(machine: str) -> None:
    allowed = {
        (family, kind & 0xF, protocol)
        for family in range(45)
        for kind in [*range(8), 1 | 0x800, 1 | 0x80000, 1 | 0x80800, 2 | 0x800, 1 | 0x100]
        for protocol in (0, 1, 6, 17, 132, 262)
        if call(machine, "socket", family, kind, protocol) == ALLOW
    }
    assert allowed == {(family, 1, protocol) for family in (2, 10) for protocol in (0, 6)}


@pytest.mark.parametrize(("name", "place"), [("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)])
def test_sending_with_tcp_fast_open_is_refused(machine: str, name: str, place: int) -> None:
    assert call(machine, name, *[0] * place, 0x4000) == ALLOW
    assert call(machine, name, *[0] * place, 0x20004000) == refused()


def test_signals_are_refused_if_landlock_does_not_scope_them(machine: str) -> None:
    for name in confinement.SIGNALS:
        assert call(machine, name, 1, 9) == ALLOW
        assert call(machine, name, 1, 9, signals=True) == refused()
    for number in range(1, 65):
        wanted = ALLOW if number == 23 else refused()  # SIGURG, for Go
        assert call(machine, "tgkill", 1, 1, number, signals=True) == wanted
    commands = {
        command
        for command in range(40)
        if call(machine, "fcntl", 0, command, signals=True) != ALLOW
    }
    assert commands == {8, 10, 15}
    assert call(machine, "ioctl", 0, 0x8901, signals=True) == refused()
    assert call(machine, "ioctl", 0, 0x8903, signals=True) == ALLOW


def test_folder_above_its_size_count_or_depth_limit_is_overfull(tmp_path: Path) -> None:
    def look() -> str:
        return confinement._overfull(tmp_path, 1 << 20, 50)

    (tmp_path / "a").write_bytes(bytes(900_000))
    (tmp_path / "out").symlink_to("/usr")
    assert look() == ""
    (tmp_path / "b").write_bytes(bytes(300_000))
    assert look() == "it wrote more than 1 MiB"
    (tmp_path / "b").unlink()
    for number in range(60):
        (tmp_path / f"f{number}").touch()
    assert look() == "it made more than 50 files"
    for number in range(60):
        (tmp_path / f"f{number}").unlink()
    (tmp_path / "/".join("d" * 70)).mkdir(parents=True)
    assert confinement._overfull(tmp_path, 1 << 20, 500) == "it made folders too deep"


def test_folder_too_deep_for_python_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    confinement.subprocess.run(
        ["perl", "-e", "chdir shift; for (1..3000) { mkdir 'd'; chdir 'd' }", str(folder)],
        check=True,
    )
    confinement._remove(folder)
    assert not folder.exists()
    confinement._remove(folder)


def test_files_kept_for_the_next_command_are_limited_in_size_and_number(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "sub").mkdir(parents=True)
    target.mkdir()
    for number in range(9):
        (source / "sub" / str(number)).write_bytes(bytes(100))
    (source / "big").write_bytes(bytes(500))
    (source / "link").symlink_to("/etc/passwd")
    keep = Keep(most_bytes=450, most_files=3)
    assert list(keep.collect(source)) == ["sub/0", "sub/1", "sub/2"]
    keep = Keep(most_bytes=450)
    keep.files = keep.collect(source)
    assert list(keep.files) == ["sub/0", "sub/1", "sub/2", "sub/3"]
    again = Keep.unpack(keep.pack())
    assert again == keep
    again.fill(target)
    assert again.collect(target) == keep.files


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("cat > /tmp/x.yaml", "cat > SCRATCH/x.yaml"),
        ("cd /tmp; ls", "cd SCRATCH; ls"),
        ("f='/tmp'", "f='SCRATCH'"),
        ("ls /var/tmp /tmpfs a/tmp x-/tmp", "ls /var/tmp /tmpfs a/tmp x-/tmp"),
    ],
)
def test_tmp_paths_in_commands_are_rewritten_to_the_scratch_directory(
    text: str, written: str
) -> None:
    assert confinement._HABIT.sub("SCRATCH", text) == written


def test_missing_landlock_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protection, "landlock_version", lambda: 0)
    assert "no landlock" in confinement.lacking()


@pytest.mark.parametrize(
    ("version", "user", "words"),
    [
        (1, 0, "to any address"),
        (4, 0, "port number at any address"),
        (4, 1000, "cannot send signals"),
        (6, 1000, "the service's user"),
    ],
)
def test_partial_landlock_support_is_reported_with_its_limits(
    version: int, user: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protection, "landlock_version", lambda: version)
    monkeypatch.setattr(confinement.os, "geteuid", lambda: user)
    said = confinement.reduced()
    assert words in said
    assert ("signals" in said) == (user > 0 and version < 6)
