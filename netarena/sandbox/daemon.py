"""Confinement of system daemons that an agent configures and that run for the whole episode.

An agent's commands communicate with the daemons over sockets in one folder. Through these commands,
an agent can make the daemons write, store and compute anything that their configuration language
allows. Daemons are therefore confined like commands (``shell``):

- They have their own namespaces of every kind except the network.
- Their root folder contains only libraries, the daemons and the shell that starts them.
- They have the two capabilities of a command, and the capability to use ports below 1,024.
- The filter refuses the same system calls as for commands, and kernel limits apply.
- Their files are small, in memory, and deleted when the daemons end.

    with Confined(script, netns=..., hostname="r1", programs=..., texts=..., folders=...) as held:
        held.excess()        # checks limits that the kernel does not enforce; call it often
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Self

from netarena.errors import EnvironmentFailed
from netarena.sandbox import protection, shell
from netarena.sandbox.shell import SHELL_ENVIRONMENT, ShellLimits, entered, user_namespace

__all__ = ["Confined"]

#: Calls that return success without effect. ``capset`` is included because daemons request other
#: privileges when they start, but must keep the privileges that they have.
_PRETENDED = {**shell.PRETENDED, "capset": (126, 91)}
_CAPABILITIES = ("CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_NET_BIND_SERVICE")
_SHELL = "/bin/sh"
#: Folders of libraries on this machine.
_LIBRARIES = ("lib", "lib32", "lib64", "libx32")
_FOLDER_BYTES = 1 << 20  # default size of each writable folder
_OPEN_FILES = 512
_END_S = 10.0


class Confined:
    """The confined processes of ``script``, which starts programs and waits. ``close`` stops them.

    ``programs`` are the visible programs. ``texts`` (path -> text) are read-only files, and
    ``folders`` (path -> folder) are writable and visible outside. ``private`` folders are writable
    and visible only to the processes. The processes start in ``home``. Raises EnvironmentFailed if
    they cannot be confined.
    """

    def __init__(  # noqa: PLR0913 -- the parts of a sandbox
        self,
        script: str,
        *,
        netns: int,
        hostname: str,
        programs: Iterable[Path],
        texts: Mapping[str, str],
        folders: Mapping[str, Path],
        limits: ShellLimits,
        private: Iterable[str] = ("/tmp", "/run", "/var/tmp"),  # noqa: S108 -- the sandbox's own folder
        home: str = "/",
    ) -> None:
        self._limits = limits
        with contextlib.ExitStack() as stack:
            contents = {path: _file(stack, text.encode()) for path, text in texts.items()}
            calls = _file(stack, _filter())
            line = [shutil.which("bwrap") or "bwrap", "--unshare-pid", "--unshare-ipc"]
            line += ["--unshare-uts", "--die-with-parent", "--as-pid-1", "--new-session"]
            line += ["--hostname", hostname, "--clearenv", "--cap-drop", "ALL"]
            for name in _CAPABILITIES:
                line += ["--cap-add", name]
            if (user := user_namespace(stack, netns)) is not None:
                line += ["--userns", str(user)]
            line += _root(programs)
            for path, content in contents.items():
                line += ["--perms", "0444", "--ro-bind-data", str(content), path]
            line += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
            line += ["--bind", "/proc/sys/net", "/proc/sys/net", "--dev", "/dev"]
            for path in private:
                line += ["--size", str(_FOLDER_BYTES), "--tmpfs", path]
            for path, folder in folders.items():
                line += ["--bind", str(folder), path]
            line += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", home]
            line += ["--seccomp", str(calls), "--", _SHELL, "-c", _limited(script, limits)]
            with entered(netns):
                try:
                    self._process = subprocess.Popen(
                        line,
                        stdin=subprocess.PIPE,  # closing the pipe stops the script
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        pass_fds=(calls, *contents.values(), *(() if user is None else (user,))),
                        cwd="/",
                        env=SHELL_ENVIRONMENT,
                    )
                except OSError as error:
                    raise EnvironmentFailed(
                        f"the daemons could not be started: {error}", proven_ours=True
                    ) from None
        #: Name -> process id; empty until ``know`` is called.
        self._processes: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all processes."""
        self._process.kill()
        self._process.wait(_END_S)
        if self._process.stdin is not None:
            self._process.stdin.close()

    @property
    def alive(self) -> bool:
        """Return whether the script still runs."""
        return self._process.poll() is None

    def know(self, names: Iterable[str], family: Mapping[int, int]) -> None:
        """Record the ids of the script's processes with these names.

        ``family`` maps process ids to the ids of their parents.
        """
        wanted = set(names)
        for pid in family:
            if _descends(pid, self._process.pid, family):
                with contextlib.suppress(OSError):
                    name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
                    if name in wanted:
                        self._processes[name] = pid

    def terminate(self) -> None:
        """Send SIGTERM to all recorded processes, without waiting for their end."""
        for pid in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def running(self) -> list[str]:
        """Return the names of recorded processes that still run."""
        return [name for name, pid in self._processes.items() if _runs(pid)]

    def ended(self) -> list[str]:
        """Return the names of recorded processes that have ended."""
        return [name for name, pid in self._processes.items() if not _runs(pid)]

    def delayed_s(self) -> list[float]:
        """Return for each recorded process how long its threads have waited for a processor, in s.

        The source is the second field of the kernel's /proc/PID/task/TID/schedstat, in ns. The
        value is 0 if the kernel does not report this field.
        """
        return [_delayed_s(pid) for pid in self._processes.values()]

    def excess(self) -> str:
        """Kill the largest process if a limit is exceeded, and return its name with the reason.

        Returns "" if no limit is exceeded. The limits are the memory of all processes together,
        which the kernel does not limit, and the CPU time of each process.
        """
        alive = {name: pid for name, pid in self._processes.items() if _runs(pid)}
        folders = [f"/proc/{pid}" for pid in alive.values()]
        if not (reason := shell.overuse(folders, self._limits)):
            return ""
        name = max(alive, key=lambda one: _size(alive[one]))
        with contextlib.suppress(ProcessLookupError):
            os.kill(alive[name], signal.SIGKILL)
        return f"{name} was ended: {reason}"


def _limited(script: str, limits: ShellLimits) -> str:
    """Return a script that sets kernel limits, runs ``script``, and ends when standard input
    closes."""
    kib = (limits.address_bytes or limits.memory_bytes) >> 10
    seconds = protection.last_resort_s(limits.cpu_s)
    return (
        f"ulimit -c 0; ulimit -n {_OPEN_FILES}; ulimit -v {kib}; ulimit -t {seconds}\n"
        f"{script}\nread _\n"
    )


def _root(programs: Iterable[Path]) -> list[str]:
    """Return bubblewrap's arguments for a root folder with libraries, a shell and ``programs``."""
    line: list[str] = []
    for name in _LIBRARIES:
        if Path("/usr", name).is_dir():
            line += ["--ro-bind", f"/usr/{name}", f"/usr/{name}"]
    for name in ("bin", *_LIBRARIES):
        path = Path("/", name)
        if path.is_symlink():
            line += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir() and name != "bin":
            line += ["--ro-bind", str(path), str(path)]
    line += ["--ro-bind", str(Path(_SHELL).resolve()), str(Path(_SHELL).resolve().parent / "sh")]
    line += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for program in programs:
        line += ["--ro-bind", str(program), str(program)]
    return line


@cache
def _filter() -> bytes:
    verdicts = [(numbers, protection.refusal()) for numbers in shell.REFUSED.values()]
    verdicts += [(numbers, protection.refusal(errno.ENOSYS)) for numbers in shell.ABSENT.values()]
    verdicts += [(numbers, protection.refusal(0)) for numbers in _PRETENDED.values()]
    machine = platform.machine()
    return protection.compose(machine, verdicts, shell.GUARDED.values(), protection.ALLOW)


def _file(stack: contextlib.ExitStack, content: bytes) -> int:
    """Return a descriptor for reading ``content``, which ``stack`` closes."""
    descriptor = os.memfd_create("file")
    stack.callback(os.close, descriptor)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _descends(pid: int, ancestor: int, family: Mapping[int, int]) -> bool:
    while pid > 1 and pid != ancestor:
        pid = family.get(pid, 0)
    return pid == ancestor


def _runs(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        told = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return told[0] not in {b"Z", b"X"}
    return False


def _size(pid: int) -> int:
    """Return the number of memory pages that the process uses."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    return 0


def _delayed_s(pid: int) -> float:
    waited = 0
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, IndexError):
                waited += int((thread / "schedstat").read_bytes().split()[1])
    return waited / 1e9


def family() -> dict[int, int]:
    """Map the id of each process that is visible in /proc to the id of its parent."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                told = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                found[int(folder.name)] = int(told[1])
    return found
