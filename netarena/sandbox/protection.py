"""Protections of the process that runs an answer (agent code).

The process can only access its own memory, read libraries, and send its result. This module is
loaded by the warm process (``netarena.sandbox.warm``), which forks the process. The warm process's
search path contains only the standard library, so this module must not import other modules of this
project. There are four independent layers:

* kernel limits on CPU time, memory, processes, files and their size (``setrlimit``),
* a separate user and no capability, if the service may change users,
* landlock: only the standard library and the preloaded packages can be read,
* seccomp: only the system calls of ``ALLOWED`` and ``GUARDED``.

Landlock and seccomp are called through ctypes, because the existing bindings are not sufficient.
pyseccomp (last release 2021) needs libseccomp, which slim container images lack. py-landlock has
one release and supports neither scopes nor the reuse of one ruleset by many children. The required
system calls are few and belong to the kernel's stable interface (landlock(7), seccomp(2),
<linux/filter.h>).
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import platform
import resource
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: Allowed calls: name -> number on x86_64 and on aarch64 (None: that architecture has no such
#: call). The calls read files and clocks, and manage the process's own memory, identity and signal
#: handlers. They do not create processes or threads, create no descriptors except of files to read,
#: and do not affect other processes.
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63),
    "readv": (19, 65),
    "pread64": (17, 67),
    "write": (1, 64),
    "writev": (20, 66),
    "close": (3, 57),
    "lseek": (8, 62),
    "fstat": (5, 80),
    "stat": (4, None),
    "lstat": (6, None),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "getcwd": (79, 17),
    "getdents64": (217, 61),
    "mmap": (9, 222),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "mprotect": (10, 226),
    "madvise": (28, 233),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    "setitimer": (38, 103),
    "getitimer": (36, 102),
    "alarm": (37, None),
    "nanosleep": (35, 101),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    "getrusage": (98, 165),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "gettid": (186, 178),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getgroups": (115, 158),
    "getresuid": (118, 148),
    "getresgid": (120, 150),
    "uname": (63, 160),
    "getrandom": (318, 278),
    "getrlimit": (97, 163),
    "exit": (60, 93),
    "exit_group": (231, 94),
}

# Flags that open a file for more than reading. O_TMPFILE needs no entry, because the kernel
# requires a writing mode with it.
_WRITING = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# fcntl commands that affect only the descriptor: F_DUPFD, F_GETFD, F_SETFD, F_GETFL and
# F_DUPFD_CLOEXEC. F_SETOWN with O_ASYNC would send signals, and F_SETFL would change an open file
# description shared with other processes.
_FCNTL_COMMANDS = (0, 1, 2, 3, 1030)
# Operations on private futexes, which other processes cannot wake: WAIT, WAKE, REQUEUE,
# CMP_REQUEUE, WAIT_BITSET (with either clock) and WAKE_BITSET, each with FUTEX_PRIVATE_FLAG. The C
# library needs no other operations for Python's locks, because these locks do not use priority
# inheritance.
_FUTEX_COMMANDS = tuple(128 | command for command in (0, 1, 3, 4, 9, 9 | 256, 10))
# The system's clocks, and the CPU clocks of this process and thread. The last two numbers denote
# the CPU clocks of process 0 and thread 0, which mean the caller; the C library may use this form.
# Other negative numbers are CPU clocks of other processes or clocks of devices.
_CLOCKS = (0, 1, 2, 3, 4, 5, 6, 7, 11, 0xFFFFFFFA, 0xFFFFFFFE)


@dataclass(frozen=True)
class Guard:
    """A call that is allowed only for some values of one argument.

    ``argument`` is the position of that argument. One of these fields determines its allowed
    values:

    - ``forbidden``: values in which none of these bits is set
    - ``values``: only these values. If ``also`` (position -> values) is given, each of its
      arguments must also have one of its values
    - ``refused``: all values except these
    - ``pairs``: all pairs of the argument and the argument ``apart`` positions later, except these

    Without any of these fields, only a null pointer is allowed.
    """

    numbers: tuple[int | None, int | None]
    argument: int
    forbidden: int = 0
    values: tuple[int, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    apart: int = 1
    also: tuple[tuple[int, tuple[int, ...]], ...] = ()
    refused: tuple[int, ...] = ()


GUARDED: dict[str, Guard] = {
    "open": Guard((2, None), 1, forbidden=_WRITING),
    "openat": Guard((257, 56), 2, forbidden=_WRITING),
    "fcntl": Guard((72, 25), 1, values=_FCNTL_COMMANDS),
    "futex": Guard((202, 98), 1, values=_FUTEX_COMMANDS),
    "clock_gettime": Guard((228, 113), 0, values=_CLOCKS),
    "clock_getres": Guard((229, 114), 0, values=_CLOCKS),
    "clock_nanosleep": Guard((230, 115), 0, values=_CLOCKS),
    "prlimit64": Guard((302, 261), 2),  # with a null pointer, the call only reads a limit
}

#: Calls that fail with an error other than EPERM. On ENOSYS, the C library falls back to an older
#: call that the filter can inspect. Python reads ENOTTY as "not a terminal".
REFUSED_AS: dict[str, tuple[tuple[int | None, int | None], int]] = {
    "ioctl": ((16, 29), errno.ENOTTY),
    "clone3": ((435, 435), errno.ENOSYS),
    "openat2": ((437, 437), errno.ENOSYS),
}

#: machine -> column of the tables of calls, and AUDIT_ARCH_* of <linux/audit.h>
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_SYS_LANDLOCK_CREATE_RULESET = 444  # these numbers are the same on every architecture
_SYS_LANDLOCK_ADD_RULE = 445
_SYS_LANDLOCK_RESTRICT_SELF = 446
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_KEEPCAPS = 8
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_SECCOMP_GET_ACTION_AVAIL = 2
_RET_KILL_PROCESS = 0x80000000
_RET_ERRNO = 0x00050000
ALLOW = 0x7FFF0000

_CAP_DAC_READ_SEARCH = 2
_CAP_KILL = 5
_CAP_SETGID = 6
_CAP_SETUID = 7
_CAPABILITY_VERSION = 0x20080522

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_MAKE_FIFO, _MAKE_SYM, _REFER, _TRUNCATE = 1 << 10, 1 << 12, 1 << 13, 1 << 14
#: Sets of rights for a path and all files below it (<linux/landlock.h>).
READ = _READ_FILE | _READ_DIR
RUN = READ | _EXECUTE
WRITE = READ | _WRITE_FILE | _TRUNCATE
KEEP = WRITE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER
SCRATCH = KEEP | RUN | _MAKE_FIFO | _MAKE_SYM
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_CONNECT_TCP = 1 << 1
_SCOPE_SIGNAL = 1 << 1
#: First landlock versions that can refuse connections, and that can refuse signals and abstract
#: unix sockets.
NETWORK_SINCE, SCOPES_SINCE = 4, 6
# (version that introduced the rights, rights): for files, TCP ports and scopes
_FS_RIGHTS = ((1, (1 << 13) - 1), (2, _REFER), (3, _TRUNCATE), (5, 1 << 15))
_NET_RIGHTS = ((NETWORK_SINCE, 0b11),)
_SCOPES = ((SCOPES_SINCE, 0b11),)

#: Entries of the standard library's folder that answers do not need, such as installed packages,
#: pip's bundled wheels, tests and IDLE.
NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "ensurepip", "test", "idlelib"})

_SIGKILL = 9
_TOO_LONG_CHARS = 4 << 20  # exceeds the kernel's limit for one argument (32 pages of up to 64 KiB)

#: User id of the first child; other children use the ids that follow. systemd does not assign these
#: ids.
FIRST_USER = 60_900

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_prctl = _libc.prctl
_prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)


class Unprotected(Exception):
    """A protection could not be applied; the message names the protection."""


@dataclass(frozen=True)
class Protection:
    """The availability of one protection on this machine.

    Agent code runs only if all ``essential`` protections are available.
    """

    name: str
    ok: bool
    essential: bool
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Caps:
    """Limits of one child process.

    The parent enforces the limit ``cpu_s`` on CPU time. The kernel enforces more than twice
    ``cpu_s`` as a last resort. That limit is higher because the kernel counts ticks and may
    overestimate the time.
    """

    cpu_s: float
    memory_bytes: int
    open_files: int


# ---------------------------------------------------------------------------- examination


def landlock_version() -> int:
    """Return the kernel's landlock version, starting at 1, or 0 without landlock."""
    found = _libc.syscall(ctypes.c_long(_SYS_LANDLOCK_CREATE_RULESET), None, 0, 1)
    return max(int(found), 0)


def seccomp_available() -> bool:
    """Return whether seccomp filters can refuse calls with an error number and kill processes."""
    number = _SYS_SECCOMP.get(platform.machine())
    if number is None:
        return False
    for action in (_RET_ERRNO, _RET_KILL_PROCESS):
        wanted = ctypes.c_uint32(action)
        if _libc.syscall(ctypes.c_long(number), _SECCOMP_GET_ACTION_AVAIL, 0, ctypes.byref(wanted)):
            return False
    return True


def own_user_possible(user: int) -> bool:
    """Return whether this process may run children as ``user`` and still kill them."""
    needed = 1 << _CAP_SETUID | 1 << _CAP_SETGID | 1 << _CAP_KILL
    return _capabilities() & needed == needed and all(
        _mapped(user, Path("/proc/self", name)) for name in ("uid_map", "gid_map")
    )


def may_keep_reading() -> bool:
    """Return whether a child can keep the capability to read files regardless of permissions."""
    return bool(_capabilities() & 1 << _CAP_DAC_READ_SEARCH)


def _capabilities() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _mapped(user: int, ranges: Path) -> bool:
    """Return whether the user namespace maps ``user`` (user_namespaces(7))."""
    for line in ranges.read_text(encoding="ascii").splitlines():
        first, _, length = map(int, line.split())
        if first <= user < first + length:
            return True
    return False


def examine(paths: Iterable[str]) -> list[Protection]:
    """Return the protections that this machine offers.

    ``paths`` are the standard library and the packages that answers read.

    This function does not test the protections; ``probe`` tests them. If the service is root, a
    separate user is essential: if another layer failed, an answer that runs as root could access
    the whole machine.
    """
    machine = platform.machine()
    known = machine in _MACHINES and sys.byteorder == "little"
    version = landlock_version()
    seccomp = known and seccomp_available()
    users = own_user_possible(FIRST_USER) and (
        all(map(readable_by_all, paths))
        # landlock limits the files that this capability makes readable
        or (version > 0 and may_keep_reading())
    )
    root = os.geteuid() == 0
    return [
        Protection(
            "landlock",
            version > 0,
            True,
            f"version {version}"
            if version
            else "this kernel has no landlock, or landlock is switched off",
            "" if version else "use Linux 5.13 or newer with landlock among its security modules",
        ),
        Protection(
            "seccomp",
            seccomp,
            True,
            "filters can be set"
            if seccomp
            else f"no filter for {machine}"
            if not known
            else "this kernel or container refuses filters",
            ""
            if seccomp
            else "use an x86_64 or aarch64 machine whose kernel has CONFIG_SECCOMP_FILTER",
        ),
        Protection(
            "own user",
            users,
            root,
            "each answer runs as its own user"
            if users
            else "answers would run as root"
            if root
            else "answers run as the service's user (seccomp and landlock isolate them from the "
            "service)",
            ""
            if users
            else ("start the service as an ordinary user, or " if root else "start the service ")
            + "as root with SETUID, SETGID and KILL, from a Python installation that every user "
            "may read",
        ),
    ]


# ---------------------------------------------------------------------------- landlock


def make_ruleset(folders: Iterable[str], packages: Iterable[str]) -> int:
    """Return the descriptor of a ruleset that allows reading the standard library and packages.

    Rules are set on the entries of ``folders``, not on the folders themselves, so that packages
    installed below the folders are not readable. ``packages`` are folders or files that are
    readable as a whole. Raises Unprotected.
    """
    ruleset = create_ruleset()
    for folder in map(Path, folders):
        for entry in folder.iterdir():
            if entry.name not in NOT_LIBRARY and not entry.name.startswith("config-"):
                allow_path(ruleset, entry, READ)
    for package in map(Path, packages):
        allow_path(ruleset, package, READ)
    return ruleset


def create_ruleset(*, scopes_only: bool = False) -> int:
    """Return the descriptor of a ruleset that refuses all actions that this kernel can refuse.

    With ``scopes_only``, it refuses only signals to processes outside the sandbox. Raises
    Unprotected if the kernel has no landlock or, with ``scopes_only``, cannot refuse signals
    (``SCOPES_SINCE``).
    """
    version = landlock_version()
    known = [
        sum(bits for since, bits in rights if since <= version)
        for rights in (_FS_RIGHTS, _NET_RIGHTS, _SCOPES)
    ]
    if scopes_only:
        known = [0, 0, _SCOPE_SIGNAL if version >= SCOPES_SINCE else 0]
    attribute = struct.pack("=3Q", *known)
    # size of the struct in this landlock version
    size = 8 if version < NETWORK_SINCE else 16 if version < SCOPES_SINCE else 24
    ruleset = int(
        _libc.syscall(ctypes.c_long(_SYS_LANDLOCK_CREATE_RULESET), attribute[:size], size, 0)
    )
    if ruleset < 0:
        raise Unprotected(f"landlock: {_error()}")
    return ruleset


def allow_path(ruleset: int, path: Path, rights: int) -> None:
    """Allow ``rights`` (``READ``, ``RUN``, ...) on a file, or on everything below a folder.

    Rights that do not apply to the path, or that this kernel does not support, are ignored. Raises
    Unprotected, or OSError for a missing path.
    """
    version = landlock_version()
    rights &= sum(bits for since, bits in _FS_RIGHTS if since <= version)
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        if _libc.syscall(ctypes.c_long(_SYS_LANDLOCK_ADD_RULE), ruleset, 1, rule, 0):
            raise Unprotected(f"landlock rule for {path}: {_error()}")
    finally:
        os.close(descriptor)


def allow_port(ruleset: int, port: int) -> None:
    """Allow TCP connections to ``port`` at any address.

    Does nothing if the kernel cannot refuse connections (``NETWORK_SINCE``). Raises Unprotected.
    """
    if landlock_version() < NETWORK_SINCE:
        return
    rule = struct.pack("=QQ", _CONNECT_TCP, port)
    if _libc.syscall(ctypes.c_long(_SYS_LANDLOCK_ADD_RULE), ruleset, 2, rule, 0):
        raise Unprotected(f"landlock rule for port {port}: {_error()}")


def restrict(ruleset: int) -> None:
    """Apply a ruleset permanently to the calling thread and its descendants, and close the ruleset.

    Programs started from then on cannot gain privileges. Raises Unprotected.
    """
    forbid_new_privileges()
    if _libc.syscall(ctypes.c_long(_SYS_LANDLOCK_RESTRICT_SELF), ruleset, 0):
        raise Unprotected(f"landlock: {_error()}")
    os.close(ruleset)


def forbid_new_privileges() -> None:
    """Prevent this process and its programs from gaining privileges. Raises Unprotected."""
    if _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise Unprotected(f"no_new_privs: {_error()}")


# ---------------------------------------------------------------------------- seccomp


def make_filter(machine: str) -> bytes:
    """Return the filter program for ``machine``; calls outside the tables fail with EPERM."""
    verdicts = [(numbers, ALLOW) for numbers in ALLOWED.values()]
    verdicts += [(numbers, refusal(number)) for numbers, number in REFUSED_AS.values()]
    return compose(machine, verdicts, GUARDED.values(), refusal())


def refusal(number: int = errno.EPERM) -> int:
    """Return the seccomp return value that makes a call fail with errno ``number``."""
    return _RET_ERRNO | number


def compose(
    machine: str,
    verdicts: Iterable[tuple[tuple[int | None, int | None], int]],
    guards: Iterable[Guard],
    otherwise: int,
) -> bytes:
    """Return a filter program as an array of struct sock_filter.

    ``verdicts`` contains calls (as numbers on each machine) with their verdicts. ``guards``
    contains calls whose verdict depends on an argument. ``otherwise`` is the verdict of all other
    calls. A call through another architecture's entry point (int 0x80, x32) kills the process,
    because its numbers have other meanings. Raises KeyError for a machine that is not in the
    tables.
    """
    column, architecture = _MACHINES[machine]
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06

    def op(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
        return struct.pack("=HBBI", code, then, otherwise, value)

    def argument(index: int, half: int = 0) -> bytes:  # half 0 is the low one (little-endian)
        return op(load, 16 + 8 * index + 4 * half)

    allow, refuse = op(give, ALLOW), op(give, refusal())
    program = [
        op(load, 4),
        op(equal, architecture, 1),
        op(give, _RET_KILL_PROCESS),
        op(load, 0),
        op(at_least, 0x40000000, 0, 1),
        op(give, _RET_KILL_PROCESS),
    ]

    def on(number: int | None, *block: bytes) -> None:
        if number is not None:
            program.extend((op(equal, number, 0, len(block)), *block))

    for numbers, verdict in verdicts:
        on(numbers[column], op(give, verdict))
    for guard in guards:
        low, high = argument(guard.argument), argument(guard.argument, 1)
        if guard.refused:  # a match jumps over the remaining checks and the permission
            count = len(guard.refused)
            tests = [op(equal, value, count - at) for at, value in enumerate(guard.refused)]
            on(guard.numbers[column], low, *tests, allow, refuse)
            continue
        if guard.values:  # a match jumps over the remaining checks and the refusal
            checks = []
            for index, values in ((guard.argument, guard.values), *guard.also):
                tests = [op(equal, one, len(values) - at) for at, one in enumerate(values)]
                checks += [argument(index), *tests, refuse]
            checks.pop()  # the call of ``on`` below appends the last ``refuse`` again
        elif guard.pairs:
            checks = [allow]
        elif guard.forbidden:
            checks = [low, op(any_bit, guard.forbidden, 0, 1)]
        else:
            checks = [low, op(equal, 0, 0, 2), high, op(equal, 0, 1)]
        block: list[bytes] = []
        left = 4 * len(guard.pairs) + len(checks)
        for one, other in guard.pairs:  # a match jumps to the refusal at the end
            left -= 4
            block += [low, op(equal, one, 0, 2), argument(guard.argument + guard.apart)]
            block.append(op(equal, other, left))
        on(guard.numbers[column], *block, *checks, refuse, allow)
    return b"".join((*program, op(give, otherwise)))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def set_filter(program: bytes) -> None:
    """Apply a filter program to the calling thread and its descendants. Raises Unprotected."""
    code = ctypes.create_string_buffer(program, len(program))
    head = _Program(len(program) // 8, ctypes.addressof(code))
    if _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(head), 0, 0):
        raise Unprotected(f"seccomp: {_error()}")


def _error() -> str:
    return os.strerror(ctypes.get_errno())


# ---------------------------------------------------------------------------- user, capabilities


def become(user: int, *, keep_reading: bool) -> None:
    """Change permanently to the user and group ``user``.

    ``keep_reading`` keeps the capability to read files regardless of permissions. It is needed if
    the standard library is below a folder that only the service's user may enter. Landlock limits
    this capability.
    """
    if keep_reading:
        _prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    try:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    except OSError as error:
        raise Unprotected(f"user {user}: {error.strerror}") from None


def _keep_capabilities(kept: int) -> None:
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    if _libc.capset(header, struct.pack("=6I", kept, kept, 0, 0, 0, 0)):
        raise Unprotected(f"capabilities: {_error()}")


def readable_by_all(path: str) -> bool:
    """Return whether file permissions let every user read ``path``."""
    place = Path(path)
    try:
        return all(folder.stat().st_mode & 0o001 for folder in place.parents) and bool(
            place.stat().st_mode & 0o004
        )
    except OSError:
        return False


# ---------------------------------------------------------------------------- all layers


@dataclass(frozen=True)
class Armour:
    """The protections that a child applies.

    ``ruleset`` (a descriptor) is None if the machine has no landlock, and ``program`` is None if it
    has no seccomp. The caller decides whether answers may run without them.
    """

    caps: Caps
    ruleset: int | None
    program: bytes | None
    keep_reading: bool = False

    def put_on(self, parent: int, user: int | None) -> None:
        """Apply all protections to the calling process permanently.

        The order matters, because some protections prevent others from being set. From then on, the
        calling process dies together with the process ``parent``. ``user`` is None if the service
        cannot change users. Closes the ruleset. Raises Unprotected, or OSError.
        """
        offer_to_oom_killer()
        _set_limits(self.caps)
        if user is not None:
            become(user, keep_reading=self.keep_reading)
        _keep_capabilities(1 << _CAP_DAC_READ_SEARCH if user and self.keep_reading else 0)
        _prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # no core dump, no inspection by other processes
        # This must come after the change of user, which resets the setting. If the parent has
        # already ended, no signal is sent, so the parent is checked.
        _prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            raise Unprotected("the warm process has ended")
        forbid_new_privileges()
        if self.ruleset is not None:
            restrict(self.ruleset)
        if self.program is not None:
            set_filter(self.program)


def offer_to_oom_killer() -> None:
    """Make the kernel kill this process before the service if memory runs out."""
    with suppress(OSError):  # ignore failures, because the memory limit works without this setting
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def last_resort_s(cpu_s: float) -> int:
    """Return the CPU limit for the kernel in whole seconds, in case ``cpu_s`` is not enforced."""
    return math.ceil(2 * cpu_s) + 1


def _set_limits(caps: Caps) -> None:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    in_use = int(pages) * resource.getpagesize()
    limits = {
        resource.RLIMIT_CPU: last_resort_s(caps.cpu_s),
        # memory inherited from the parent does not count
        resource.RLIMIT_AS: in_use + caps.memory_bytes,
        resource.RLIMIT_NOFILE: caps.open_files,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for which, most in limits.items():
        hard = resource.getrlimit(which)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (value, value))


def _attempts() -> Sequence[tuple[str, Callable[[], object]]]:
    """Return pairs of a name and a harmless action that raises OSError in a protected process."""
    parent = os.getppid()
    return (
        ("reading a system file", lambda: os.close(os.open("/etc/passwd", os.O_RDONLY))),
        ("reading /proc", lambda: os.close(os.open("/proc/self/environ", os.O_RDONLY))),
        ("listing a folder", lambda: os.listdir("/")),
        ("opening for writing", lambda: os.close(os.open("/dev/null", os.O_WRONLY))),
        ("internet sockets", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()),
        ("local sockets", lambda: socket.socket(socket.AF_UNIX).close()),
        ("signals to others", lambda: os.kill(parent, 0)),
        ("making processes", _fork),
        ("running programs", _run_program),
    )


def _run_program() -> None:
    """Try to run a program.

    A successful call would replace this process. The call therefore has an argument that is too
    long, so that it fails even if programs may be run.
    """
    try:
        os.execv(sys.executable, ["python", "x" * _TOO_LONG_CHARS])  # noqa: S606
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise


def _fork() -> None:
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)


def probe() -> list[str]:
    """Try forbidden actions in this protected process; return the names of those that succeeded."""
    possible = []
    for name, attempt in _attempts():
        try:
            attempt()
        except OSError:
            continue
        possible.append(name)
    return possible
