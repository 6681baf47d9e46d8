"""The shell sandbox without its processes: seccomp filter, text cleaning, failing bubblewrap."""

from __future__ import annotations

import os
import platform
import re
import signal
from pathlib import Path

import pytest
import seccomp
from hypothesis import given
from hypothesis import strategies as st
from seccomp import ALLOW, ARCHITECTURE, COLUMN, KILL, MACHINES, decide, refused

from netarena.errors import EnvironmentFailed
from netarena.sandbox import shell
from netarena.sandbox.shell import CommandResult, ShellLimits, plain


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "machine", lambda: request.param)
    shell._filter.cache_clear()
    yield request.param
    shell._filter.cache_clear()


def test_system_call_tables_agree_with_the_kernel_headers(machine: str) -> None:
    table = {
        **shell.REFUSED,
        **shell.PRETENDED,
        **{name: guard.numbers for name, guard in shell.GUARDED.items()},
    }
    seccomp.check_numbers(
        machine, {name: number[COLUMN[machine]] for name, number in table.items()}
    )


def test_filter_refuses_listed_calls_and_allows_all_others(machine: str) -> None:
    program = shell._filter()
    named = {number[COLUMN[machine]] for number in shell.REFUSED.values()}
    guarded = {guard.numbers[COLUMN[machine]] for guard in shell.GUARDED.values()}
    pretended = {number[COLUMN[machine]] for number in shell.PRETENDED.values()}
    for number in range(600):
        if number in named:
            assert decide(program, machine, number) == refused(), number
        elif number == 435:  # clone3: the C library falls back to clone
            assert decide(program, machine, number) == refused(38)
        elif number in pretended:  # does nothing and reports success
            assert decide(program, machine, number) == refused(0)
        elif number not in guarded:
            assert decide(program, machine, number) == ALLOW, number
    for other in set(ARCHITECTURE.values()) - {ARCHITECTURE[machine]}:
        assert decide(program, machine, 0, architecture=other) == KILL


@given(bit=st.integers(0, 31), more=st.integers(0, 0xFF))
def test_clone_is_allowed_for_processes_and_refused_for_namespaces(bit: int, more: int) -> None:
    program = shell._filter()
    clone = shell.GUARDED["clone"].numbers[COLUMN[platform.machine()]]
    # mounts, cgroup, uts, ipc, user, pid, net
    apart = bit == 17 or bit in range(25, 31)
    assert clone is not None
    got = decide(program, platform.machine(), clone, 1 << bit | more)
    assert got == (refused() if apart else ALLOW)


def test_only_network_and_unix_sockets_are_allowed() -> None:
    number = shell.GUARDED["socket"].numbers[COLUMN[platform.machine()]]
    assert number is not None
    allowed = {
        family
        for family in range(50)
        if decide(shell._filter(), platform.machine(), number, family) == ALLOW
    }
    assert allowed == {1, 2, 10, 16, 17}


def test_netlink_sockets_for_ipsec_policies_are_refused() -> None:
    number = shell.GUARDED["socket"].numbers[COLUMN[platform.machine()]]
    assert number is not None
    refused_protocols = {
        (family, kind, protocol)
        for family in (2, 16)
        for kind in (2, 3, 0x80003)
        for protocol in range(50)
        if decide(shell._filter(), platform.machine(), number, family, kind, protocol) != ALLOW
    }
    assert refused_protocols == {(16, kind, 6) for kind in (2, 3, 0x80003)}


def test_socket_options_that_escape_memory_accounting_or_logging_are_refused() -> None:
    number = shell.GUARDED["setsockopt"].numbers[COLUMN[platform.machine()]]
    assert number is not None
    refused_options = {
        (level, option)
        for level in (0, 1, 6, 41, 263)
        for option in range(200)
        if decide(shell._filter(), platform.machine(), number, 9, level, option) != ALLOW
    }
    memory = {(263, 5), (263, 13), (1, 32), (1, 33)}
    assert refused_options == memory | {(0, 64), (41, 64), (0, 96), (0, 128)}


@given(st.binary(max_size=300))
def test_plain_text_of_any_bytes_is_printable_utf8(written: bytes) -> None:
    text = plain(written)
    assert all(c.isprintable() or c in "\n\t" for c in text)
    text.encode("utf-8")


@given(st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=100))
def test_plain_text_leaves_printable_text_unchanged(text: str) -> None:
    assert plain(text.encode()) == text


def test_plain_text_turns_line_ends_into_single_newlines() -> None:
    assert plain(b"a\r\nb\rc\r\r\nd") == "a\nb\nc\nd"


def _kept(written: bytes, most: int, chunk: int = 7) -> str:
    kept = shell.Kept(most)
    for start in range(0, len(written), chunk):
        kept.add(written[start : start + chunk])
    assert kept.total == len(written)
    return kept.text()


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(2, 60))
def test_long_line_keeps_its_beginning_and_end(chunks: list[bytes], most: int) -> None:
    chunks = [chunk.translate(bytes(97 + value % 26 for value in range(256))) for chunk in chunks]
    kept = shell.Kept(most)
    for chunk in chunks:
        kept.add(chunk)
    whole, half = b"".join(chunks).decode(), most // 2
    assert kept.total == len(whole)
    if len(whole) <= 2 * half:
        assert kept.text() == whole
    else:
        note = f"[… {len(whole) - 2 * half} bytes left out …]"
        assert kept.text() == f"{whole[:half]}{note}{whole[-half:]}"


@given(
    st.lists(st.text("ab", max_size=60), min_size=1, max_size=60),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(2, 200),
    st.integers(1, 50),
)
def test_long_output_accounts_for_each_line(
    lines: list[str], end: str, most: int, chunk: int
) -> None:
    text = _kept(end.join(lines).encode(), most, chunk)
    notes = re.findall(r"^\[… (\d+) lines? left out …\]$", text, re.MULTILINE)
    left_out = sum(map(int, notes))
    shown = [line for line in text.split("\n") if not line.startswith("[… ") or "bytes" in line]
    assert len(shown) + left_out == len(lines)


def test_long_output_is_cut_at_line_ends() -> None:
    text = _kept(b"".join(b"line %03d\n" % number for number in range(500)), 100)
    head = [f"line {number:03}" for number in range(5)]
    tail = [f"line {number:03}" for number in range(495, 500)]
    assert text.splitlines() == [*head, "[… 490 lines left out …]", *tail]


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (CommandResult("done\n", 0), "done\n"),
        (CommandResult("", 0), ""),
        (CommandResult("no", 2), "no\n[exit status 2]\n"),
        (
            CommandResult("", None, stopped="it ran for 1 s", timed_out=True),
            "[stopped: it ran for 1 s]\n",
        ),
    ],
)
def test_result_text_contains_the_exit_status_or_the_reason_for_stopping(
    result: CommandResult, told: str
) -> None:
    assert result.told == told


@pytest.mark.parametrize("command", ["a\0b", "x" * 200_000])
def test_command_too_long_for_an_argument_is_reported(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _put_bubblewrap(tmp_path, monkeypatch, "exit 1")
    result = shell.run(command)
    assert (result.exit, result.timed_out) == (None, False)
    assert "too long" in result.stopped


def test_missing_bubblewrap_is_an_environment_failure_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFailed, match="apt-get install bubblewrap") as caught:
        shell.run("true")
    assert caught.value.proven_ours


def test_machine_without_a_seccomp_filter_is_an_environment_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _put_bubblewrap(tmp_path, monkeypatch, "exit 1")
    monkeypatch.setattr(platform, "machine", lambda: "abacus")
    shell._filter.cache_clear()
    with pytest.raises(EnvironmentFailed, match="no seccomp filter for abacus"):
        shell.run("true")


def _put_bubblewrap(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Install a fake bubblewrap that runs ``script``: $info and $gate are its descriptors."""
    program = folder / "bwrap"
    program.write_text(
        "#!/bin/bash\n"
        'while [ "$1" != -- ]; do case $1 in --info-fd) info=$2;; --block-fd) gate=$2;; esac; '
        f"shift; done; shift\n{script}\n"
    )
    program.chmod(0o755)
    # the user that commands run as cannot enter this folder
    monkeypatch.setattr(shell, "_harmless_user", dict)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_sandbox_that_cannot_be_created_is_an_environment_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _put_bubblewrap(tmp_path, monkeypatch, "echo no rights; exit 1")
    with pytest.raises(
        EnvironmentFailed, match="the sandbox could not be started: no rights"
    ) as caught:
        shell.run("true")
    assert caught.value.proven_ours


def test_sandbox_that_breaks_before_the_command_is_an_environment_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = 'echo "{\\"child-pid\\": $$}" >&$info; echo broken; exit 1'
    _put_bubblewrap(tmp_path, monkeypatch, said)
    with pytest.raises(EnvironmentFailed, match="the sandbox could not be started: broken"):
        shell.run("true")


def test_sandbox_that_does_not_start_is_killed_and_counts_as_an_environment_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _put_bubblewrap(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    monkeypatch.setattr(shell, "_START_S", 0.2)
    with pytest.raises(EnvironmentFailed, match="did not start"):
        shell.run("true")
    if (tmp_path / "pid").exists():  # otherwise it was killed before it wrote its PID
        assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_bubblewrap_that_cannot_be_executed_is_an_environment_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bwrap").write_bytes(b"\x7fELF nothing")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(EnvironmentFailed, match="the sandbox could not be started"):
        shell.run("true")


def test_namespace_that_cannot_be_entered_is_an_environment_failure() -> None:
    with (
        Path("/dev/null").open() as file,
        pytest.raises(EnvironmentFailed, match="cannot enter a network namespace"),
        shell.entered(file.fileno()),
    ):
        pytest.fail("it was entered")


def test_limits_of_a_command_never_exceed_the_limits_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (5, 7))
    line = shell._limited(ShellLimits(cpu_s=1.2, processes=64))
    assert "--cpu=4:4" in line
    assert "--nproc=7:7" in line
    assert line[-3:] == ["timeout", "--signal=KILL", "17"]


def test_expired_clock_sends_interrupt_and_terminate_before_kill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hand = iter([100.0, 114.9, 115.0, 115.4, 115.5, 115.9, 116.0])
    monkeypatch.setattr(shell.time, "monotonic", lambda: next(hand))
    sent: list[int] = []
    clock = shell.Clock(15.0, sent.append)
    told = [(clock.runs_out(), clock.over, len(sent)) for _ in range(6)]
    assert sent == [signal.SIGINT, signal.SIGTERM]
    words = "it ran for 15 s"
    assert told == [
        (False, "", 0),
        (False, words, 1),
        (False, words, 1),
        (False, words, 2),
        (False, words, 2),
        (True, words, 2),
    ]
    # ping -c 2 to a silent target takes a second, and waits ten more for the last reply
    assert ShellLimits().wall_s > 11


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo LD_PRELOAD=/usr/lib/x.so; echo _STDBUF_O=L; echo PATH=/bin", True),
        ("echo LD_PRELOAD=/opt/x.so; echo _STDBUF_O=L", False),  # commands cannot read /opt
        ("exit 125", False),
        ("echo PATH=/bin", False),
    ],
)
def test_line_buffering_is_used_only_if_stdbuf_works_on_the_machine(
    script: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stdbuf").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "stdbuf").chmod(0o755)
    monkeypatch.setattr(
        shell, "SHELL_ENVIRONMENT", {**shell.SHELL_ENVIRONMENT, "PATH": f"{tmp_path}:/bin"}
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    wanted = {"LD_PRELOAD": "/usr/lib/x.so", "_STDBUF_O": "L"} if found else {}
    assert shell._line_buffering.__wrapped__() == wanted


def test_sandbox_started_by_root_runs_as_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shell.protection, "own_user_possible", lambda _: True)
    assert shell._harmless_user()["user"] >= 60_000
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert shell._harmless_user() == {}


@pytest.mark.parametrize(
    ("kind", "told"), [("File", ""), ("Anon", "64 MiB of memory"), ("Shmem", "64 MiB of memory")]
)
def test_file_backed_memory_does_not_count_towards_the_memory_limit(
    tmp_path: Path, kind: str, told: str
) -> None:
    processes = []
    for number in range(40):  # many small programs that share the same libraries
        folder = tmp_path / str(number)
        folder.mkdir()
        processes.append(folder)
        (folder / "stat").write_text("7 (a b) " + "0 " * 21 + f"{2 << 20 >> 12} 0\n")
        (folder / "status").write_text(f"VmRSS:\t 2048 kB\nRss{kind}:\t 2048 kB\n")

    assert told in shell.overuse(iter(processes), ShellLimits(memory_bytes=64 << 20))
    assert shell.overuse(processes[:20], ShellLimits(memory_bytes=64 << 20)) == ""
