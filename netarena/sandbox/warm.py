"""Program of the warm process, which loads the guest's context and forks a child per answer.

``netarena.sandbox.python`` starts this program as a fresh interpreter without site-packages. An
answer can read all of this process's memory, so the process gets only the guest, the payload and
limits. The program uses only the standard library and imports nothing else of this project except
``fork`` and ``protection``, which are loaded from this folder.

Standard input contains a header (length in 8 bytes, JSON) and the payload. The only argument is the
descriptor of the control socket of a ``child.Forker`` (see ``fork``).

A child reads the request from its own socket until end of file. It then sends the message described
in ``netarena.sandbox.untrusted``. The control socket closes when the service ends. This process
then kills every child and exits.
"""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import socket
import sys
import time
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resource import struct_rusage

if TYPE_CHECKING or __name__ != "__main__":
    from netarena.sandbox import fork, protection
else:  # loaded from this folder; no search path contains other modules of the project

    def _load(name: str) -> types.ModuleType:
        path = Path(__file__).resolve().with_name(f"{name}.py")
        spec = importlib.util.spec_from_file_location(name, path)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    fork, protection = map(_load, ("fork", "protection"))

#: The byte that a child sends after it has applied its protections, and the tag bytes of messages.
STARTED, VALUE, RAISED, MEMORY, TOO_LARGE = b"S", b"+", b"!", b"m", b">"
#: A child sends this byte instead of ``STARTED`` if a protection could not be applied. The reason
#: follows.
UNPROTECTED = b"X"
#: File name of compiled agent code, which identifies lines of the answer in error messages.
ANSWER_FILE = "<answer>"
ERROR_CHARS = 2000

#: Minimum pause in s between two checks of a child. A child may exceed its CPU limit by this much.
_LOOK_S = 0.02
#: The wall time of a child that waits for the CPU is extended up to this multiple of its limit.
MOST_WALLS = 10

#: Maximum length of an error message.
_FAILED_CHARS = 1024
#: CPUCLOCK_SCHED: combined with a process id in the upper bits, it identifies that process's
#: CPU-time clock.
_CPU_CLOCK = 2
#: Added to the service's own niceness.
_NICENESS = 5
_READ_BYTES = 1 << 18

# Modules of the standard library that load a shared library from a folder that answers cannot read.
# They are loaded here once; otherwise answers cannot import them.
_WITH_LIBRARIES = (
    *("_bz2", "_ctypes", "_decimal", "_elementtree", "_hashlib", "_lzma", "_sqlite3", "_ssl"),
    *("_uuid", "_zoneinfo", "zlib"),
)


class PreloadFinder(importlib.abc.MetaPathFinder):
    """Import finder for the preloaded packages, and for no other modules in their folders."""

    def __init__(self, folders: dict[str, str]) -> None:
        self._folders = folders

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        folder = self._folders.get(name)
        return importlib.machinery.PathFinder.find_spec(name, [folder]) if folder else None


@dataclass
class Child:
    """A running answer; ``place`` is its slot, which determines its user.

    Times are in s of the monotonic clock. ``deadline`` is the time of the next check.
    """

    place: int
    started: float
    deadline: float
    overdue: bool = False
    #: Whether the child was killed because it exceeded its CPU time.
    spent: bool = False


class Warm(fork.Forks):
    """Forks a child for each answer, and kills children that exceed their time.

    Raises protection.Unprotected if agent code would run with fewer protections than the header
    requires, and any exception raised by the guest's ``load``.
    """

    def __init__(self, control: socket.socket, header: dict[str, Any], payload: bytes) -> None:
        super().__init__(control)
        self._wall_s: float = header["wall_s"]
        self._cpu_s: float = header["cpu_s"]
        self._result_bytes: int = header["result_bytes"]
        self._pid = os.getpid()
        self._children: dict[int, Child] = {}
        gc.disable()  # garbage collection would be useless, because loaded objects are never freed
        packages = _preload(header["preload"])
        self._call, self._context = _load_guest(header["guest"], payload)
        self._armour, self._users = _make_armour(header, packages)
        self.possible = self._probe()
        if self.possible and not header["unsandboxed"]:
            raise protection.Unprotected(
                "the sandbox does not prevent: " + ", ".join(self.possible)
            )

    def look(self) -> float | None:
        self._end_over_limit()
        return self._until_deadline_ms()

    def _until_deadline_ms(self) -> float | None:
        living = (child for child in self._children.values() if not child.overdue | child.spent)
        deadlines = [child.deadline for child in living]
        return max(0.0, min(deadlines) - time.monotonic()) * 1000 + 1 if deadlines else None

    def begin(self, connection: int) -> int:
        taken = {child.place for child in self._children.values()}
        place = next(place for place in range(len(taken) + 1) if place not in taken)
        started = time.monotonic()
        pid = self._fork(connection, place, self._answer)
        # the child has only one thread, so its CPU time cannot exceed its wall time. No earlier
        # check is needed
        self._children[pid] = Child(place, started, started + min(self._wall_s, self._cpu_s))
        return pid

    def unborn(self, connection: int, error: OSError) -> dict[str, Any]:
        """Send the error of a failed fork to the caller, and return the report on it."""
        os.write(connection, UNPROTECTED + describe(error).encode())
        return {"status": 0, "cpu_s": 0.0, "elapsed_s": 0.0, "overdue": False, "spent": False}

    def kill(self, pid: int) -> None:
        _kill(pid)

    def _end_over_limit(self) -> None:
        """Kill children whose CPU or wall time is used up.

        The kernel's own CPU limit is less exact: it counts ticks and overestimates CPU time by 10 %
        or more.
        """
        now = time.monotonic()
        for pid, child in self._children.items():
            if child.overdue or child.spent or now < child.deadline:
                continue
            cpu_left_s = self._cpu_s - _used_s(pid)
            most_s = self._wall_s * MOST_WALLS
            due = child.started + min(self._wall_s + _kept_waiting_s(pid), most_s)
            child.spent = cpu_left_s <= 0
            child.overdue = not child.spent and due <= now
            child.deadline = min(due, now + max(cpu_left_s, _LOOK_S))
            if child.spent or child.overdue:
                _kill(pid)

    def report(self, pid: int, status: int, usage: struct_rusage) -> dict[str, Any]:
        # kill the child's whole process group, because the child could have forked if seccomp is
        # missing
        _kill(pid)
        child = self._children.pop(pid)
        return {
            "status": status,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "elapsed_s": time.monotonic() - child.started,
            "overdue": child.overdue,
            "spent": child.spent,
        }

    def _fork(self, connection: int, place: int, work: Callable[[bytes], bytes]) -> int:
        """Fork a child that protects itself, sends ``work(request)`` and exits."""
        pid = self.spawn(lambda: self._be_child(connection, place, work))
        _lead_group(pid)
        return pid

    def _be_child(self, connection: int, place: int, work: Callable[[bytes], bytes]) -> None:
        write, leave = os.write, os._exit  # agent code may replace the functions in os
        try:
            _lead_group(0)
            ruleset = self._armour.ruleset
            _close_all_but(connection, *(() if ruleset is None else (ruleset,)))
            request = b"".join(iter(lambda: os.read(connection, _READ_BYTES), b""))
            user = self._users[place] if self._users else None
            self._armour.put_on(self._pid, user)
            gc.enable()
        except Exception as error:  # noqa: BLE001 - after any error, no agent code may run
            write(connection, UNPROTECTED + describe(error).encode("utf-8", "replace"))
            return
        write(connection, STARTED)
        message = memoryview(work(request))
        while message:
            message = message[write(connection, message) :]
        # exit without clean-up, because clean-up would run code that agent code left behind
        leave(0)

    def _answer(self, request: bytes) -> bytes:
        encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
        try:
            value = VALUE + encode(self._call(self._context, json.loads(request))).encode("utf-8")
        except MemoryError:
            return MEMORY
        except BaseException as error:  # noqa: BLE001 - agent code may raise any exception
            return RAISED + encode(describe(error)).encode("utf-8", "replace")
        return value if len(value) <= self._result_bytes else TOO_LARGE

    def _probe(self) -> list[str]:
        """Try forbidden actions in a protected child; return the names of those that succeeded."""
        ours, theirs = socket.socketpair()
        ours.shutdown(socket.SHUT_WR)
        pid = self._fork(theirs.fileno(), 0, lambda _: json.dumps(protection.probe()).encode())
        theirs.close()
        message = b"".join(iter(lambda: ours.recv(_READ_BYTES), b""))
        ours.close()
        _, status = os.waitpid(pid, 0)
        if not message.startswith(STARTED) or status:
            reason = message.removeprefix(UNPROTECTED).decode("utf-8", "replace")
            raise protection.Unprotected(reason or f"the first child ended with status {status}")
        return list(json.loads(message[1:]))


def describe(error: BaseException) -> str:
    """Return the type and text of an error and its line in the answer. Raises only MemoryError."""
    try:
        text = f"{type(error).__name__}: {error}"[:ERROR_CHARS]
        lines = []
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == ANSWER_FILE:
                lines.append(trace.tb_lineno)
            trace = trace.tb_next
        return f"{text} (line {lines[-1]})" if lines else text
    except BaseException:  # noqa: BLE001 - the error's own __str__ may raise any exception
        return "an exception that cannot be shown"


def _preload(folders: dict[str, str]) -> list[str]:
    """Import the packages by name from their folders; return the paths that answers may read."""
    for name in _WITH_LIBRARIES:
        with suppress(ImportError):  # the interpreter may have been built without this module
            importlib.import_module(name)
    finder = PreloadFinder(folders)
    sys.meta_path.append(finder)
    modules = [importlib.import_module(name) for name in folders]
    sys.meta_path.remove(finder)
    return [
        os.path.realpath(path)
        for module in modules
        for path in (getattr(module, "__path__", None) or (module.__file__,))
        if path is not None
    ]


def _load_guest(source: str, payload: bytes) -> tuple[Callable[[Any, Any], Any], Any]:
    guest = types.ModuleType("guest")
    sys.modules["guest"] = guest  # dataclasses and pickle look up the module there
    exec(compile(source, "<guest>", "exec"), guest.__dict__)  # noqa: S102 - our own guest
    return guest.call, guest.load(payload)


def _make_armour(
    header: dict[str, Any], packages: list[str]
) -> tuple[protection.Armour, list[int]]:
    """Return the protections of children and their user ids.

    The ids are empty if children run as the service's user.
    """
    folders = [path for path in sys.path if Path(path).is_dir()]
    found = {one.name: one for one in protection.examine((*folders, *packages))}
    missing = [one for one in found.values() if one.essential and not one.ok]
    if missing and not header["unsandboxed"]:
        raise protection.Unprotected(
            "; ".join(f"no {one.name}: {one.detail} ({one.remedy})" for one in missing)
        )
    given = found["own user"].ok
    users = [user for user in header["users"] if given and protection.own_user_possible(user)]
    caps = protection.Caps(header["cpu_s"], header["memory_bytes"], header["open_files"])
    return protection.Armour(
        caps,
        protection.make_ruleset(folders, packages) if found["landlock"].ok else None,
        protection.make_filter(os.uname().machine) if found["seccomp"].ok else None,
        given and not all(map(protection.readable_by_all, (*folders, *packages))),
    ), users


def _close_all_but(*kept: int) -> None:
    """Close every descriptor except ``kept`` and the standard descriptors (0 to 2)."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in kept:
            with suppress(OSError):  # the descriptor of the listing itself is already closed
                os.close(descriptor)


def _lead_group(pid: int) -> None:
    with suppress(OSError):  # the parent or child has already done this, or the process has ended
        os.setpgid(pid, pid)


def _used_s(pid: int) -> float:
    """Return a child's exact CPU time; 0.0 if the kernel does not report it."""
    with suppress(OSError):
        return time.clock_gettime((~pid << 3) | _CPU_CLOCK)
    return 0.0


def _kept_waiting_s(pid: int) -> float:
    """Return how long the process was ready to run while other processes had the CPU, in s.

    Sleep does not count, but waiting for a control group's CPU quota does. The result is 0.0 if the
    kernel does not report this time.
    """
    try:
        fields = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
        return int(fields[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _kill(group: int) -> None:
    with suppress(OSError):  # the group has no processes left
        os.killpg(group, signal.SIGKILL)


def _point_to_null(*descriptors: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)


def main() -> None:
    """Run this module as a program (see the module's docstring)."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with open(0, "rb", closefd=False) as file:
        length = int.from_bytes(file.read(8), "big")
        header = json.loads(file.read(length))
        payload = file.read()
    os.chdir("/")
    os.environ.clear()
    sys.argv[:] = [""]
    try:
        warm = Warm(control, header, payload)
    except BaseException as error:
        control.send(json.dumps({"failed": describe(error)[:_FAILED_CHARS]}).encode())
        raise
    del header, payload
    _point_to_null(0, 1, 2)
    # low priority, so that the service still answers health checks while all answers compute
    os.nice(_NICENESS)
    warm.serve(ready=True)


if __name__ == "__main__":
    main()
