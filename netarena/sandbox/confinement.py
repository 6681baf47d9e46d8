"""Sandbox without namespaces, as in a default container, for a shell command and one TCP port.

The command can see the machine's resources, but cannot use them. The protections are:

* landlock: The command can open only the system's programs, a scratch directory and the given
  files. From version 4 on, it can connect to only one port (at any address). It cannot trace other
  processes and, from version 6 on, cannot send signals to them.
* seccomp: The filter refuses the calls that the shell sandbox refuses. It also refuses calls that
  can affect other processes, files and sockets of the same user. It allows only TCP sockets that do
  not listen. It refuses changes of other processes' priorities and limits, and signals to these
  processes. Changes of file modes, owners and times succeed without effect.
* user: The command runs as a separate user if the service is root, otherwise as the service's user.
* limits: Kernel limits, and checks every ``TICK_S``, apply to memory, processes, files and output.

``run`` must be called in a separate process, which adopts and kills all descendants of the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import re
import resource
import select
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

from netarena.errors import EnvironmentFailed
from netarena.sandbox import namespace, protection, shell, syntax
from netarena.sandbox.caller import descendants
from netarena.sandbox.protection import Guard, Unprotected
from netarena.sandbox.scratch import Keep
from netarena.sandbox.shell import Clock, CommandResult, Kept, ShellLimits

__all__ = ["USERS", "Task", "lacking", "reduced", "run"]

#: User ids of commands. Each user runs one command at a time. systemd does not assign these ids.
USERS = range(60_940, 61_180)

#: Calls that are refused in addition to ``shell.REFUSED``, because they affect other processes,
#: files or the network.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    # calls that affect other processes of the same user
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_getfd": (438, 438),
    # calls that affect open files of other processes
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    # calls that affect other files of the same user in a way that landlock does not cover
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    # allocates memory that no process limit counts and that outlives the process
    "semget": (64, 190),
}
#: Calls that return success without effect. Most of them change the mode, owner or times of a file
#: given by its path, which landlock does not restrict. They are not refused, because kubectl, for
#: example, sets the modes of its cache files and treats a refusal as a failure.
PRETENDED: dict[str, tuple[int | None, int | None]] = {
    **shell.PRETENDED,
    "chmod": (90, None),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
_TCP = 6
_STREAMS = tuple(1 | flags for flags in (0, 0x800, 0x80000, 0x80800))
_MSG_FASTOPEN = 0x20000000  # a flag that connects without a check by landlock
GUARDED: dict[str, Guard] = {
    **shell.GUARDED,
    "socket": Guard((41, 198), 0, values=(2, 10), also=((1, _STREAMS), (2, (0, _TCP)))),
    "sendto": Guard((44, 206), 3, forbidden=_MSG_FASTOPEN),
    "sendmsg": Guard((46, 211), 2, forbidden=_MSG_FASTOPEN),
    "sendmmsg": Guard((307, 269), 3, forbidden=_MSG_FASTOPEN),
    "prlimit64": Guard((302, 261), 0),  # allowed only for the calling process itself
}
#: Calls that are refused if the command runs as the service's user and landlock cannot block
#: signals to the service.
SIGNALS: dict[str, tuple[int | None, int | None]] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
# harmless, and needed by Go programs, whose threads interrupt each other with this signal
_SIGURG = 23
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
_FIOSETOWN, _SIOCSPGRP = 0x8901, 0x8902
GUARDED_SIGNALS: dict[str, Guard] = {
    "tgkill": Guard((234, 131), 2, values=(_SIGURG,)),
    "fcntl": Guard((72, 25), 1, refused=(_F_SETOWN, _F_SETSIG, _F_SETOWN_EX)),
    "ioctl": Guard((16, 29), 1, refused=(_FIOSETOWN, _SIOCSPGRP)),
}

_DEVICES = ("null", "zero", "full", "random", "urandom")
_PR_SET_CHILD_SUBREAPER = 36
_MOST_DEPTH = 64  # maximum depth of folders; deeper folders take too long to read and remove
#: Open files without a name are counted only once in this number of checks, because counting is
#: slow.
_SELDOM = 5
#: Occurrences of ``/tmp`` in a command. Agents expect it to be writable, as in the shell sandbox.
_HABIT = re.compile(r"(?<![\w./-])/tmp(?![\w.-])")

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Task:
    """Inputs of one command.

    In values of ``environment``, ``{scratch}``, ``{files}`` and ``{kept}`` are replaced with the
    paths of the writable folder, the folder of ``files``, and the cache folder. ``user`` is None
    for the service's user.
    """

    command: str
    port: int
    folder: Path  # created and removed by ``run``
    user: int | None
    files: Mapping[str, str]
    programs: Mapping[str, Path]
    environment: Mapping[str, str]
    keep: Keep | None
    limits: ShellLimits


def lacking() -> str:
    """Return the reason why commands cannot be confined here, or "" if they can."""
    if not protection.landlock_version():
        return "this kernel has no landlock, or landlock is switched off"
    try:
        _filter(signals=False)
    except KeyError:
        return f"there is no seccomp filter for {platform.machine()}"
    if not protection.seccomp_available():
        return "this kernel or container refuses seccomp filters"
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        return "this kernel does not list a process's children"
    if not os.geteuid() and not protection.own_user_possible(USERS[0]):
        return "root is not permitted to run commands as another user (SETUID, SETGID, KILL)"
    return ""


def reduced() -> str:
    """Return one line that describes the protections that apply and their limits."""
    version = protection.landlock_version()
    user = "the service's user" if os.geteuid() else "a separate user"
    words = f"commands run under landlock {version}, seccomp, limits and {user}; "
    words += (
        "without namespaces they may connect to the API server's port number at any address"
        if version >= protection.NETWORK_SINCE
        else "they may make TCP connections to any address (landlock restricts them only from "
        "Linux 6.7 on)"
    )
    if os.geteuid() and version < protection.SCOPES_SINCE:
        words += ", and cannot send signals (kill, timeout): landlock restricts them from 6.12 on"
    return words


def run(task: Task, asked: socket.socket) -> tuple[CommandResult, dict[str, bytes] | None]:
    """Run the command with bash (``syntax``); return its result and the cache folder's files.

    The files are None if the task has no cache folder, or if the command was stopped. The command
    is stopped when the other end of ``asked`` is closed. All processes of the command have ended
    when this function returns. Call this function only in a separate process, because it changes
    the process permanently. Raises EnvironmentFailed. The error is marked as a proven environment
    failure if the sandbox could not be set up, because then no part of the command has run.
    """
    confinement = _Confinement(task, asked)
    text = confinement.text()
    if "\0" in text or len(text.encode("utf-8", "replace")) > shell.LONGEST_COMMAND_BYTES:
        return CommandResult("", None, stopped=shell.NO_COMMAND), None
    try:
        return confinement.run()
    except (Unprotected, OSError) as error:
        began = confinement.began
        what = "a command in the sandbox failed" if began else "the sandbox cannot be set up"
        raise EnvironmentFailed(f"{what}: {error}", proven_ours=not began) from None
    finally:
        _libc.setfsuid(os.geteuid())
        _remove(task.folder)


class _Confinement:
    def __init__(self, task: Task, asked: socket.socket) -> None:
        self._task = task
        self._asked = asked
        self._kept = Kept(task.limits.output_bytes)
        self._scratch = task.folder / "scratch"
        self._files = task.folder / "files"
        self._programs = task.folder / "programs"
        self._keep = task.folder / "kept"
        #: Whether the command was started, so that it may have caused a later failure.
        self.began = False

    def run(self) -> tuple[CommandResult, dict[str, bytes] | None]:
        if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise Unprotected(
                "this process cannot adopt orphaned processes (PR_SET_CHILD_SUBREAPER)"
            )
        # if landlock restricts this process's signals to its descendants, one call can signal all
        # of them and no other process
        self._bounded = protection.landlock_version() >= protection.SCOPES_SINCE
        if self._bounded:
            protection.restrict(protection.create_ruleset(scopes_only=True))
            with contextlib.suppress(PermissionError):
                os.kill(os.getppid(), 0)
                raise Unprotected("landlock does not restrict signals")
        self._furnish()
        self._start()
        try:
            stopped, timed_out = self._attend()
        finally:
            status = self._end()
        self._kept.read(self._output)
        if stopped:
            # the cache folder's files are discarded, because they may be the reason for the stop
            return CommandResult(self._kept.text(), None, timed_out, stopped), None
        kept = self._task.keep.collect(self._keep) if self._task.keep is not None else None
        code = os.waitstatus_to_exitcode(status)
        return CommandResult(self._kept.text(), code if code >= 0 else 128 - code), kept

    def _furnish(self) -> None:
        """Create the folders, and access files as the command's user from then on."""
        self._task.folder.mkdir(mode=0o700)
        if (user := self._task.user) is not None:
            os.chown(self._task.folder, user, user)
            _libc.setfsgid(user)
            _libc.setfsuid(user)
        for folder in (self._scratch, self._files, self._programs, self._keep):
            folder.mkdir()
        for name, text in self._task.files.items():
            (self._files / name).write_text(text, encoding="utf-8")
        for name, program in self._task.programs.items():
            (self._programs / name).symlink_to(program)
        if self._task.keep is not None:
            self._task.keep.fill(self._keep)

    def _ruleset(self) -> int:
        ruleset = protection.create_ruleset()
        folders = [path for path in Path("/usr").iterdir() if path.name != "local"]
        folders += [path for name in shell.TOP if not (path := Path("/", name)).is_symlink()]
        rights = [
            *((path, protection.RUN) for path in [*folders, *self._task.programs.values()]),
            *((Path("/etc", name), protection.READ) for name in shell.ETC),
            *((Path("/dev", name), protection.WRITE) for name in _DEVICES),
            (self._files, protection.READ),
            (self._scratch, protection.SCRATCH),
        ]
        if self._task.keep is not None:
            rights.append((self._keep, protection.KEEP))
        for path, allowed in rights:
            with contextlib.suppress(FileNotFoundError):
                protection.allow_path(ruleset, path, allowed)
        protection.allow_port(ruleset, self._task.port)
        return ruleset

    def _start(self) -> None:
        ruleset = self._ruleset()
        self._output, output = os.pipe2(os.O_CLOEXEC)
        told, telling = os.pipe2(os.O_CLOEXEC)
        self._child = os.fork()
        if not self._child:
            self._become_the_command(ruleset, output, telling)
        for end in (ruleset, output, telling):
            os.close(end)
        os.set_blocking(self._output, False)
        self._life = os.pidfd_open(self._child)
        with os.fdopen(told, "rb") as file:
            if problem := file.read():
                self._end()
                raise Unprotected(problem.decode())
        self.began = True

    def _become_the_command(self, ruleset: int, output: int, telling: int) -> NoReturn:
        try:
            # access files as the service's user again, who owns this process's files below /proc
            _libc.setfsuid(os.geteuid())
            os.setsid()
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)  # undo Python's changes
            null = os.open("/dev/null", os.O_RDONLY)
            for source, target in ((null, 0), (output, 1), (output, 2)):
                os.dup2(source, target)
            # make execve close the inherited descriptors, which include sockets of the service
            for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 -- names are wanted
                with contextlib.suppress(OSError):  # the descriptor of the listing is closed
                    os.set_inheritable(int(descriptor), int(descriptor) < 3)
            os.chdir(self._scratch)
            os.umask(0o077)
            protection.offer_to_oom_killer()
            with contextlib.suppress(OSError):
                os.nice(shell.NICENESS)
            user = self._task.user
            for name, which, most in shell.kernel_limits(self._task.limits):
                # the service's user also runs other processes, which the limit would count
                if name != "nproc" or user is not None:
                    resource.setrlimit(which, (most, most))
            if user is not None:
                protection.become(user, keep_reading=False)
            namespace.die_with_parent()
            protection.restrict(ruleset)
            signals = user is None and protection.landlock_version() < protection.SCOPES_SINCE
            protection.set_filter(_filter(signals=signals))
            os.execve("/bin/bash", syntax.arguments(self.text()), self._environment())  # noqa: S606 -- the purpose of this module
        except BaseException as error:  # noqa: BLE001 -- the child must not return
            os.write(telling, str(error).encode())
        os._exit(1)

    def text(self) -> str:
        """Return the command with the scratch directory in place of ``/tmp``."""
        return _HABIT.sub(lambda _: str(self._scratch), self._task.command)

    def _environment(self) -> dict[str, str]:
        given = dict(self._task.environment)
        for place in ("scratch", "files", "kept"):
            path = str(self._keep if place == "kept" else getattr(self, f"_{place}"))
            given = {name: value.replace(f"{{{place}}}", path) for name, value in given.items()}
        return {
            **shell.command_environment(),
            "PATH": f"{self._programs}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self._scratch),
            "TMPDIR": str(self._scratch),
            **given,
        }

    def _attend(self) -> tuple[str, bool]:
        """Read output and check limits until the command ends or must be stopped.

        Returns the reason for the stop ("" if the command has ended), and whether the reason is the
        time limit.
        """
        clock = Clock(self._task.limits.wall_s, self._send)
        poll = select.poll()
        poll.register(self._life, select.POLLIN)
        poll.register(self._output, select.POLLIN)
        poll.register(self._asked, 0)  # poll always reports a hang-up
        looked, looks = 0.0, 0
        while True:
            events = dict(poll.poll(shell.TICK_S * 1000))
            if self._output in events and not self._kept.read(self._output):
                # all processes have closed the output, but may still run
                poll.unregister(self._output)
            if self._life in events:
                return clock.over, bool(clock.over)
            if self._asked.fileno() in events:
                return "nobody waits for it", False
            if clock.runs_out():
                return clock.over, True
            now = time.monotonic()
            if now - looked >= shell.TICK_S:
                looked, looks = now, looks + 1
                if reason := self._excess(seldom=not looks % _SELDOM):
                    return clock.over or reason, bool(clock.over)

    def _send(self, number: int) -> None:
        """Send a signal to the command's process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child, number)

    def _excess(self, *, seldom: bool) -> str:
        """Return the first exceeded limit that the kernel does not enforce, otherwise ""."""
        limits, keep = self._task.limits, self._task.keep
        if reason := self._kept.excess():
            return reason
        processes, tasks = descendants(os.getpid())
        tasks -= 1  # do not count this process
        if tasks > limits.processes:
            return f"it has more than {limits.processes} processes and threads"
        if reason := shell.overuse((f"/proc/{number}" for number in processes), limits):
            return reason
        bounds = [(self._scratch, shell.SCRATCH_BYTES, shell.MOST_FILES)]
        if keep is not None:
            # twice the maximum stored amount, so that a command may add files to a full folder
            bounds.append((self._keep, 2 * keep.most_bytes, 2 * keep.most_files))
        for folder, most_bytes, most_files in bounds:
            if problem := _overfull(folder, most_bytes, most_files):
                return f"{problem} in its {folder.name} directory"
        if seldom and sum(map(_nameless_bytes, processes)) > shell.SCRATCH_BYTES:
            return f"it holds more than {shell.SCRATCH_BYTES >> 20} MiB of files without a name"
        return ""

    def _end(self) -> int:
        """Stop all processes that the command started; return the status of its first process."""
        found = 0
        deadline = time.monotonic() + shell.END_S
        while True:
            self._kill_all()
            try:
                while (pair := os.waitpid(-1, os.WNOHANG))[0]:
                    if pair[0] == self._child:
                        found = pair[1]
            except ChildProcessError:
                return found
            if time.monotonic() > deadline:
                left = Counter(map(_standing, descendants(os.getpid())[0]))
                told = ", ".join(f"{number} {state}" for state, number in sorted(left.items()))
                raise EnvironmentFailed(
                    f"a command's processes did not end after SIGKILL: {told or 'it has ended now'}"
                )
            time.sleep(0.001)

    def _kill_all(self) -> None:
        """Kill all descendants, with a single signal if landlock restricts signals to them."""
        if self._bounded:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(-1, signal.SIGKILL)
        else:
            for process in descendants(os.getpid())[0]:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    # a stopped process cannot start others before it is killed
                    resource.prlimit(process, resource.RLIMIT_NPROC, (0, 0))
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)


@cache
def _filter(*, signals: bool) -> bytes:
    """Return the seccomp filter; with ``signals``, it refuses signals to other processes."""
    refused = {**shell.REFUSED, **REFUSED, **(SIGNALS if signals else {})}
    guarded = {**GUARDED, **(GUARDED_SIGNALS if signals else {})}
    verdicts = [(numbers, protection.refusal()) for numbers in refused.values()]
    verdicts += [(numbers, protection.refusal(errno.ENOSYS)) for numbers in shell.ABSENT.values()]
    verdicts += [(numbers, protection.refusal(0)) for numbers in PRETENDED.values()]
    return protection.compose(platform.machine(), verdicts, guarded.values(), protection.ALLOW)


def _standing(process: int) -> str:
    """Return a process's state letter (proc(5)), whatever process name an agent chose."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
        return next((line[7:] for line in lines.splitlines() if line.startswith("State:")), "gone")
    return "gone"


def _nameless_bytes(process: int) -> int:
    """Return the total size of the files that the process holds open although they were deleted."""
    found = 0
    with contextlib.suppress(OSError), os.scandir(f"/proc/{process}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                about = entry.stat()
                if stat.S_ISREG(about.st_mode) and not about.st_nlink:
                    found += about.st_blocks * 512
    return found


def _overfull(folder: Path, most_bytes: int, most_files: int) -> str:
    """Return a message about the limit that a folder exceeds, or "" if it exceeds none."""
    used = files = 0
    waiting = [(str(folder), 0)]
    while waiting:
        here, depth = waiting.pop()
        if depth > _MOST_DEPTH:
            return "it made folders too deep"
        with contextlib.suppress(OSError), os.scandir(here) as entries:
            for entry in entries:
                files += 1
                with contextlib.suppress(OSError):
                    used += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((entry.path, depth + 1))
                if files > most_files:
                    return f"it made more than {most_files} files"
    return f"it wrote more than {most_bytes >> 20} MiB" if used > most_bytes else ""


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except (OSError, RecursionError):  # deeper than Python's recursion limit
        subprocess.run(["/bin/rm", "-rf", "--", str(folder)], capture_output=True, check=False)
