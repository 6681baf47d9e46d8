"""Temporary folders that belong to one process and are removed after it.

A killed process cannot remove its folder. Abandoned folders are therefore removed whenever a new
folder is created. A folder belongs to a process while the process holds a lock on it (flock(2)).
The kernel releases the lock when the process ends, even if it is killed. Unlike process ids, locks
work across containers.

Other users also write to the temporary folder. Therefore only folders of the same user are
considered, links are not followed, and a folder is locked before other users may open it.
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
    """A new folder at ``path`` (mode 0700) whose name starts with ``prefix``.

    The constructor blocks while it removes abandoned folders. The folder is removed by ``close``,
    or when the interpreter exits. Raises OSError if no folder can be created.
    """

    def __init__(self, prefix: str) -> None:
        for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                if left.lstat().st_uid == os.geteuid():
                    _remove(left, _lock(left))
        lock = None
        while lock is None:
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
            # before this process locks the folder, another process may remove it as abandoned; then
            # try again
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                lock = _lock(self.path)
        self._end = weakref.finalize(self, _remove, self.path, lock)

    def close(self) -> None:
        """Remove the folder with its content; further calls do nothing."""
        self._end()


def _lock(folder: Path) -> int:
    """Lock an unlocked folder; return the descriptor that holds the lock.

    Raises OSError: BlockingIOError if it is locked, FileNotFoundError if it does not exist.
    """
    with contextlib.ExitStack() as undo:
        # close-on-exec: programs started later do not inherit the descriptor and cannot hold the
        # lock
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        undo.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # the previous holder of the lock may have removed the folder
        if not os.path.samestat(os.fstat(lock), folder.lstat()):
            raise FileNotFoundError(f"{folder} was replaced in the meantime")
        undo.pop_all()
        return lock


def _remove(folder: Path, lock: int) -> None:
    """Remove the folder that ``lock`` locks, then close the lock.

    Files that cannot be removed are ignored. The function uses rm, because agents' commands wrote
    to the folder. rm does not follow links or block on pipes, and handles any depth with few open
    files.
    """
    with contextlib.suppress(OSError):
        subprocess.run(["/bin/rm", "-rf", "--", str(folder)], capture_output=True, check=False)
    os.close(lock)
