"""Functions that read untrusted files up to a maximum size, and unnamed temporary files.

The only accepted pipes are those that this process inherited (standard input, or ``<(command)`` of
a shell).
"""

from __future__ import annotations

import codecs
import errno
import math
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

#: Maximum bytes of a file that is read completely, and of a line in a file that is read by lines.
MOST_BYTES = 256 << 20
MOST_LINE_BYTES = 64 << 20


#: Folders that contain a process's inherited file descriptors.
_GIVEN = frozenset(map(Path, ("/dev", "/dev/fd", "/proc/self/fd")))


def finite(text: str) -> float:
    """Return the value of ``text``, a number in a JSON document, as a float.

    Raises ValueError if the number is too large for a float. ``json`` would return infinity.
    """
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is too large a number")
    return value


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file or an inherited pipe for reading.

    Raises OSError for any other kind of file, without waiting (opening a pipe could block).
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode) or (stat.S_ISFIFO(mode) and path.parent in _GIVEN):
        os.set_blocking(handle, True)
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """Return the content of a regular UTF-8 file without a byte order mark.

    Raises UnicodeDecodeError. Raises OSError if the file cannot be read or has more than
    ``most_bytes`` bytes.
    """
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    return content.removeprefix(codecs.BOM_UTF8).decode()


def read_lines(path: Path, most_bytes: int = MOST_LINE_BYTES) -> Iterator[bytes]:
    """Yield the lines of a regular file with their line ends, without a byte order mark.

    The file is opened when the first line is requested. Raises OSError, for example for a line of
    more than ``most_bytes`` bytes.
    """
    with open_regular(path) as file:
        mark = codecs.BOM_UTF8
        while line := file.readline(most_bytes + 1).removeprefix(mark):
            mark = b""
            if len(line) > most_bytes:
                raise OSError(errno.EFBIG, f"a line has more than {most_bytes:,} bytes", str(path))
            yield line


class Unnamed:
    """Lines in an unnamed temporary file, which is removed at the latest when the process ends.

    All methods may raise OSError.
    """

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 -- closed by __exit__

    def lines(self) -> Iterator[str]:
        """Yield all lines with their line ends. The file must not be written or read during the
        iteration."""
        self._file.seek(0)
        for line in self._file:
            yield line.decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # the disk may be full, and unwritten data is no longer needed
            self._file.close()
