"""A journal with incomplete lines is readable; other files are refused with clear messages."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.errors import ConfigError
from netarena.model import AgentInfo, Ask, Episode, Outcome, Reply, Step
from netarena.run.journal import (
    LOCK_NAME,
    Journal,
    lies_in_run,
    lock_folder,
    read_events,
    read_journal,
)


def episode(query_id: str, **values: object) -> Episode:
    fields = {
        "query_id": query_id, "index": 0, "label": "a", "level": "level1", "role": "r",
        "agent": AgentInfo(name="x"), "prompt_type": "react", "outcome": Outcome.SOLVED,
    }  # fmt: skip
    return Episode.model_validate({**fields, **values})


def test_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    step = Step(prompt="p", reply=Reply(text="é\n"), state={"a": [1, 2.5, None]}, agent_s=0.5)
    with Journal(tmp_path / "j") as journal:
        journal.append("start", query_id="q", attempt=0)
        journal.append("retry", query_id="q", asked=True, evidence=None)
        journal.append("start", query_id="q", attempt=1)
        journal.append("start", query_id="other", attempt=0)
        journal.episode(episode("q", steps=(step,)).model_dump_json().encode())
        journal.append("end", complete=True)
    past = read_journal(tmp_path / "j", slim=False)
    assert past.episodes[Ask("q")].steps == (step,)
    assert past.interrupted(Ask("q")) == 1
    assert past.interrupted(Ask("other")) == 1
    assert past.complete
    slim = read_journal(tmp_path / "j").episodes[Ask("q")].steps[0]
    assert (slim.prompt, slim.reply, slim.state, slim.agent_s) == ("", None, None, 0.5)


@given(cut=st.integers(min_value=0, max_value=400))
def test_incomplete_last_line_is_cut_off(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("torn") / "j"
    with Journal(path) as journal:
        for number in range(4):
            journal.append("start", query_id=f"q{number}", attempt=0)
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    kept = list(read_events(path))
    assert len(kept) == whole[:cut].count(b"\n")
    with Journal(path) as journal:
        journal.append("end", complete=False)
    assert list(read_events(path)) == [*kept, {"event": "end", "complete": False}]


def test_long_incomplete_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b'{"event": "end", "complete": true}\n' + b"x" * 200_000)
    with Journal(path):
        pass
    assert path.read_bytes() == b'{"event": "end", "complete": true}\n'


@pytest.mark.parametrize("line", ["{}", "nonsense", "[1]", '{"event": "episode"}'])
def test_file_that_is_not_a_journal_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=r"journal\.jsonl"):
        read_journal(path)


def test_only_one_process_may_write_to_a_directory(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(ConfigError, match="in use"), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        pass


@pytest.mark.parametrize(
    ("held", "asked", "why"),
    [
        ("a", "a/b", "is in the folder of a running assessment"),
        ("a", "a/b/c/d", "is in the folder"),
        ("a", "b/../a/x", "is in the folder"),
        ("a", "link/x", "is in the folder"),
        ("a/b", "a", "contains the folder of a running assessment"),
        ("a/b/c/d", "a", "contains the folder"),
        ("a/.b/c", "a", "contains the folder"),
    ],
)
def test_only_one_run_may_use_a_directory_tree(
    held: str, asked: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "link").symlink_to("a")
    with lock_folder(tmp_path / held):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(ConfigError, match=f"^output_dir: {why}"), lock_folder(tmp_path / asked):
            pass
        made = {path.name for path in {*tmp_path.rglob("*")} - {*before}}
        assert made <= {LOCK_NAME}, "only a lock file may be left behind"
        with lock_folder(tmp_path / "beside"), lock_folder(tmp_path / "beside-too"):
            pass
    # two runs are allowed one after the other
    with lock_folder(tmp_path / asked):
        pass


def test_lock_of_another_process_covers_the_tree(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, netarena.run.journal as j\n"
        "with j.lock_folder(pathlib.Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    )
    held = tmp_path / "a" / "b"
    command = [sys.executable, "-c", code, str(held)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        for other in (held, held / "c", held.parent):
            with pytest.raises(ConfigError, match="running assessment"), lock_folder(other):
                pass
        child.communicate()
    with lock_folder(held.parent):
        pass


def hold(path: Path) -> int:
    """Lock ``path`` through a separate open file, as another process would."""
    handle = os.open(path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


@contextmanager
def foreign_lock(path: Path, kind: str) -> Iterator[None]:
    """Context manager: hold a lock that another user may take in one of our folders.

    That user can write to the folder, or owns it.
    """
    target = path
    if kind == "readable":
        path.touch(mode=0o644)
    elif kind == "another user's":
        path.touch(mode=0o600)
        os.chown(path, 65534, 65534)
    elif kind == "link":
        target = path.with_name("elsewhere")
        target.touch(mode=0o600)
        path.symlink_to(target)
    elif kind == "second name":
        target = path.with_name("elsewhere")
        target.touch(mode=0o600)
        path.hardlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path, 0o600)
        yield
        return
    else:  # the folder belongs to another user
        path.touch(mode=0o600)
        os.chown(path.parent, 65534, 65534)
    handle = hold(target)
    try:
        yield
    finally:
        os.close(handle)


@pytest.mark.parametrize(
    "kind", ["readable", "another user's", "link", "second name", "pipe", "another user's folder"]
)
def test_lock_that_another_user_can_hold_does_not_block_runs(kind: str, tmp_path: Path) -> None:
    if kind.startswith("another") and os.geteuid() != 0:
        pytest.skip("only root can make files of another user")
    shared = tmp_path / "shared"
    shared.mkdir()
    with foreign_lock(shared / LOCK_NAME, kind):
        for folder in (shared / "run", tmp_path):
            with lock_folder(folder):
                pass


def test_lock_file_of_a_run_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        (tmp_path / LOCK_NAME).touch(mode=0o666)  # a lock file of an older release
        with lock_folder(tmp_path):
            assert (tmp_path / LOCK_NAME).stat().st_mode & 0o777 == 0o600
        with lock_folder(tmp_path / "new"):
            assert (tmp_path / "new" / LOCK_NAME).stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_directory_locked_by_another_user_is_refused_with_a_reason(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make files of another user")
    lock = tmp_path / LOCK_NAME
    lock.touch()
    os.chown(lock, 65534, 65534)
    handle = hold(lock)
    try:
        with pytest.raises(ConfigError, match="belongs to another user"), lock_folder(tmp_path):
            pass
    finally:
        os.close(handle)


def test_file_in_the_directory_of_a_running_run_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("run")
    with lock_folder(tmp_path / "run"):
        for path in ("run/q.jsonl", "run/earlier-1/q.jsonl", "link/q.jsonl", "run/../run/q.jsonl"):
            assert lies_in_run(tmp_path / path), path
            assert not lies_in_run(tmp_path / path, tmp_path / "run"), path
        assert not lies_in_run(tmp_path / "q.jsonl")
    assert not lies_in_run(tmp_path / "run" / "q.jsonl")
