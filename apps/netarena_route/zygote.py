"""The warm process that episodes' workers are forked from: it has imported what they need.

    python -m netarena_route.zygote DESCRIPTOR     serve a control socket
    python -m netarena_route.zygote                say what is lacking on this machine, if anything

The control socket carries one JSON object per packet. To here: ``{"begin": id}`` with the worker's
socket attached, and ``{"kill": id}``. From here: ``{"ready": true}`` or ``{"failed": text}`` once,
then ``{"ended": id, "failed": text}`` when nothing of a worker is left. Its end is the end of all:
every worker dies with this process, and with the worker all that lives in its namespaces.
"""

from __future__ import annotations

import encodings.ascii
import encodings.idna
import encodings.latin_1  # noqa: F401 -- codecs, too, are files that nobody may be unable to read
import gc
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any, NoReturn

from netarena.sandbox.namespace import Unavailable, isolate, lacking
from netarena.sandbox.shell import environment
from netarena_route.worker import Worker

_PACKET_BYTES = 4096


class Zygote:
    """The loop: forks, kills, reports."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        #: process that waits outside of a worker's namespaces -> (id, the pipe of its last words)
        self._outer: dict[int, tuple[int, int]] = {}

    def serve(self) -> None:
        """Run until the service's end of the control socket is closed."""
        wake, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if wake in ready:
                os.read(wake, _PACKET_BYTES)
            if self._control.fileno() in ready and not self._receive():
                break
            self._reap()
        for pid in self._outer:
            os.kill(pid, signal.SIGKILL)
        for pid in self._outer:
            os.waitpid(pid, 0)

    def _receive(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, _PACKET_BYTES, 1)
        if not data:
            return False
        message = json.loads(data)
        if "begin" in message:
            self._begin(message["begin"], descriptors[0])
        for pid, (number, _) in self._outer.items():
            if number == message.get("kill"):
                os.kill(pid, signal.SIGKILL)
        return True

    def _begin(self, number: int, descriptor: int) -> None:
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            self._control.close()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _live_apart(descriptor, write)
        os.close(write)
        os.close(descriptor)
        self._outer[pid] = number, read

    def _reap(self) -> None:
        while self._outer:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            number, read = self._outer.pop(pid)
            with os.fdopen(read, "rb") as words:
                failed = words.read(_PACKET_BYTES // 2).decode("utf-8", "replace")
            self.send({"ended": number, "failed": failed})

    def send(self, message: dict[str, Any]) -> None:
        """Tell the service, if it is still there."""
        with suppress(OSError):
            self._control.send(json.dumps(message).encode())


def _live_apart(descriptor: int, words: int) -> NoReturn:
    """Of a new child: wait outside of new namespaces, and serve inside of them."""
    try:
        inner = isolate()
        if inner > 0:
            os.close(descriptor)
            os.close(words)
            os.waitpid(inner, 0)
        else:
            # the pipe stays open: that it is closed tells that the worker is gone
            Worker().serve(socket.socket(fileno=descriptor))
    except Unavailable as error:
        os.write(words, str(error).encode())
    except BaseException as error:  # noqa: BLE001 -- nothing may come back to the loop
        os.write(words, f"{type(error).__name__}: {error}".encode())
    os._exit(0)


def main() -> None:
    """See the module's description."""
    if len(sys.argv) == 1:
        sys.stdout.write(lacking())
        return
    control = socket.socket(fileno=int(sys.argv[1]))
    zygote = Zygote(control)
    os.chdir("/")
    if missing := lacking():
        zygote.send({"failed": missing})
        return
    environment()
    gc.collect()
    gc.freeze()  # collections in the children leave the shared pages alone
    zygote.send({"ready": True})
    zygote.serve()


if __name__ == "__main__":
    main()
