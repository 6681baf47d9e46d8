"""Folders of live processes, of killed ones, and of processes that start at the same time."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from netarena.sandbox.folder import OwnFolder

PREFIX = "netarena-test-"
#: makes a folder with a file in it, and waits
OWNER = """
import sys
from netarena.sandbox.folder import OwnFolder
own = OwnFolder(sys.argv[1])
(own.path / "deep").mkdir()
(own.path / "deep" / "file").write_text("of its owner")
print(own.path, flush=True)
sys.stdin.read()
"""
#: does the same, and starts a program that outlives it and inherits its descriptors
PARENT = OWNER.replace(
    "print(",
    "import subprocess\n"
    "child = subprocess.Popen(['sleep', '600'], close_fds=False, stdin=-3, stdout=-3, stderr=-3)\n"
    "print(child.pid, ",
)
#: makes folders in several threads; each folder must stay unchanged until it is closed
CROWD = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from netarena.sandbox.folder import OwnFolder
def live(number):
    own = OwnFolder(sys.argv[1])
    file = own.path / "file"
    file.write_text(str(number))
    time.sleep(0.002)
    assert file.read_text() == str(number)
    own.close()
    assert not own.path.exists()
with ThreadPoolExecutor(4) as pool:
    list(pool.map(live, range(int(sys.argv[2]))))
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a service with the same temporary folder."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-c", program, PREFIX, *arguments],
        env={**os.environ, "PYTHONPATH": paths, "TMPDIR": tempfile.gettempdir()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def told(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def open_files() -> list[Path]:
    return sorted(Path("/proc/self/fd").iterdir())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def test_folder_of_a_killed_process_is_removed_and_that_of_a_live_process_remains(
    temporary: Path,
) -> None:
    with start(OWNER) as killed, start(OWNER) as living:
        left, used = Path(told(killed)), Path(told(living))
        own = OwnFolder(PREFIX)
        assert {*temporary.iterdir()} == {left, used, own.path}
        killed.kill()
        killed.wait()
        assert left.exists()
        other = OwnFolder(PREFIX)
        assert {*temporary.iterdir()} == {used, own.path, other.path}
        assert (used / "deep" / "file").read_text() == "of its owner"
        living.communicate()
    # the process ended without removing its folder
    assert {*temporary.iterdir()} == {own.path, other.path}
    for folder in (own, own, other):
        folder.close()
    assert not list(temporary.iterdir())


def test_folder_of_a_killed_process_is_removed_even_if_its_child_is_still_running(
    temporary: Path,
) -> None:
    with start(PARENT) as parent:
        child, left = told(parent).split()
        parent.kill()
    try:
        assert Path(left).exists()
        OwnFolder(PREFIX).close()
        assert Path("/proc", child, "cmdline").read_bytes().startswith(b"sleep")
        assert not Path(left).exists()
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_new_folder_is_private_and_locked(temporary: Path) -> None:
    own = OwnFolder(PREFIX)
    assert own.path.stat().st_mode & 0o777 == 0o700
    with pytest.raises(BlockingIOError), locked(own.path):
        pass
    own.close()


def test_cleanup_does_not_follow_symbolic_links(temporary: Path) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("precious")
    links = [temporary / f"{PREFIX}{name}" for name in ("x", "y")]
    links[0].symlink_to(elsewhere)
    links[1].symlink_to("nowhere")
    os.mkfifo(temporary / f"{PREFIX}pipe")
    (temporary / f"{PREFIX}file").write_text("no folder")
    left = temporary / f"{PREFIX}left"
    left.mkdir()
    (left / "link").symlink_to(elsewhere)
    before = {*temporary.iterdir()}
    OwnFolder(PREFIX).close()
    assert {*temporary.iterdir()} == before - {left}
    assert (elsewhere / "file").read_text() == "precious"
    assert [str(link.readlink()) for link in links] == [str(elsewhere), "nowhere"]


@pytest.mark.requires("root")
def test_folder_of_another_user_is_not_removed(temporary: Path) -> None:
    theirs = temporary / f"{PREFIX}theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    OwnFolder(PREFIX).close()
    assert theirs.exists()


def test_abandoned_folder_deeper_than_pythons_recursion_limit_is_removed(temporary: Path) -> None:
    left = temporary / f"{PREFIX}left"
    left.mkdir()
    for name in "ab":  # each as deep as the length limit of a path allows
        subprocess.run(["mkdir", "-p", f"{name}/" * 2000], cwd=left, check=True)
    OwnFolder(PREFIX).close()
    assert not list(temporary.iterdir())


def test_new_folder_treated_as_abandoned_by_another_process_is_replaced(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process has locked the folder, or removed it before or after it was opened."""
    make, lock, made = tempfile.mkdtemp, fcntl.flock, []

    def make_late(prefix: str) -> str:
        made.append(Path(make(prefix=prefix)))
        if len(made) == 1:
            made[0].rmdir()
        return str(made[-1])

    def lock_late(descriptor: int, how: int) -> None:
        if len(made) == 2:
            made[1].rmdir()
        if len(made) == 3:
            made[2].rmdir()
            made[2].mkdir()
        if len(made) == 4:
            other = os.open(made[3], os.O_RDONLY)
            try:
                lock(other, how)
                lock(descriptor, how)
            finally:
                os.close(other)
        lock(descriptor, how)

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", make_late)
        patch.setattr(fcntl, "flock", lock_late)
        own = OwnFolder(PREFIX)
    assert own.path == made[4]
    assert own.path.is_dir()
    OwnFolder(PREFIX).close()
    assert [*temporary.iterdir()] == [own.path]
    own.close()


def test_folder_is_locked_while_it_is_removed(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = temporary / f"{PREFIX}left"
    left.mkdir()
    removed, run = [], subprocess.run

    def remove(line: list[str], **options: object) -> object:
        removed.append(line[-1])
        with pytest.raises(BlockingIOError), locked(Path(line[-1])):
            pass
        return run(line, check=True)

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", remove)
        own = OwnFolder(PREFIX)
        own.close()
    assert removed == [str(left), str(own.path)]
    assert not list(temporary.iterdir())


def test_concurrent_processes_keep_their_own_folders_until_closed(temporary: Path) -> None:
    crowds = [start(CROWD, "60") for _ in range(3)]
    for crowd in crowds:
        crowd.communicate()
    assert [crowd.returncode for crowd in crowds] == [0, 0, 0]
    assert not list(temporary.iterdir())


def test_closed_folders_leave_no_open_descriptors(temporary: Path) -> None:
    (temporary / f"{PREFIX}file").write_text("no folder")
    (temporary / f"{PREFIX}left").mkdir()
    before = open_files()
    own, other = OwnFolder(PREFIX), OwnFolder(PREFIX)
    own.close()
    other.close()
    assert open_files() == before
