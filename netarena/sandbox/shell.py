"""Sandbox for one shell command line from an agent, in a network namespace.

``run`` blocks, because it is meant for a process that serves a single episode. It starts
bubblewrap, which gives the command a process namespace and a root with only the system's programs
and small temporary folders. ``run`` pauses bubblewrap until the limits are set, resumes it, and
returns when every process of the command has ended. There are five layers:

* namespaces: the machine's processes, files, host name and message queues are not visible,
* capabilities: ``NET_ADMIN`` and ``NET_RAW`` in the given network namespace, otherwise none,
* seccomp: refuses the calls of ``REFUSED`` and ``GUARDED`` (namespaces, mounts, tracing, keys and
  similar calls). It refuses sockets outside ``_FAMILIES``, because vsock ignores namespaces,
* kernel limits: CPU time, memory, processes, files and their size,
* checks every ``TICK_S``: total memory, files in the temporary folders, and the caller's own
  checks.

``docs/sandbox.md`` lists limits and remaining risks, and ``docs/evidence/sandbox-walls.md``
describes each protection.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import math
import os
import platform
import re
import resource
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from netarena.errors import EnvironmentFailed
from netarena.sandbox import namespace, protection, syntax

__all__ = [
    "CommandResult",
    "Room",
    "ShellLimits",
    "available",
    "command_environment",
    "entered",
    "plain",
    "run",
]

#: Interval in s between checks of a running command. Only kernel limits apply between checks.
TICK_S = 0.02
#: Signals that ask a command to end when its time is over, and the pause in s after each signal.
#: ping prints its statistics on SIGINT; background processes react to SIGTERM.
ASKS = ((signal.SIGINT, 0.5), (signal.SIGTERM, 0.5))
#: Time limit in s for the setup of the sandbox, which usually takes 15 ms.
_START_S = 30.0
#: Time limit in s from SIGKILL to the end of all processes, each of which must free its memory.
END_S = 40.0
_CHUNK_BYTES = 1 << 16
#: A command is killed if its output exceeds the maximum stored output by this factor.
MOST_OUTPUTS = 256
NICENESS = 5  # lower priority than the process that grades
MOST_FILES = 4096  # in a temporary folder; limited because an empty file uses 1 KB of kernel memory
_CLONE_NEWNET = 0x40000000

#: Refused calls, which network diagnosis does not need: name -> number on x86_64 and on aarch64.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # calls that create or enter other namespaces and root folders
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "quotactl": (179, 60),
    # calls that affect other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # calls of other kernel interfaces
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "syslog": (103, 116),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    # calls that allocate memory that no per-process limit includes
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "mq_open": (240, 180),
}
#: Calls that are refused with ENOSYS. The C library then uses other calls that the filter can
#: inspect.
ABSENT = {"clone3": (435, 435)}
#: Calls that return success without effect. The root user of a user namespace may not change its
#: groups, so programs that drop privileges would otherwise fail at ``setgroups``. The scheduler
#: gives each session an equal share of the processors (sched(7), autogroup), so a command must not
#: create sessions.
PRETENDED = {"setgroups": (116, 159), "setsid": (112, 157)}
#: Flags of cgroup, uts, ipc, user, pid, net and mount namespaces.
_CLONE_NAMESPACES = 0x7E020000
#: Permitted address families: unix, inet, inet6, netlink, packet.
_FAMILIES = (1, 2, 10, 16, 17)
#: Refused pairs of family and protocol: IPsec policies, which can forward and drop packets
#: independently of routes and filters.
_PROTOCOLS = ((16, 6),)
#: Refused pairs of level and option of setsockopt. Packet-socket rings and forced buffer sizes use
#: memory that no limit counts. The legacy versions of iptables, ip6tables, arptables and ebtables
#: create tables that nftables does not list.
_OPTIONS = (
    *((263, 5), (263, 13), (1, 32), (1, 33)),
    *((0, 64), (41, 64), (0, 96), (0, 128)),
)
GUARDED: dict[str, protection.Guard] = {
    "clone": protection.Guard((56, 220), 0, forbidden=_CLONE_NAMESPACES),
    "socket": protection.Guard((41, 198), 0, values=_FAMILIES, pairs=_PROTOCOLS, apart=2),
    "setsockopt": protection.Guard((54, 208), 1, pairs=_OPTIONS),
}

#: The files below /etc that iproute2, iptables and the C library read.
ETC = (
    "alternatives",
    "ethertypes",
    "iproute2",
    "ld.so.cache",
    "nsswitch.conf",
    "protocols",
    "services",
    "xtables.conf",
)
#: Sysctls below /proc/sys/net that apply to the whole machine.
_MACHINE_WIDE = ("/proc/sys/net/netfilter/nf_hooks_lwtunnel",)
_CPUS = tuple(f"cpu{number}" for number in range(os.cpu_count() or 1))
#: Files of /proc -> replacement text that programs can parse. The original files show the activity
#: of the whole kernel, including the other machines of the emulated network.
_MASKED: dict[str, str] = {
    "loadavg": "0.00 0.00 0.00 1/1 1\n",
    "stat": "".join(f"{name} 0 0 0 0 0 0 0 0 0 0\n" for name in ("cpu ", *_CPUS))
    + "intr 0\nctxt 0\nbtime 0\nprocesses 0\nprocs_running 1\nprocs_blocked 0\nsoftirq 0\n",
    **dict.fromkeys(
        ("buddyinfo", "diskstats", "interrupts", "key-users", "latency_stats", "locks"), ""
    ),
    **dict.fromkeys(("sched_debug", "schedstat", "slabinfo", "softirqs", "vmstat", "zoneinfo"), ""),
    **{f"pressure/{name}": "" for name in ("cpu", "io", "irq", "memory")},
    "sys/fs/dentry-state": "0\t0\t45\t0\t0\t0\n",
    "sys/fs/file-nr": "0\t0\t0\n",
    "sys/fs/inode-nr": "0\t0\n",
    "sys/fs/inode-state": "0\t0\t0\t0\t0\t0\t0\n",
}
TOP = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
_SCRATCH = "/tmp"  # noqa: S108 -- the sandbox's own folder
SCRATCH_BYTES = 8 << 20
_TEMPORARY = {_SCRATCH: SCRATCH_BYTES, "/run": 1 << 20, "/dev/shm": 1 << 20}  # noqa: S108 -- the sandbox's own folder
SHELL_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": _SCRATCH,
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
_PRELOADED = re.compile(r"^(LD_PRELOAD|_STDBUF_\w)=(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class ShellLimits:
    """Limits of one command.

    ``memory_bytes`` limits the address space of each process and the memory of all processes
    together. ``address_bytes`` sets a separate limit on the address space, because Go programs
    reserve far more than they use. ``processes`` limits the processes and threads of the whole user
    namespace, including the caller. ``file_bytes`` is the maximum size of a file. Only the first
    and last parts of the output are stored, up to ``output_bytes`` in total.
    """

    wall_s: float = 15.0
    cpu_s: float = 15.0  # limit for each process
    memory_bytes: int = 256 << 20
    processes: int = 64
    file_bytes: int = 8 << 20
    open_files: int = 256
    output_bytes: int = 64 << 10
    address_bytes: int | None = None


@dataclass(frozen=True)
class Room:
    """Files and folders that a command gets in addition to the system's programs."""

    #: Name in the scratch directory -> read-only content.
    files: Mapping[str, str] = field(default_factory=dict)
    #: Name below ``/usr/local/bin``, which comes first in ``PATH`` -> path of a read-only program.
    programs: Mapping[str, Path] = field(default_factory=dict)
    #: Absolute path in /etc or /usr/local -> read-only text (may be a program).
    texts: Mapping[str, str] = field(default_factory=dict)
    #: Absolute path -> a folder that is mounted there read-only.
    views: Mapping[str, Path] = field(default_factory=dict)
    #: Absolute path -> a folder that is mounted there and is writable for the command.
    folders: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CommandResult:
    """Result of a command.

    ``output`` is the standard output and error in order, as text without control characters.
    ``exit`` is the status (128 + n if signal n ended the command). It is None if the command was
    stopped because its time was over (``timed_out``) or for another reason (``stopped``).
    """

    output: str
    exit: int | None
    timed_out: bool = False
    stopped: str = ""

    @property
    def told(self) -> str:
        """Return the output; if the command was stopped or failed, a last line gives the reason."""
        if self.stopped:
            note = f"[stopped: {self.stopped}]"
        elif self.exit:
            note = f"[exit status {self.exit}]"
        else:
            return self.output
        gap = "" if not self.output or self.output.endswith("\n") else "\n"
        return f"{self.output}{gap}{note}\n"


def available() -> str:
    """Return the reason why commands cannot run on this machine, or "" if no reason is known.

    The function only checks for the required files and does not run a command.
    """
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (apt-get install bubblewrap)"
    try:
        _filter()
    except KeyError:
        return f"there is no seccomp filter for {platform.machine()}"
    return ""


class Clock:
    """Time limit of one command.

    When the time is over, ``send`` sends the signals of ``ASKS`` to the command.
    """

    def __init__(self, wall_s: float, send: Callable[[int], object]) -> None:
        """Start the clock."""
        self._wall_s = wall_s
        self._send = send
        self._asks = iter(ASKS)
        self._due = time.monotonic() + wall_s
        #: The reason why the command was asked to end; "" before that.
        self.over = ""

    def runs_out(self) -> bool:
        """Send the next signal if it is due. Return whether the command ignored all signals."""
        if (now := time.monotonic()) < self._due:
            return False
        self.over = f"it ran for {self._wall_s:g} s"
        number, wait_s = next(self._asks, (0, 0.0))
        if number:
            self._send(number)
            self._due = now + wait_s
        return not number


def command_environment() -> dict[str, str]:
    """Return a command's initial environment, with variables that enable line buffering.

    With line buffering, programs write to a pipe line by line, as they do to a terminal. A process
    that forks commands calls this function once.
    """
    return {**SHELL_ENVIRONMENT, "PYTHONUNBUFFERED": "1", **_line_buffering()}


@cache
def _line_buffering() -> dict[str, str]:
    """Return the environment variables of stdbuf, which set line buffering in C programs.

    The result is empty if this machine has no stdbuf that commands can see.
    """
    try:
        told = subprocess.run(
            ["stdbuf", "-oL", "env"],  # noqa: S607 -- found in PATH, as a command would find it
            env=SHELL_ENVIRONMENT,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_START_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    found = dict(_PRELOADED.findall(told))
    return found if found.get("LD_PRELOAD", "").startswith("/usr/") else {}


def run(  # noqa: PLR0913 -- the parts of a sandbox
    command: str,
    *,
    netns: int | None = None,
    hostname: str = "sandbox",
    limits: ShellLimits | None = None,
    watch: Callable[[int], str] | None = None,
    room: Room | None = None,
    capable: bool = True,
) -> CommandResult:
    """Run ``command`` with bash in the network namespace of descriptor ``netns``.

    Bash parses the whole command before it runs any of it (``syntax``).

    With ``netns``, the caller must have all capabilities in the user namespace that owns ``netns``.
    The caller must not run as the machine's root user, because the kernel does not limit the number
    of root's processes. The command runs in that user namespace, with two of its capabilities if
    ``capable``, otherwise with none. Without ``netns`` the command has an empty network namespace
    and no capability, and any user may call ``run``. ``room`` adds files and programs.

    ``watch`` is called every 20 ms with the id of a process of the sandbox. Its ``/proc/PID/net``
    is the command's network. If ``watch`` returns a text, the command is stopped and the text
    appears in the result.

    All processes of the command have ended when this function returns. Raises EnvironmentFailed if
    the sandbox could not be created; in this case no part of the command has run.
    """
    limits = limits or ShellLimits()
    if problem := available():
        raise EnvironmentFailed(f"the sandbox could not be started: {problem}", proven_ours=True)
    if "\0" in command or len(command.encode("utf-8", "replace")) > LONGEST_COMMAND_BYTES:
        return CommandResult("", None, stopped=NO_COMMAND)
    with contextlib.ExitStack() as stack:
        sandbox = _Sandbox(stack, limits, watch, netns)
        with entered(netns):
            sandbox.start(hostname, command, room or Room(), capable=capable)
        return sandbox.finish()


def user_namespace(stack: contextlib.ExitStack, netns: int | None) -> int | None:
    """Return a descriptor of the user namespace that owns ``netns``, open until ``stack`` closes.

    Returns None if this is the caller's user namespace, or if ``netns`` is None. Raises
    EnvironmentFailed.
    """
    if netns is None:
        return None
    try:
        found = namespace.owner(netns)
    except OSError as error:
        problem = f"the owner of a network namespace is not available: {error.strerror}"
        raise EnvironmentFailed(problem, proven_ours=True) from None
    if found is not None:
        stack.callback(os.close, found)
    return found


@contextlib.contextmanager
def entered(netns: int | None) -> Iterator[None]:
    """Move this thread into the network namespace of a descriptor (context manager).

    With None, the thread stays where it is. Raises EnvironmentFailed if the move is not permitted.
    """
    if netns is None:
        yield
        return
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _set_namespace(netns)
        try:
            yield
        finally:
            _set_namespace(own)
    finally:
        os.close(own)


_libc = ctypes.CDLL(None, use_errno=True)
LONGEST_COMMAND_BYTES = 100_000  # the kernel's limit for one argument is 128 KiB
NO_COMMAND = "the command is too long or holds a null character"


def _set_namespace(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        problem = os.strerror(ctypes.get_errno())
        raise EnvironmentFailed(f"cannot enter a network namespace: {problem}", proven_ours=True)


@cache
def _filter() -> bytes:
    verdicts = [(numbers, protection.refusal()) for numbers in REFUSED.values()]
    verdicts += [(numbers, protection.refusal(errno.ENOSYS)) for numbers in ABSENT.values()]
    verdicts += [(numbers, protection.refusal(0)) for numbers in PRETENDED.values()]
    return protection.compose(platform.machine(), verdicts, GUARDED.values(), protection.ALLOW)


@cache
def _system_folders() -> tuple[str, ...]:
    """Return bubblewrap's arguments for visible system files: programs, libraries, tables."""
    found = ["--ro-bind", "/usr", "/usr", "--tmpfs", "/usr/local"]
    for name in TOP:
        path = Path("/", name)
        if path.is_symlink():
            found += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            found += ["--ro-bind", str(path), str(path)]
    for name in ETC:
        found += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return tuple(found)


@cache
def _masked() -> Mapping[str, str]:
    """Return the replacement texts of files in /proc that commands must not see, by path."""
    paths = {f"/proc/{name}": text for name, text in _MASKED.items()}
    return {path: text for path, text in paths.items() if Path(path).exists()}


def _arguments(  # noqa: PLR0913 -- the parts of a sandbox
    *,
    networked: bool,
    user: int | None,
    capable: bool,
    hostname: str,
    room: Room,
    texts: Mapping[str, int],
    masks: Mapping[str, int],
) -> list[str]:
    """Return bubblewrap's arguments, without the command and without most descriptors.

    ``user`` is the user namespace to enter, if it is not the caller's. ``texts`` maps paths to open
    descriptors of the texts in ``room``, and ``masks`` maps paths to descriptors of the texts of
    ``_masked``.
    """
    line = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent"]
    # the command itself is process 1, because bubblewrap adds no process of its own
    line.append("--as-pid-1")
    line += ["--new-session", "--hostname", hostname, "--clearenv", "--cap-drop", "ALL"]
    if not networked:
        line += ["--unshare-user", "--unshare-net"]
    elif capable:
        line += ["--cap-add", "CAP_NET_ADMIN", "--cap-add", "CAP_NET_RAW"]
    if user is not None:
        line += ["--userns", str(user)]
    for name, value in {**command_environment(), **room.environment}.items():
        line += ["--setenv", name, value]
    line += _system_folders()
    for name, program in room.programs.items():
        line += ["--ro-bind", str(program), f"/usr/local/bin/{name}"]
    for path, content in texts.items():
        line += ["--perms", "0555", "--ro-bind-data", str(content), path]
    line += ["--remount-ro", "/usr/local"]
    # only /proc/sys/net is writable, because the other settings apply to the whole machine
    line += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
    writable = networked and capable
    line += ["--bind" if writable else "--ro-bind", "/proc/sys/net", "/proc/sys/net"]
    for name in _MACHINE_WIDE:
        line += ["--ro-bind-try", name, name]
    for path, content in masks.items():
        line += ["--perms", "0444", "--ro-bind-data", str(content), path]
    line += ["--dev", "/dev"]
    for path, most in _TEMPORARY.items():
        line += ["--size", str(most), "--tmpfs", path]
    for path, folder in room.folders.items():
        line += ["--bind", str(folder), path]
    for path, folder in room.views.items():
        line += ["--ro-bind", str(folder), path]
    # read-only, because these file systems have no size limit and could otherwise fill the memory
    return [*line, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", _SCRATCH]


def kernel_limits(limits: ShellLimits) -> list[tuple[str, int, int]]:
    """Return kernel limits as (name, number, value). Values do not exceed this process's limits."""
    found = []
    for name, which, most in (
        ("cpu", resource.RLIMIT_CPU, protection.last_resort_s(limits.cpu_s)),
        ("as", resource.RLIMIT_AS, limits.address_bytes or limits.memory_bytes),
        ("nproc", resource.RLIMIT_NPROC, limits.processes),
        ("fsize", resource.RLIMIT_FSIZE, limits.file_bytes),
        ("nofile", resource.RLIMIT_NOFILE, limits.open_files),
        ("core", resource.RLIMIT_CORE, 0),
        ("memlock", resource.RLIMIT_MEMLOCK, 1 << 20),  # enough for iptables and nft
        ("msgqueue", resource.RLIMIT_MSGQUEUE, 0),
        ("nice", resource.RLIMIT_NICE, 0),
        ("rtprio", resource.RLIMIT_RTPRIO, 0),
        ("sigpending", resource.RLIMIT_SIGPENDING, 1024),
    ):
        hard = resource.getrlimit(which)[1]
        found.append((name, which, most if hard == resource.RLIM_INFINITY else min(most, hard)))
    return found


def _without(descriptor: int | None) -> list[str]:
    """Return the beginning of a command line that closes ``descriptor`` and then runs the rest.

    Otherwise the command would inherit the descriptor of ``--userns`` from bubblewrap.
    """
    if descriptor is None:
        return []
    return ["bash", "-c", f'exec {descriptor}<&- "$@"', "bash"]


def _limited(limits: ShellLimits) -> list[str]:
    """Return the beginning of a command line that sets kernel limits and a second time limit.

    The second time limit applies inside the sandbox, in case the caller fails to enforce its own
    limit.
    """
    line = ["prlimit"]
    line += [f"--{name}={most}:{most}" for name, _, most in kernel_limits(limits)]
    asked_s = sum(wait_s for _, wait_s in ASKS)
    return [*line, "timeout", "--signal=KILL", str(math.ceil(limits.wall_s + asked_s) + 1)]


def _harmless_user() -> dict[str, Any]:
    """Return Popen arguments that run a command without a network as a user other than root.

    The kernel does not limit the number of root's processes. If this process cannot change its
    user, it does not run as root, and the result is empty.
    """
    user = protection.FIRST_USER
    if os.geteuid() or not protection.own_user_possible(user):
        return {}
    return {"user": user, "group": user, "extra_groups": []}


class _Sandbox:
    """One run of bubblewrap. The exit stack closes its descriptors and kills its processes."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        limits: ShellLimits,
        watch: Callable[[int], str] | None,
        netns: int | None,
    ) -> None:
        self._stack = stack
        self._limits = limits
        self._watch = watch
        self._networked = netns is not None
        self._user = user_namespace(stack, netns)
        self._kept = Kept(limits.output_bytes)

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe2(os.O_CLOEXEC)
        for end in ends:
            self._stack.callback(_close, end)
        return ends

    def start(self, hostname: str, command: str, room: Room, *, capable: bool) -> None:
        """Create the sandbox, set its limits, and start the command."""
        self._output, output = self._pipe()
        about, told = self._pipe()
        # bubblewrap waits for a byte from this pipe. If the byte is still unread at the end, the
        # command has not run
        self._gate, opened = self._pipe()
        program, written = self._pipe()
        os.write(written, _filter())
        os.close(written)
        line = [shutil.which("bwrap") or ""]
        texts = {path: self._file(text) for path, text in room.texts.items()}
        masks = {path: self._file(text) for path, text in _masked().items()}
        line += _arguments(
            networked=self._networked,
            user=self._user,
            capable=capable,
            hostname=hostname,
            room=room,
            texts=texts,
            masks=masks,
        )
        contents = [self._file(text) for text in room.files.values()]
        for name, content in zip(room.files, contents, strict=True):
            line += ["--perms", "0444", "--ro-bind-data", str(content), f"{_SCRATCH}/{name}"]
        line += ["--info-fd", str(told), "--block-fd", str(self._gate)]
        line += ["--seccomp", str(program), "--"]
        line += [*_without(self._user), *_limited(self._limits), *syntax.arguments(command)]
        user = {} if self._networked else _harmless_user()
        inherited = [told, self._gate, program, *contents, *texts.values(), *masks.values()]
        inherited += [] if self._user is None else [self._user]
        try:
            self._process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=inherited,
                cwd="/",
                # commands can read the environment variables of their parent processes
                env=SHELL_ENVIRONMENT,
                **user,
            )
        except OSError as error:
            raise EnvironmentFailed(
                f"the sandbox could not be started: {error}", proven_ours=True
            ) from None
        self._stack.callback(self._bury)
        for end in (output, told, program, *contents, *texts.values(), *masks.values()):
            _close(end)
        os.set_blocking(self._output, False)
        self._child = self._number(about)
        self._life = os.pidfd_open(self._child)
        self._stack.callback(os.close, self._life)
        self._yield_to_others()
        os.write(opened, b"!")

    def _file(self, text: str) -> int:
        """Return a descriptor for reading the text."""
        content = os.memfd_create("file")
        self._stack.callback(_close, content)
        os.write(content, text.encode())
        os.lseek(content, 0, os.SEEK_SET)
        return content

    def _number(self, about: int) -> int:
        """Return the id of the sandbox's first process, which bubblewrap writes to ``about``."""
        deadline = time.monotonic() + _START_S
        text = b""
        while b"}" not in text:
            if not select.select([about], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise EnvironmentFailed("bubblewrap did not start in time", proven_ours=True)
            if not (more := os.read(about, 4096)):
                self._process.wait()
                self._kept.read(self._output)
                raise EnvironmentFailed(
                    f"the sandbox could not be started: {self._kept.text()}", proven_ours=True
                )
            text += more
        return int(json.loads(text)["child-pid"])

    def _yield_to_others(self) -> None:
        # ignore failures, because the other limits work without this setting
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._child, NICENESS)
            # the kernel kills the command first if memory runs out
            Path(f"/proc/{self._child}/oom_score_adj").write_text("1000", encoding="ascii")

    def finish(self) -> CommandResult:
        """Wait until the command and all processes that it started have ended, or kill them."""
        stopped, timed_out = self._attend()
        self._kill()
        code = self._process.wait()
        self._kept.read(self._output)
        if not self._begun():
            raise EnvironmentFailed(
                f"the sandbox could not be started: {self._kept.text()}", proven_ours=True
            )
        if stopped:
            return CommandResult(self._kept.text(), None, timed_out, stopped)
        return CommandResult(self._kept.text(), code if code >= 0 else 128 - code)

    def _attend(self) -> tuple[str, bool]:
        """Read output and check limits until the command ends or must be stopped.

        Returns the reason for the stop ("" if the command has ended), and whether the reason is the
        time limit.
        """
        poll = select.poll()
        poll.register(self._life, select.POLLIN)
        poll.register(self._output, select.POLLIN)
        looked = 0.0
        clock: Clock | None = None
        started = time.monotonic()
        while True:
            events = dict(poll.poll(TICK_S * 1000))
            if self._output in events and not self._kept.read(self._output):
                # all processes have closed the output, but may still run
                poll.unregister(self._output)
            now = time.monotonic()
            over = clock.over if clock is not None else ""
            if self._life in events:
                return over, bool(over)
            if clock is None:
                if self._begun():
                    clock = Clock(self._limits.wall_s, self._send)
                elif now >= started + _START_S:
                    return "the sandbox did not start", False
                continue
            if clock.runs_out():
                return clock.over, True
            if now - looked >= TICK_S:
                looked = now
                if reason := self._excess():
                    return over or reason, bool(over)

    def _send(self, number: int) -> None:
        """Send a signal to the sandbox's first process, which forwards it to the command."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._life, number)

    def _begun(self) -> bool:
        """Return whether the sandbox is complete and the command was started."""
        unread = fcntl.ioctl(self._gate, termios.FIONREAD, bytes(4))
        return struct.unpack("i", unread) == (0,)

    def _excess(self) -> str:
        """Return the first exceeded limit that the kernel does not enforce, otherwise ""."""
        if reason := self._kept.excess():
            return reason
        root = f"/proc/{self._child}/root"
        # after the sandbox has ended, the files below ``root`` no longer exist
        with contextlib.suppress(OSError, ValueError):
            names = os.listdir(f"{root}/proc")  # noqa: PTH208 -- called every 20 ms, and Path is slower
            processes = [f"{root}/proc/{name}" for name in names if name.isdigit()]
            if reason := overuse(processes, self._limits):
                return reason
            for folder in _TEMPORARY:
                room = os.statvfs(f"{root}{folder}")
                if room.f_files - room.f_ffree > MOST_FILES:
                    return f"it made more than {MOST_FILES} files in {folder}"
        return self._watch(self._child) if self._watch is not None else ""

    def _kill(self) -> None:
        """Kill the sandbox's first process, and wait until all processes have ended.

        The kernel kills the other processes of the namespace. ``_life`` then becomes readable.
        Raises EnvironmentFailed after ``END_S``.
        """
        self._send(signal.SIGKILL)
        if not select.select([self._life], [], [], END_S)[0]:
            raise EnvironmentFailed("a command's processes did not end after SIGKILL")
        # the sandbox's first process is a child only if this process adopts orphans
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._child, os.WNOHANG)

    def _bury(self) -> None:
        if self._process.poll() is None:
            self._process.kill()  # the sandbox's other processes die with this process
            self._process.wait()


class Kept:
    """Buffer of limited size for the first and the last part of a command's output."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._half = most // 2
        self._head = bytearray()
        self._tail = bytearray()
        #: Carriage returns at the end of the output so far. They are dropped if a newline follows.
        self._returns = b""
        #: Number of bytes and of newlines that were omitted between the two parts.
        self._dropped = self._newlines = 0
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        whole = self._returns + chunk
        ended = whole.rstrip(b"\r")
        self._returns = whole[len(ended) :][-_MOST_RETURNS:]
        self._keep(_LINE_END.sub(b"\n", ended))

    def _keep(self, chunk: bytes) -> None:
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[max(room, 0) :]
        if dropped := self._tail[: max(0, len(self._tail) - self._half)]:
            del self._tail[: len(dropped)]
            self._dropped += len(dropped)
            self._newlines += dropped.count(b"\n")

    def read(self, output: int) -> bool:
        """Read the available output; return False if all processes have closed the pipe."""
        for _ in range(MOST_OUTPUTS):  # return regularly, so that limits are checked
            try:
                chunk = os.read(output, _CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            self.add(chunk)
        return True

    def excess(self) -> str:
        """Return a message if the output is larger than allowed, otherwise ""."""
        most = self._most * MOST_OUTPUTS
        return f"it wrote more than {most >> 10} KiB" if self.total > most else ""

    def text(self) -> str:
        """Return the output as text, with a note in place of the omitted lines.

        Lines are shown completely, unless a line is longer than a quarter of the limit. In lines of
        the output that look like such a note, three dots replace the ellipsis.
        """
        self._keep(self._returns.replace(b"\r", b"\n"))
        self._returns = b""
        head, tail = bytes(self._head), bytes(self._tail)
        if not self._dropped:
            return _without_notes(plain(head + tail))
        first, last = head.rfind(b"\n") + 1, tail.find(b"\n") + 1
        if 2 * first < len(head):
            first = len(head)
        if 2 * last > len(tail):
            last = 0
        is_open = not head[:first].endswith(b"\n")
        newlines = head.count(b"\n", first) + self._newlines + tail.count(b"\n", 0, last)
        if (lines := newlines - is_open) > 0:
            note = f"[… {lines} line{'s' * (lines != 1)} left out …]\n"
            note = f"\n{note}" if is_open else note
        else:
            dropped = len(head) - first + self._dropped + last
            note = f"[… {dropped} bytes left out …]" + "\n" * newlines
        return f"{_without_notes(plain(head[:first]))}{note}{_without_notes(plain(tail[last:]))}"


#: Lines that ``netarena.task.prompt.cut`` would treat as its own note about omitted lines.
_NOTE = re.compile(r"^\[… [0-9]+ (?:lines?|characters) left out …\]$", re.MULTILINE)


def _without_notes(text: str) -> str:
    """Return output in which no line looks like a note about omitted lines.

    Otherwise a command could change the number of omitted lines in later prompts.
    """
    return _NOTE.sub(lambda note: note[0].replace("…", "..."), text)


_LINE_END = re.compile(b"\r+\n|\r")
#: Maximum number of carriage returns to store while the next character is unknown.
_MOST_RETURNS = 1024


def plain(written: bytes) -> str:
    r"""Return output as text for terminals, logs and prompts, with unprintable characters escaped.

    >>> plain(b"\x1b[31mred\r\nline\x00")
    '\\x1b[31mred\nline\\x00'
    """
    text = _LINE_END.sub(b"\n", written).decode("utf-8", "replace")
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def overuse(processes: Iterable[str | Path], limits: ShellLimits) -> str:
    """Return a message about the limit that ``processes`` (folders below a /proc) exceed, or "".

    The memory limit applies to all processes together. Pages of files do not count, and shared
    pages count once for each process. The limit on CPU time applies to each process. It is checked
    here, because the kernel's own limit counts ticks, may overestimate the time, and reports no
    reason.
    """
    pages = 0
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(OSError, ValueError, IndexError):
            # fields after the name; the name may contain any character
            told = _read(f"{process}/stat").rpartition(b")")[2].split()
            if int(told[11]) + int(told[12]) > limits.cpu_s * _TICKS_PER_S:
                return f"a process used more than {limits.cpu_s:g} s of CPU time"
            pages += int(told[21])
    # the fast check includes pages of files (programs and libraries). The slow, exact check runs
    # only if the fast check finds too much memory
    if (
        pages * resource.getpagesize() > limits.memory_bytes
        and sum(map(_own_bytes, processes)) > limits.memory_bytes
    ):
        return f"it holds more than {limits.memory_bytes >> 20} MiB of memory"
    return ""


_OWN = re.compile(rb"^Rss(?:Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)


def _own_bytes(process: str | Path) -> int:
    """Return the size of a process's memory that is not backed by files, or 0 if it has ended."""
    try:
        told = _read(f"{process}/status")
    except OSError:
        return 0
    return sum(int(kib) for kib in _OWN.findall(told)) << 10


def _read(path: str) -> bytes:
    """Return a small file's content without the cost of a file object. Raises OSError.

    At most 64 KiB are read. Only more than 10,000 supplementary groups would make ``status``
    longer, and the sandbox's processes cannot set groups.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    finally:
        os.close(descriptor)


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)
