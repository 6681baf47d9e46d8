"""Child processes of the service; small programs stand in for them."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from netarena.errors import EnvironmentFailed
from netarena.sandbox.child import Child, End, Forker, module_path, program, try_out

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]

#: first lines of each of the small programs
SETUP = """
import json, os, socket, sys, time
control = socket.socket(fileno=int(sys.argv[1]))
def say(**message): control.send(json.dumps(message).encode())
"""
#: reports the bytes received on the socket of each started process; ends processes on request
PLAYS = (
    SETUP
    + """
say(ready=sys.stdin.read())
begun = {}
while True:
    data, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
    if not data:
        break
    message = json.loads(data)
    if "begin" in message:
        number = message["begin"]
        begun[number] = socket.socket(fileno=descriptors[0])
        if (words := begun[number].recv(99)) != b"stay":
            say(ended=number, words=words.decode())
    else:
        say(ended=message["kill"], words="killed")
"""
)


def forker(play: str, *, start_s: float = 60.0, feed: bytes = b"fed") -> Forker:
    return Forker(
        "no plays",
        lambda control: [sys.executable, "-S", "-c", play, control],
        start_s=start_s,
        stop_s=60.0,
        feed=lambda: feed,
    )


def open_files() -> list[Path]:
    return sorted(Path("/proc/self/fd").iterdir())


def lives(pid: int | None) -> bool:
    return Path(f"/proc/{pid}").exists()


async def begin(plays: Forker, words: bytes) -> tuple[int, End, socket.socket]:
    begun = await plays.begin()
    begun.connection.send(words)
    return begun.number, begun.end, begun.connection


async def test_forker_can_start_and_kill_and_report_each_process_by_its_number() -> None:
    plays = forker(PLAYS)
    try:
        assert await plays.start() == {"ready": "fed"}
        first, stays, one = await begin(plays, b"stay")
        second, ends, other = await begin(plays, b"hello")
        assert first != second
        assert await ends == {"words": "hello"}
        assert not stays.done()
        plays.kill(second)  # the second process has already ended
        plays.kill(first)
        assert await stays == {"words": "killed"}
        one.close()
        other.close()
    finally:
        await plays.close()


async def test_killed_forker_is_restarted_for_the_next_process() -> None:
    plays = forker(PLAYS)
    try:
        _, lost, one = await begin(plays, b"stay")
        dead = plays.pid
        assert dead is not None
        os.kill(dead, signal.SIGKILL)
        assert await lost is None
        assert plays.pid is None
        _, end, other = await begin(plays, b"again")
        assert await end == {"words": "again"}
        assert plays.pid not in {None, dead}
        one.close()
        other.close()
    finally:
        await plays.close()


async def test_closed_forker_ends_its_processes_and_can_start_again() -> None:
    plays = forker(PLAYS)
    _, lost, one = await begin(plays, b"stay")
    pid = plays.pid
    await plays.close()
    assert await lost is None
    assert not lives(pid)
    await plays.close()
    await plays.start()
    await plays.close()
    one.close()


@pytest.mark.parametrize(
    ("program", "start_s", "why"),
    [
        (SETUP + "say(failed='no right'); time.sleep(999)", 60.0, "no plays: no right"),
        ("raise SystemExit(3)", 60.0, "no plays: its process ended with 3"),
        (SETUP + "time.sleep(999)", 0.01, "no plays: not ready after 0.01 s"),
        (SETUP + "say(ended=7); raise SystemExit(4)", 60.0, "its process ended with 4"),
    ],
)
async def test_forker_that_does_not_become_ready_is_ended_and_the_reason_is_reported(
    program: str, start_s: float, why: str
) -> None:
    plays = forker(program, start_s=start_s)
    with pytest.raises(EnvironmentFailed, match=why) as caught:
        await plays.start()
    assert caught.value.proven_ours
    assert plays.pid is None


async def test_cancelled_forker_start_leaves_no_process() -> None:
    plays = forker(SETUP + "time.sleep(999)")
    starting = asyncio.create_task(plays.start())
    await asyncio.sleep(0)  # lets the task start the process
    pid = plays.pid
    assert pid is not None
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not lives(pid)


async def test_forker_that_reads_its_socket_late_still_starts_400_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control socket buffers only a few hundred packets."""
    plays = forker(PLAYS.replace("begun = {}", "begun = {}; time.sleep(0.5)"))
    try:
        found = [await begin(plays, b"x") for _ in range(400)]
        assert {(await end or {})["words"] for _, end, _ in found} == {"x"}
        for _, _, ours in found:
            ours.close()
    finally:
        await plays.close()


@pytest.mark.parametrize(
    ("number", "why", "survives"),
    [
        (errno.EPIPE, "Broken pipe", False),  # the forker has ended, which was not noticed yet
        (errno.ETOOMANYREFS, "Too many references", True),  # too many sockets in flight
    ],
)
async def test_failed_process_start_is_an_environment_failure_and_the_next_start_succeeds(
    monkeypatch: pytest.MonkeyPatch, number: int, why: str, survives: bool
) -> None:
    plays = forker(PLAYS)
    try:
        _, stays, one = await begin(plays, b"stay")
        with monkeypatch.context() as patch:

            def refuse(*_: object) -> int:
                raise OSError(number, os.strerror(number))

            patch.setattr("socket.send_fds", refuse)
            with pytest.raises(
                EnvironmentFailed, match=f"no plays: no process was started.*{why}"
            ) as e:
                await plays.begin()
        assert e.value.proven_ours
        assert stays.done() != survives
        _, end, other = await begin(plays, b"again")
        assert await end == {"words": "again"}
        one.close()
        other.close()
    finally:
        await plays.close()


async def test_start_of_a_process_while_the_forker_dies_reports_that_the_forker_has_exited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plays = forker(PLAYS)

    def refuse(*_: object) -> int:
        assert plays.pid is not None
        os.kill(plays.pid, signal.SIGKILL)
        raise BlockingIOError

    try:
        await plays.start()
        monkeypatch.setattr("socket.send_fds", refuse)
        with pytest.raises(EnvironmentFailed, match="the child process has exited") as e:
            await plays.begin()
        assert e.value.proven_ours
    finally:
        await plays.close()


@pytest.mark.parametrize("lacking", ["a program", "descriptors"])
async def test_forker_that_cannot_start_is_an_environment_failure_and_leaks_no_descriptors(
    monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    before = open_files()
    plays = Forker("no plays", lambda _: ["/no/such/program"], start_s=60.0, stop_s=60.0)
    if lacking == "descriptors":

        def refuse(*_: object) -> int:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr("os.memfd_create", refuse)
    with pytest.raises(EnvironmentFailed, match=r"No such file|Too many open") as failed:
        await plays.start()
    assert failed.value.proven_ours
    assert open_files() == before
    await plays.close()


async def test_child_that_ignores_the_stop_request_is_killed() -> None:
    child = Child(lambda _: [sys.executable, "-S", "-c", "import time; time.sleep(999)"])
    assert await child.stop(0.01) == -signal.SIGKILL


def test_try_out_returns_output_and_reports_errors_and_timeouts() -> None:
    assert try_out([sys.executable, "-c", "print('all well')"], 60.0) == "all well\n"
    with pytest.raises(EnvironmentFailed, match="ZeroDivisionError"):
        try_out([sys.executable, "-c", "1 / 0"], 60.0)
    with pytest.raises(EnvironmentFailed, match=r"no answer within 0\.01 s"):
        try_out([sys.executable, "-c", "import time; time.sleep(999)"], 0.01)


# the folders on the module path


def test_modules_of_the_current_folder_do_not_shadow_the_standard_library(tmp_path, monkeypatch):
    for name in ("this", "token", "types", "random"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the current folder')")
    monkeypatch.chdir(tmp_path)
    # as with ``python -m netarena``
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert "Zen" in try_out(program("this"), 60)


def test_module_path_lists_the_standard_library_before_other_folders(tmp_path, monkeypatch):
    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir()
    monkeypatch.chdir(here)
    standard = [folder for folder in sys.path if Path(folder, "token.py").exists()]
    monkeypatch.setattr(sys, "path", ["", str(here), str(other), str(other), *standard])
    assert module_path().split(os.pathsep) == [*standard, str(other), str(here)]
    here.rmdir()  # the current folder may no longer exist
    assert str(other) in module_path()


def test_every_python_subprocess_starts_with_a_safe_module_path():
    lines = [
        (path.name, line.strip())
        for folder in ("netarena", "a2a_purple", "apps")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if "sys.executable" in line
    ]
    assert len(lines) >= 4
    # protection.py only tests the maximum length of a command line: nothing of it is run
    unsafe = [where for where in lines if '"-P"' not in where[1] and '"-I"' not in where[1]]
    assert [name for name, line in unsafe] == ["protection.py"]
