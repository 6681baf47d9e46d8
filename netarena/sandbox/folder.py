"""A folder of one process below the machine's temporary one, which does not outlive it for long.

A process that is killed removes nothing, so that whoever makes such a folder first removes those
that were left. A folder belongs to a process while that holds a lock on it (flock(2)): the kernel
takes the lock back however the process ends, and knows it across containers, where the number of
a process says nothing.

Others write to the temporary folder as well. Only folders of the same user are looked at, no link
is followed, and a folder is locked before anybody else may open it.
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
