"""Temporary folders that belong to one process and are removed after it.

A killed process removes nothing, so creating a folder first removes abandoned ones. A folder
belongs to a process while the process holds a lock on it (flock(2)). The kernel releases the lock
however the process ends, and also across containers, where a process number is meaningless.

Others write to the temporary folder too. Only folders of the same user are considered, no link is
followed, and a folder is locked before anybody else may open it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
import weakref
from pathlib import Path

__all__ = ["OwnFolder"]


class OwnFolder:
    """A new folder at ``path`` (mode 0700), its name beginning with ``prefix``.

    Making it blocks while what was left is removed. It is gone after ``close``, or at the latest
    with the interpreter. Raises OSError where none can be made.
    """

    def __init__(self, prefix: str) -> None:
        for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                if left.lstat().st_uid == os.geteuid():
                    _remove(left, _lock(left))
        lock = None
        while lock is None:
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
            # until it is locked, another process may take it for one that was left
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                lock = _lock(self.path)
        self._end = weakref.finalize(self, _remove, self.path, lock)

    def close(self) -> None:
        """Remove it, with all that is in it; once more does nothing."""
        self._end()


def _lock(folder: Path) -> int:
    """Lock a folder that nobody has locked; the descriptor that holds the lock.

    Raises OSError: BlockingIOError where it is locked, FileNotFoundError where it is gone.
    """
    with contextlib.ExitStack() as undo:
        # no program that is started inherits it, so that none keeps the lock
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        undo.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # who had it locked until now may have removed it
        if not os.path.samestat(os.fstat(lock), folder.lstat()):
            raise FileNotFoundError(f"{folder} is another by now")
        undo.pop_all()
        return lock


def _remove(folder: Path, lock: int) -> None:
    """Remove a folder that ``lock`` holds, then close that; what cannot be removed stays.

    By rm, as commands of agents wrote there: it follows no link, waits for no pipe, and goes as
    deep as they did with few open files.
    """
    with contextlib.suppress(OSError):
        subprocess.run(["/bin/rm", "-rf", "--", str(folder)], capture_output=True, check=False)
    os.close(lock)
