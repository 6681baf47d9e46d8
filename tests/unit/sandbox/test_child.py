"""A process beside the service, by small programs that play it."""

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

#: what each program begins with
SETUP = """
import json, os, socket, sys, time
control = socket.socket(fileno=int(sys.argv[1]))
def say(**message): control.send(json.dumps(message).encode())
"""
#: tells of a begun process what was said on its socket; ends those that are killed
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


async def test_processes_are_begun_killed_and_reported_each_by_its_number() -> None:
    plays = forker(PLAYS)
    try:
        assert await plays.start() == {"ready": "fed"}
        first, stays, one = await begin(plays, b"stay")
        second, ends, other = await begin(plays, b"hello")
        assert first != second
        assert await ends == {"words": "hello"}
        assert not stays.done()
        plays.kill(second)  # which has ended
        plays.kill(first)
        assert await stays == {"words": "killed"}
        one.close()
        other.close()
    finally:
        await plays.close()


async def test_what_has_died_is_started_again_and_its_work_is_lost() -> None:
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


async def test_its_end_is_the_end_of_all_and_it_may_be_started_again() -> None:
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
async def test_what_does_not_get_ready_is_ended_and_says_why(
    program: str, start_s: float, why: str
) -> None:
    plays = forker(program, start_s=start_s)
    with pytest.raises(EnvironmentFailed, match=why) as caught:
        await plays.start()
    assert caught.value.proven_ours
    assert plays.pid is None


async def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    plays = forker(SETUP + "time.sleep(999)")
    starting = asyncio.create_task(plays.start())
    await asyncio.sleep(0)  # it begins at once
    pid = plays.pid
    assert pid is not None
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not lives(pid)


async def test_one_that_reads_late_is_told_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket holds some hundred packets."""
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
        (errno.EPIPE, "Broken pipe", False),  # it has ended, and that was not noticed yet
        (errno.ETOOMANYREFS, "Too many references", True),  # of sockets on their way
    ],
)
async def test_what_cannot_be_begun_is_our_failure_and_the_next_try_goes_well(
    monkeypatch: pytest.MonkeyPatch, number: int, why: str, survives: bool
) -> None:
    plays = forker(PLAYS)
    try:
        _, stays, one = await begin(plays, b"stay")
        with monkeypatch.context() as patch:

            def refuse(*_: object) -> int:
                raise OSError(number, os.strerror(number))

            patch.setattr("socket.send_fds", refuse)
            with pytest.raises(EnvironmentFailed, match=f"no plays: nothing was begun.*{why}") as e:
                await plays.begin()
        assert e.value.proven_ours
        assert stays.done() != survives
        _, end, other = await begin(plays, b"again")
        assert await end == {"words": "again"}
        one.close()
        other.close()
    finally:
        await plays.close()


async def test_who_waits_to_be_begun_is_told_that_the_process_has_ended(
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
        with pytest.raises(EnvironmentFailed, match="its process has ended") as e:
            await plays.begin()
        assert e.value.proven_ours
    finally:
        await plays.close()


@pytest.mark.parametrize("lacking", ["a program", "descriptors"])
async def test_a_process_that_cannot_be_had_is_our_failure_and_leaves_nothing(
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


async def test_a_process_that_does_not_listen_is_killed() -> None:
    child = Child(lambda _: [sys.executable, "-S", "-c", "import time; time.sleep(999)"])
    assert await child.stop(0.01) == -signal.SIGKILL


def test_what_a_program_says_of_the_machine() -> None:
    assert try_out([sys.executable, "-c", "print('all well')"], 60.0) == "all well\n"
    with pytest.raises(EnvironmentFailed, match="ZeroDivisionError"):
        try_out([sys.executable, "-c", "1 / 0"], 60.0)
    with pytest.raises(EnvironmentFailed, match=r"no answer after 0\.01 s"):
        try_out([sys.executable, "-c", "import time; time.sleep(999)"], 0.01)


# where its modules are


def test_a_file_of_the_current_folder_is_no_module_of_ours(tmp_path, monkeypatch):
    for name in ("this", "token", "types", "random"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the current folder')")
    monkeypatch.chdir(tmp_path)
    # as ``python -m netarena`` has it
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert "Zen" in try_out(program("this"), 60)


def test_what_this_process_finds_is_found_the_interpreters_own_first(tmp_path, monkeypatch):
    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir()
    monkeypatch.chdir(here)
    standard = [folder for folder in sys.path if Path(folder, "token.py").exists()]
    monkeypatch.setattr(sys, "path", ["", str(here), str(other), str(other), *standard])
    assert module_path().split(os.pathsep) == [*standard, str(other), str(here)]
    here.rmdir()  # the current folder may be gone
    assert str(other) in module_path()


def test_every_program_of_ours_is_started_so():
    lines = [
        (path.name, line.strip())
        for folder in ("netarena", "a2a_purple", "apps")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if "sys.executable" in line
    ]
    assert len(lines) >= 4
    # one only tries how long a line may be: nothing of it is run
    unsafe = [where for where in lines if '"-P"' not in where[1] and '"-I"' not in where[1]]
    assert [name for name, line in unsafe] == ["protection.py"]
