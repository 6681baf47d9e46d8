"""Warm process that forks the workers of episodes, with their imports already loaded.

    python -m netarena_network.real.zygote KIND DESCRIPTOR   serve a control socket
    python -m netarena_network.real.zygote                   print missing requirements

KIND is an application's subclass of ``worker.Worker``, as MODULE:NAME.

The control socket belongs to a ``child.Forker``. In its messages, ``failed`` is the error report of
a worker that has ended. When the socket closes, this process ends, all workers die, and their
namespaces are removed.
"""

from __future__ import annotations

import contextlib
import encodings.ascii
import encodings.idna
import encodings.latin_1  # noqa: F401 -- loaded early, since user nobody may be unable to read the files
import importlib
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netarena.sdk import Forks, NamespaceUnavailable, command_environment, isolate, lacking
from netarena_network.real.kernel_lock import MACHINE, Turns
from netarena_network.real.worker import Worker

if TYPE_CHECKING:
    from resource import struct_rusage

#: Maximum size of a worker's error report in bytes.
_MOST_BYTES = 2048
#: File with the size of the TCP connection table that each new network namespace gets.
_TABLE_ENTRIES = Path("/proc/sys/net/ipv4/tcp_child_ehash_entries")


class Zygote(Forks):
    """Forks workers, and waits for each worker outside the worker's namespaces."""

    def __init__(self, control: socket.socket, kind: type[Worker]) -> None:
        super().__init__(control)
        #: Process ID -> pipe from which the worker's error report is read
        self._words: dict[int, int] = {}
        self._make = partial(kind, Turns(MACHINE))

    def begin(self, connection: int) -> int:
        read, write = os.pipe()
        try:
            pid = self.spawn(lambda: _live_apart(connection, write, self._make))
        except OSError:
            os.close(read)
            raise
        finally:
            os.close(write)
        self._words[pid] = read
        return pid

    def report(self, pid: int, status: int, usage: struct_rusage) -> dict[str, Any]:
        del status, usage
        with os.fdopen(self._words.pop(pid), "rb") as words:
            return {"failed": words.read(_MOST_BYTES).decode("utf-8", "replace")}


def _live_apart(descriptor: int, words: int, make: Callable[[], Worker]) -> None:
    """In a new child process, wait outside new namespaces while a second process serves inside
    them."""
    try:
        inner = isolate()
        if inner > 0:
            os.close(descriptor)
            os.close(words)
            os.waitpid(inner, 0)
        else:
            _shrink_tables()
            # The pipe stays open in the worker. End-of-file therefore means that the worker has
            # exited.
            serve(socket.socket(fileno=descriptor), make())
    except NamespaceUnavailable as error:
        os.write(words, str(error).encode())
    except BaseException as error:  # noqa: BLE001 -- the child must not return to the parent's loop
        os.write(words, f"{type(error).__name__}: {error}".encode())


def _shrink_tables() -> None:
    """Give each machine its own small hash table of TCP connections.

    The kernel then lists a machine's connections in 0.05 ms. Otherwise it reads the whole table of
    the host, which takes 4 ms or more. Kernels before 6.1 have no such setting.
    """
    with contextlib.suppress(OSError):
        _TABLE_ENTRIES.write_text("512", encoding="ascii")


def serve(connection: socket.socket, worker: Worker) -> None:
    """Serve the requests of one connection."""
    with connection, connection.makefile("rb") as lines:
        worker.serve(connection, lines)


def main() -> None:
    """Run the warm process, or print the requirements that this machine does not meet."""
    if len(sys.argv) == 1:
        sys.stdout.write(lacking())
        return
    module, _, name = sys.argv[1].partition(":")
    kind: type[Worker] = getattr(importlib.import_module(module), name)
    zygote = Zygote(socket.socket(fileno=int(sys.argv[2])), kind)
    os.chdir("/")
    if missing := lacking():
        zygote.send({"failed": missing})
        return
    command_environment()
    zygote.serve(ready=True)


if __name__ == "__main__":
    main()
