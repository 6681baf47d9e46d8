"""Attacks on the Python sandbox: what an attack can observe, and the result of the next program.

Each attack is one program, which runs in a child of a warm process. The next program runs in
another child of the same process, and must give the correct result. The sandboxed code is set up as
for an application, with networkx and with a graph in the context. The code of an attack defines
``main()``. The return value, or the status with which the answer ended, is compared with the
expected value. ``attempt(f, ...)`` returns "denied" if the system refused, otherwise the name of
the exception or ``["possible", ...]``.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import socket
import textwrap
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import netarena
from netarena.sandbox.python import PythonLimits, PythonSandbox, PythonStatus, SandboxResult

GUEST = """
import ctypes, errno, json
import networkx as nx

def load(payload):
    return nx.node_link_graph(json.loads(payload), edges="edges")

def attempt(function, *arguments):
    try:
        got = function(*arguments)
    except OSError as error:
        refused = (errno.EPERM, errno.EACCES)
        return "denied" if error.errno in refused else errno.errorcode.get(
            error.errno, type(error).__name__)
    except Exception as error:
        return type(error).__name__
    return ["possible", repr(got)[:200]]

def syscall(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    got = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    if got == -1:
        raise OSError(ctypes.get_errno(), "refused")
    return got

def call(context, request):
    names = {"attempt": attempt, "syscall": syscall, "context": context, **request["names"]}
    exec(compile(request["code"], "<answer>", "exec"), names)
    return names["main"]()
"""
GRAPH = {
    "directed": True,
    "multigraph": False,
    "graph": {},
    "nodes": [{"id": f"n{number}", "type": ["EK_PORT"]} for number in range(20)],
    "edges": [{"source": f"n{number}", "target": f"n{number + 1}"} for number in range(19)],
}
#: program run after each attack: the graph, networkx, the standard library and builtins must be
#: unchanged
HONEST = """
import collections, json, os
import networkx as nx
def main():
    path = nx.shortest_path(context, "n0", "n19")
    return [len(context), context.size(), len(path), json.loads("[1]"), sum(range(10)),
            sorted(os.environ), collections.Counter("aab").most_common(1), context.nodes["n3"]]
"""
HONEST_VALUE: Any = [20, 19, 20, [1], 45, [], [["a", 2]], {"type": ["EK_PORT"]}]

LIMITS = PythonLimits(
    cpu_s=1, memory_bytes=256 << 20, wall_s=60, result_bytes=1 << 20, result_values=10_000
)
IMPATIENT = replace(LIMITS, wall_s=1.5)  # for attacks that hang
SECRET = "correct-horse-battery-staple"  # stored in the service's environment, memory and a file
MACHINE = platform.machine()


@dataclass(frozen=True)
class Attack:
    """An attack; ``sees`` is the value that the answer reports, ``ends`` the expected status."""

    code: str
    sees: Any = None
    ends: tuple[PythonStatus, ...] = (PythonStatus.OK,)
    error: str = ""
    machines: tuple[str, ...] = ("x86_64", "aarch64")
    names: dict[str, Any] = field(default_factory=dict)


def denied(expression: str, *also: str, setup: str = "pass") -> Attack:
    """Return an attack with one call, which must be refused or raise one of the exceptions
    ``also``."""
    code = f"def main():\n    {setup}\n    return attempt(lambda: {expression})"
    return Attack(code, sees=("denied", *also))


def raw(name: str, x86_64: int, aarch64: int | None, *arguments: int) -> tuple[str, Attack]:
    """Return the name and attack of a system call that is made without a library."""
    number = x86_64 if MACHINE == "x86_64" else aarch64
    call = ", ".join(map(str, (number, *arguments)))
    machines = ("x86_64",) if aarch64 is None else ("x86_64", "aarch64")
    code = f"def main():\n    return attempt(syscall, {call})"
    return f"syscall-{name}", Attack(code, sees=("denied", "ENOSYS"), machines=machines)


def ends(code: str, *status: PythonStatus, error: str = "") -> Attack:
    return Attack(code, ends=status, error=error)


RESULT_SOCKET = """
import os, stat, time
def result_socket():
    for number in range(1024):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                return number
        except OSError:
            pass
"""

READING: dict[str, Attack] = {
    "environment": Attack(
        "import os\ndef main(): return [dict(os.environ), os.getenv('NETARENA_TEST_SECRET')]",
        sees=[{}, None],
    ),
    "environment-of-libc": Attack(
        "import ctypes\n"
        "def main():\n"
        "    getenv = ctypes.CDLL(None).getenv\n"
        "    getenv.restype = ctypes.c_char_p\n"
        "    return [getenv(name) for name in (b'NETARENA_TEST_SECRET', b'PATH', b'HOME')]",
        sees=[None, None, None],
    ),
    "proc-self-environ": denied("open('/proc/self/environ').read()"),
    "proc-parent-environ": denied(
        "open(f'/proc/{os.getppid()}/environ').read()", setup="import os"
    ),
    "proc-parent-mem": denied("open(f'/proc/{os.getppid()}/mem', 'rb')", setup="import os"),
    "proc-self-mem": denied("open('/proc/self/mem', 'rb')"),
    "proc-self-maps": denied("open('/proc/self/maps')"),
    "proc-parent-cmdline": denied("open(f'/proc/{os.getppid()}/cmdline')", setup="import os"),
    "proc-service-fd": denied("os.listdir(f'/proc/{SERVICE}/fd')", setup="import os"),
    "passwd": denied("open('/etc/passwd').read()"),
    "shadow": denied("open('/etc/shadow').read()"),
    "hostname-file": denied("open('/etc/hostname').read()"),
    "raw-open": denied("os.open('/etc/passwd', os.O_RDONLY)", setup="import os"),
    "path-then-read": denied(
        "os.read(os.open('/etc/passwd', os.O_PATH), 9)", "EBADF", setup="import os"
    ),
    "path-then-reopen": denied(
        "os.open('passwd', os.O_RDONLY, dir_fd=os.open('/etc', os.O_PATH))", setup="import os"
    ),
    "dot-dot": denied(
        "open(json.__path__[0] + '/../../../../../../etc/passwd')", "ENOENT", setup="import json"
    ),
    "project-source": denied("open(PROJECT + '/model.py').read()"),
    "project-listing": denied("os.listdir(PROJECT)", setup="import os"),
    "journal": denied("open(JOURNAL).read()"),
    "journal-by-mmap": denied(
        "mmap.mmap(os.open(JOURNAL, os.O_RDONLY), 0, prot=mmap.PROT_READ)", setup="import mmap, os"
    ),
    "journal-through-root": denied("open('/proc/self/root' + JOURNAL).read()"),
    "tmp-listing": denied("os.listdir('/tmp')", setup="import os"),
    "root-listing": denied("os.listdir('/')", setup="import os"),
    "site-packages-listing": denied("os.listdir(SITE)", setup="import os"),
    "library-listing": denied("os.listdir(os.path.dirname(os.__file__))", setup="import os"),
    **{
        f"below-the-library-{name}": denied(
            f"os.listdir(os.path.dirname(os.__file__) + '/{name}')", "ENOENT", setup="import os"
        )
        for name in ("site-packages", "dist-packages", "ensurepip")
    },
    "shared-memory-listing": denied("os.listdir('/dev/shm')", setup="import os"),
    "glob-finds-nothing": Attack(
        "import glob\ndef main(): return glob.glob('/*') + glob.glob('/etc/*')", sees=[]
    ),
    "device": denied("open('/dev/urandom', 'rb').read(1)"),
    "terminal": denied("open('/dev/tty', 'rb')"),
    "kernel-log": denied("open('/proc/kmsg', 'rb')"),
    "readlink": denied("os.readlink('/proc/self/exe')", setup="import os"),
    "library-is-readable": Attack(
        "import json, wave, xml.dom.minidom\ndef main(): return open(json.__file__).read(3)",
        sees='r""',
    ),
}

WRITING: dict[str, Attack] = {
    "write-tmp": denied("open(TARGET, 'w')"),
    "append-journal": denied("open(JOURNAL, 'a')"),
    "read-write-journal": denied("open(JOURNAL, 'r+')"),
    "truncate-journal": denied("os.truncate(JOURNAL, 0)", setup="import os"),
    "truncating-read": denied("os.open(JOURNAL, os.O_RDONLY | os.O_TRUNC)", setup="import os"),
    "creating-read": denied("os.open(TARGET, os.O_RDONLY | os.O_CREAT)", setup="import os"),
    "unnamed-file": denied("os.open('/tmp', os.O_TMPFILE | os.O_RDWR)", setup="import os"),
    "write-library": denied("open(json.__file__, 'a')", setup="import json"),
    "write-networkx": denied("open(nx.__file__, 'a')", setup="import networkx as nx"),
    "write-null": denied("open('/dev/null', 'w')"),
    "write-shm": denied("open('/dev/shm/netarena-attack', 'w')"),
    "unlink": denied("os.unlink(JOURNAL)", setup="import os"),
    "rename": denied("os.rename(JOURNAL, TARGET)", setup="import os"),
    "mkdir": denied("os.mkdir(TARGET)", setup="import os"),
    "symlink": denied("os.symlink('/etc/passwd', TARGET)", setup="import os"),
    "hard-link": denied("os.link(JOURNAL, TARGET)", setup="import os"),
    "fifo": denied("os.mkfifo(TARGET)", setup="import os"),
    "chmod": denied("os.chmod(JOURNAL, 0o777)", setup="import os"),
    "chown": denied("os.chown(JOURNAL, os.getuid(), -1)", setup="import os"),
    "utime": denied("os.utime(JOURNAL)", setup="import os"),
    "xattr": denied("os.setxattr(JOURNAL, 'user.x', b'1')", setup="import os"),
    "temporary-file": denied(
        "tempfile.TemporaryFile()", "FileNotFoundError", "ENOENT", setup="import tempfile"
    ),
    "raw-openat2": Attack(
        "import ctypes\n"
        "def main():\n"
        "    how = (ctypes.c_uint64 * 3)(0, 0, 0)\n"
        "    return attempt(syscall, 437, -100, ctypes.addressof(\n"
        "        ctypes.create_string_buffer(b'/etc/passwd')), ctypes.addressof(how), 24)",
        sees=("ENOSYS",),
    ),
}

_SOCKETS = {
    "tcp": "socket.AF_INET, socket.SOCK_STREAM",
    "udp": "socket.AF_INET, socket.SOCK_DGRAM",
    "tcp6": "socket.AF_INET6, socket.SOCK_STREAM",
    "udp6": "socket.AF_INET6, socket.SOCK_DGRAM",
    "unix": "socket.AF_UNIX, socket.SOCK_STREAM",
    "unix-datagram": "socket.AF_UNIX, socket.SOCK_DGRAM",
    "netlink": "socket.AF_NETLINK, socket.SOCK_RAW, 0",
    "raw": "socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP",
    "packet": "socket.AF_PACKET, socket.SOCK_RAW, 3",
    "vsock": "socket.AF_VSOCK, socket.SOCK_STREAM",
    "kernel-crypto": "socket.AF_ALG, socket.SOCK_SEQPACKET",
}
NETWORK: dict[str, Attack] = {
    **{
        f"socket-{name}": denied(f"socket.socket({kind})", setup="import socket")
        for name, kind in _SOCKETS.items()
    },
    "socketpair": denied("socket.socketpair()", setup="import socket"),
    "connect-to-service": denied(
        "socket.create_connection(('127.0.0.1', PORT), 1)", setup="import socket"
    ),
    "resolve": denied(
        "socket.getaddrinfo('localhost', 80)",
        "gaierror",
        "None",
        "EADDRINUSE",
        setup="import socket",
    ),
    "http": denied(
        "urllib.request.urlopen(f'http://127.0.0.1:{PORT}/', timeout=1)",
        "URLError",
        setup="import urllib.request",
    ),
    "result-socket-passes-descriptors": Attack(
        RESULT_SOCKET + "import socket\n"
        "def main():\n"
        "    s = socket.socket(fileno=result_socket(), family=1, type=1, proto=0)\n"
        "    got = [attempt(s.send, b'x'), attempt(s.recv, 1), attempt(s.sendmsg, [b'x']),\n"
        "           attempt(s.recvmsg, 1), attempt(s.getpeername), attempt(s.shutdown, 1)]\n"
        "    s.detach()\n"
        "    return got",
        sees=["denied"] * 6,
    ),
}

PROCESSES: dict[str, Attack] = {
    "subprocess": denied("subprocess.run(['/bin/true'])", setup="import subprocess"),
    "os-system": Attack(  # 127 << 8: the shell could not be executed
        "import os\ndef main(): return os.system('true')", sees=(-1, 32512)
    ),
    "posix-spawn": denied("os.posix_spawn('/bin/true', ['true'], {})", setup="import os"),
    "popen": denied("os.popen('id').read()", setup="import os"),
    "fork": denied("os.fork()", setup="import os"),
    "forkpty": denied("os.forkpty()", "ENOENT", setup="import os"),
    "exec": denied("os.execv('/bin/sh', ['sh', '-c', 'id'])", setup="import os"),
    "exec-by-descriptor": denied(
        "os.execve(os.open('/bin/true', os.O_PATH), ['true'], {})", setup="import os"
    ),
    "thread": denied(
        "_thread.start_new_thread(print, ())", "RuntimeError", "error", setup="import _thread"
    ),
    "thread-pool": denied(
        "concurrent.futures.ThreadPoolExecutor(2).submit(len, '').result(1)",
        "RuntimeError",
        setup="import concurrent.futures",
    ),
    "multiprocessing": denied(
        "multiprocessing.get_context('fork').Process(target=len).start()",
        setup="import multiprocessing",
    ),
    "process-pool": denied(
        "concurrent.futures.ProcessPoolExecutor(2).submit(len, '').result(1)",
        "ImportError",
        "OSError",
        "NotImplementedError",
        setup="import concurrent.futures",
    ),
    "fork-bomb": Attack(
        "import os\n"
        "def main():\n"
        "    made = 0\n"
        "    for _ in range(200):\n"
        "        try:\n"
        "            made += os.fork() >= 0\n"
        "        except OSError:\n"
        "            pass\n"
        "    return made",
        sees=0,
    ),
    "wait-for-siblings": denied("os.waitpid(-1, os.WNOHANG)", setup="import os"),
    "libc-fork": Attack("import ctypes\ndef main(): return ctypes.CDLL(None).fork()", sees=-1),
    "libc-system": Attack(
        "import ctypes\ndef main(): return ctypes.CDLL(None).system(b'true')", sees=(-1, 32512)
    ),
}

OTHERS: dict[str, Attack] = {
    **{
        f"kill-{name}": denied(f"os.kill({whom}, signal.SIGKILL)", setup="import os, signal")
        for name, whom in {
            "warm-process": "os.getppid()",
            "service": "SERVICE",
            "everything": "-1",
            "own-group": "0",
            "init": "1",
            "itself": "os.getpid()",
        }.items()
    },
    "kill-group": denied("os.killpg(os.getppid(), 9)", setup="import os"),
    "stop-warm-process": denied("os.kill(os.getppid(), 19)", setup="import os"),
    # would wake answers that wait on the same page of the same file
    "futex-shared": raw("futex", 202, 98, 0, 1, 1, 0, 0, 0)[1],
    "futex-inheriting-priority": raw("futex", 202, 98, 0, 128 | 6, 0, 0, 0, 0)[1],
    # CPU clocks of another process are negative numbers, here those of process 1
    **dict(
        (
            raw("clock_gettime", 228, 113, ~1 << 3 | 2, 0),
            raw("clock_getres", 229, 114, ~1 << 3 | 2, 0),
            raw("clock_nanosleep", 230, 115, ~1 << 3 | 2, 0, 0, 0),
        )
    ),
    "clocks-of-its-own": Attack(
        "import time\n"
        "def main():\n"
        "    own = time.pthread_getcpuclockid(__import__('threading').get_ident())\n"
        "    return [time.process_time() > 0, time.thread_time() > 0, time.monotonic() > 0,\n"
        "            attempt(time.clock_gettime, own), time.sleep(0.01)]",
        sees=[True, True, True, "denied", None],
    ),
    "signal-queue": raw("rt_sigqueueinfo", 129, 138, 1, 9, 0)[1],
    "pidfd-of-service": denied("os.pidfd_open(SERVICE)", setup="import os"),
    "priority-of-service": denied(
        "os.setpriority(os.PRIO_PROCESS, SERVICE, 19)", setup="import os"
    ),
    "affinity-of-service": denied("os.sched_setaffinity(SERVICE, {0})", setup="import os"),
    "signals-by-ownership": denied(
        "fcntl.fcntl(result_socket(), fcntl.F_SETOWN, SERVICE)",
        setup=(RESULT_SOCKET + "import fcntl").replace("\n", "\n    "),
    ),
    "non-blocking-result": denied(
        "fcntl.fcntl(result_socket(), fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)",
        setup=(RESULT_SOCKET + "import fcntl").replace("\n", "\n    "),
    ),
    "limit-of-service": denied(
        "resource.prlimit(SERVICE, resource.RLIMIT_CPU, (1, 1))", setup="import resource"
    ),
}

PRIVILEGE: dict[str, Attack] = dict(
    [
        raw("ptrace-attach", 101, 117, 16, 1, 0, 0),
        raw("ptrace-traceme", 101, 117, 0, 0, 0, 0),
        raw("process_vm_readv", 310, 270, 1, 0, 0, 0, 0, 0),
        raw("process_vm_writev", 311, 271, 1, 0, 0, 0, 0, 0),
        raw("process_madvise", 440, 440, 3, 0, 0, 0, 0),
        raw("kcmp", 312, 272, 1, 2, 0, 0, 0),
        raw("pidfd_open", 434, 434, 1, 0),
        raw("pidfd_getfd", 438, 438, 3, 0, 0),
        raw("pidfd_send_signal", 424, 424, 3, 9, 0, 0),
        raw("kill", 62, 129, 1, 9),
        raw("tkill", 200, 130, 1, 9),
        raw("tgkill", 234, 131, 1, 1, 9),
        raw("fork", 57, None),
        raw("vfork", 58, None),
        raw("clone", 56, 220, 17, 0, 0, 0, 0),
        raw("clone3", 435, 435, 0, 0),
        raw("execve", 59, 221, 0, 0, 0),
        raw("execveat", 322, 281, -100, 0, 0, 0, 0),
        raw("socket", 41, 198, 2, 1, 0),
        raw("socketpair", 53, 199, 1, 1, 0, 0),
        raw("pipe2", 293, 59, 0, 0),
        raw("memfd_create", 319, 279, 0, 0),
        raw("memfd_secret", 447, 447, 0),
        raw("userfaultfd", 323, 282, 0),
        raw("io_uring_setup", 425, 425, 1, 0),
        raw("io_uring_enter", 426, 426, 3, 0, 0, 0, 0),
        raw("io_uring_register", 427, 427, 3, 0, 0, 0),
        raw("io_setup", 206, 0, 1, 0),
        raw("bpf", 321, 280, 0, 0, 0),
        raw("perf_event_open", 298, 241, 0, 0, 0, 0, 0),
        raw("keyctl", 250, 219, 0, 0, 0, 0, 0),
        raw("add_key", 248, 217, 0, 0, 0, 0, 0),
        raw("request_key", 249, 218, 0, 0, 0, 0),
        raw("mount", 165, 40, 0, 0, 0, 0, 0),
        raw("umount2", 166, 39, 0, 0),
        raw("fsopen", 430, 430, 0, 0),
        raw("open_tree", 428, 428, -100, 0, 1),
        raw("pivot_root", 155, 41, 0, 0),
        raw("chroot", 161, 51, 0),
        raw("chdir", 80, 49, 0),
        raw("unshare-user", 272, 97, 0x10000000),
        raw("unshare-network", 272, 97, 0x40000000),
        raw("setns", 308, 268, 0, 0),
        raw("personality", 135, 92, 0x0040000),
        raw("prctl-dumpable", 157, 167, 4, 1, 0, 0, 0),
        raw("prctl-death-signal", 157, 167, 1, 0, 0, 0, 0),
        raw("seccomp", 317, 277, 1, 0, 0),
        raw("landlock_restrict_self", 446, 446, 0, 0),
        raw("setuid", 105, 146, 0),
        raw("setresuid", 117, 147, 0, 0, 0),
        raw("setgid", 106, 144, 0),
        raw("setgroups", 116, 159, 0, 0),
        raw("capset", 126, 91, 0, 0),
        raw("setrlimit", 160, 164, 0, 0),
        raw("prlimit64-set", 302, 261, 0, 0, 1, 0),
        raw("prlimit64-set-high-half", 302, 261, 0, 0, 1 << 40, 0),
        raw("setsid", 112, 157),
        raw("setpgid", 109, 154, 0, 1),
        raw("shmget", 29, 194, 0, 4096, 0o1600),
        raw("shmat", 30, 196, 0, 0, 0),
        raw("semget", 64, 190, 0, 1, 0o1600),
        raw("msgget", 68, 186, 0, 0o1600),
        raw("mq_open", 240, 180, 0, 0, 0, 0),
        raw("inotify_init1", 294, 26, 0),
        raw("fanotify_init", 300, 262, 0, 0),
        raw("eventfd2", 290, 19, 0, 0),
        raw("signalfd4", 289, 74, -1, 0, 8, 0),
        raw("timerfd_create", 283, 85, 1, 0),
        raw("timer_create", 222, 107, 1, 0, 0),
        raw("epoll_create1", 291, 20, 0),
        raw("open_by_handle_at", 304, 265, -100, 0, 0),
        raw("name_to_handle_at", 303, 264, -100, 0, 0, 0, 0),
        raw("splice", 275, 76, 0, 0, 1, 0, 1, 0),
        raw("sendfile", 40, 71, 1, 0, 0, 1),
        raw("copy_file_range", 326, 285, 0, 0, 1, 0, 1, 0),
        raw("dup", 32, 23, 0),
        raw("syslog", 103, 116, 3, 0, 0),
        raw("sethostname", 170, 161, 0, 0),
        raw("settimeofday", 164, 170, 0, 0),
        raw("init_module", 175, 105, 0, 0, 0),
        raw("kexec_load", 246, 104, 0, 0, 0, 0),
        raw("reboot", 169, 142, 0, 0, 0, 0),
        raw("swapon", 167, 224, 0, 0),
        raw("quotactl", 179, 60, 0, 0, 0, 0),
        raw("acct", 163, 89, 0),
        raw("mlock", 149, 228, 0, 4096),
        raw("unknown-number", 9999, 9999),
    ]
)
PRIVILEGE |= {
    "setuid-by-library": denied("os.setuid(0)", setup="import os"),
    "chroot-by-library": denied("os.chroot('/')", setup="import os"),
    "chdir-by-library": denied("os.chdir('/tmp')", setup="import os"),
    **{
        f"raise-limit-{name}": denied(
            f"resource.setrlimit(resource.{name}, (-1, -1))", "ValueError", setup="import resource"
        )
        for name in ("RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_NOFILE")
    },
    "terminal-injection": denied("fcntl.ioctl(0, 0x5412, b'x')", "ENOTTY", setup="import fcntl"),
    "ioctl-on-result": denied(
        "fcntl.ioctl(result_socket(), 0x541B, b'xxxx')",
        "ENOTTY",
        setup=(RESULT_SOCKET + "import fcntl").replace("\n", "\n    "),
    ),
    "x32-entry": Attack(
        "def main(): return syscall(0x40000000 + 39)",
        ends=(PythonStatus.CRASHED,),
        error="SIGSYS",
        machines=("x86_64",),
    ),
    "32-bit-entry": Attack(
        "import ctypes, mmap\n"
        "def main():\n"
        "    page = mmap.mmap(-1, 4096, prot=7)\n"
        "    page.write(bytes.fromhex('b814000000cd80c3'))\n"  # getpid by int 0x80
        "    at = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        "    return ctypes.CFUNCTYPE(ctypes.c_int)(at)()",
        ends=(PythonStatus.CRASHED,),
        error="SIGSYS|SIGSEGV",
        machines=("x86_64",),
    ),
    "multiprocessing-shared-memory": denied(
        "multiprocessing.shared_memory.SharedMemory(create=True, size=64)",
        setup="import multiprocessing.shared_memory",
    ),
    "multiprocessing-lock": denied("multiprocessing.Lock()", setup="import multiprocessing"),
}

EXHAUSTION: dict[str, Attack] = {
    "memory-bytearray": ends("def main(): return len(bytearray(1 << 30))", PythonStatus.MEMORY),
    "memory-growing": ends(
        "def main():\n    kept = []\n    while True: kept.append(bytearray(1 << 20))",
        PythonStatus.MEMORY,
    ),
    "memory-list": ends("def main(): return len([0] * (1 << 28))", PythonStatus.MEMORY),
    "memory-touching-list": ends(
        "def main():\n    kept = [0]\n    while True: kept += kept", PythonStatus.MEMORY
    ),
    "memory-string": ends("def main(): return len('x' * (1 << 32))", PythonStatus.MEMORY),
    "memory-mmap": Attack(
        "import mmap\ndef main(): return attempt(mmap.mmap, -1, 1 << 30)", sees=("ENOMEM",)
    ),
    "memory-private-mmaps": ends(
        "import mmap\n"
        "def main():\n"
        "    kept = []\n"
        "    while True:\n"
        "        kept.append(mmap.mmap(-1, 1 << 24, flags=mmap.MAP_PRIVATE))\n"
        "        kept[-1].write(bytes(1 << 24))",
        PythonStatus.MEMORY,
        PythonStatus.RAISED,
    ),
    "memory-dictionary": ends(
        "def main():\n    kept = {}\n    while True: kept[len(kept)] = str(len(kept)) * 1000",
        PythonStatus.MEMORY,
        PythonStatus.CPU,
    ),
    "memory-swallowed": Attack(
        "def main():\n"
        "    got = 0\n"
        "    for _ in range(10):\n"
        "        try:\n"
        "            bytearray(1 << 30)\n"
        "        except MemoryError:\n"
        "            got += 1\n"
        "    return got",
        sees=10,
    ),
    "loop": ends("def main():\n    while True: pass", PythonStatus.CPU),
    "loop-swallowing-everything": ends(
        "import signal\n"
        "def main():\n"
        "    for number in range(1, 65):\n"
        "        try:\n"
        "            signal.signal(number, signal.SIG_IGN)\n"
        "        except (OSError, ValueError):\n"
        "            pass\n"
        "    while True:\n"
        "        try:\n"
        "            while True: pass\n"
        "        except BaseException:\n"
        "            pass",
        PythonStatus.CPU,
    ),
    "loop-while-compiling": ends("while True: pass", PythonStatus.CPU),
    "regular-expression": ends(
        "import re\ndef main(): return re.match('(a+)+$', 'a' * 40 + 'b')", PythonStatus.CPU
    ),
    "big-power": ends(
        "def main(): return len(bin(7 ** (10 ** 9)))", PythonStatus.CPU, PythonStatus.MEMORY
    ),
    "big-sum": ends("def main(): return sum(range(10 ** 12))", PythonStatus.CPU),
    "sorting-key": ends(
        "class Slow:\n"
        "    def __lt__(self, other):\n"
        "        while True: pass\n"
        "def main(): return sorted([Slow(), Slow()])",
        PythonStatus.CPU,
    ),
    "sleep": ends("import time\ndef main(): time.sleep(3600)", PythonStatus.WALL),
    "sleep-on-lock": ends(
        "import _thread\n"
        "def main():\n    lock = _thread.allocate_lock()\n    lock.acquire()\n    lock.acquire()",
        PythonStatus.WALL,
    ),
    "many-files": Attack(
        "import json, os\n"
        "def main():\n"
        "    opened = []\n"
        "    try:\n"
        "        while len(opened) < 5000: opened.append(os.open(json.__file__, os.O_RDONLY))\n"
        "    except OSError:\n"
        "        return len(opened) < 64",
        sees=True,
    ),
    "output-flood": Attack(
        "import os, sys\n"
        "def main():\n"
        "    for _ in range(200):\n"
        "        print('x' * 100_000)\n"
        "        sys.stderr.write('x' * 100_000)\n"
        "        os.write(1, b'x' * 100_000)\n"
        "    return 'quiet'",
        sees="quiet",
    ),
}

ENDINGS: dict[str, Attack] = {
    "system-exit": ends(
        "import sys\ndef main(): sys.exit(0)", PythonStatus.RAISED, error="SystemExit"
    ),
    "keyboard-interrupt": ends(
        "def main(): raise KeyboardInterrupt", PythonStatus.RAISED, error="KeyboardInterrupt"
    ),
    "generator-exit": ends(
        "def main(): raise GeneratorExit", PythonStatus.RAISED, error="GeneratorExit"
    ),
    "exit-0": ends("import os\ndef main(): os._exit(0)", PythonStatus.CRASHED),
    "exit-71": ends("import os\ndef main(): os._exit(71)", PythonStatus.CRASHED, error="71"),
    "abort": ends("import os\ndef main(): os.abort()", PythonStatus.CRASHED, error="SIG"),
    "segmentation-fault": ends(
        "import ctypes\ndef main(): ctypes.string_at(0)", PythonStatus.CRASHED, error="SIGSEGV"
    ),
    "alarm": ends(
        "import signal, time\ndef main():\n    signal.alarm(1)\n    time.sleep(9)",
        PythonStatus.CRASHED,
        error="SIGALRM",
    ),
    "recursion": ends(
        "def main(): return main()", PythonStatus.RAISED, error=r"RecursionError.*\(line 1\)"
    ),
    "recursion-unlimited": ends(
        "import sys\nsys.setrecursionlimit(2 ** 30)\ndef main(): return main()",
        PythonStatus.MEMORY,
        PythonStatus.CRASHED,
        PythonStatus.CPU,
        PythonStatus.RAISED,
    ),
    "recursion-in-c": ends(
        "import sys\nsys.setrecursionlimit(2 ** 30)\n"
        "class Deep:\n    def __repr__(self): return repr(self)\n"
        "def main(): return repr(Deep())",
        PythonStatus.CRASHED,
        PythonStatus.MEMORY,
        PythonStatus.CPU,
        PythonStatus.RAISED,
    ),
    "exception-that-cannot-be-shown": ends(
        "class Nasty(Exception):\n    def __str__(self): raise SystemExit\ndef main(): raise Nasty",
        PythonStatus.RAISED,
        error="cannot be shown",
    ),
    "exception-without-end": ends(
        "def main(): raise ValueError('x' * 10_000_000)",
        PythonStatus.RAISED,
        error="^ValueError: x{9}",
    ),
    "exception-with-half-a-character": ends(
        "def main(): raise ValueError('\\ud800')", PythonStatus.RAISED, error="ValueError"
    ),
    "exception-with-a-lying-name": ends(
        "class Name(str):\n    def __format__(self, spec): raise KeyboardInterrupt\n"
        "def main(): raise type('X', (Exception,), {'__str__': lambda self: Name('ok')})()",
        PythonStatus.RAISED,
    ),
    "atexit": Attack(
        RESULT_SOCKET + "import atexit\n"
        "def main():\n"
        "    atexit.register(lambda: os.write(result_socket(), b'forged'))\n"
        "    return 'kept'",
        sees="kept",
    ),
    "replaced-exit": ends(
        "import os\ndef main():\n    os._exit = lambda status: None\n    raise SystemExit(3)",
        PythonStatus.RAISED,
        error="SystemExit: 3",
    ),
    "no-main": ends("x = 1", PythonStatus.RAISED, error="KeyError"),
    "syntax-error": ends("def main(:", PythonStatus.RAISED, error="SyntaxError.*line 1"),
    "null-byte": ends("def main():\0", PythonStatus.RAISED, error="SyntaxError|ValueError"),
}

CONFUSION: dict[str, Attack] = {
    "forged-result": Attack(  # a forged value that main() could have returned
        RESULT_SOCKET
        + "def main():\n    os.write(result_socket(), b'+{\"forged\":true}')\n    os._exit(0)",
        sees={"forged": True},
    ),
    "forged-then-real": ends(
        RESULT_SOCKET + "def main():\n    os.write(result_socket(), b'+1')\n    return [2]",
        PythonStatus.CRASHED,
        error="not JSON",
    ),
    "forged-twice": ends(
        RESULT_SOCKET + "def main():\n    os.write(result_socket(), b'+1+1')\n    os._exit(0)",
        PythonStatus.CRASHED,
        error="not JSON",
    ),
    "forged-failure-of-ours": ends(
        RESULT_SOCKET
        + "def main():\n    os.write(result_socket(), b'Xsetup failed')\n    os._exit(70)",
        PythonStatus.CRASHED,
    ),
    "forged-unknown-tag": ends(
        RESULT_SOCKET + "def main():\n    os.write(result_socket(), b'?1')\n    os._exit(0)",
        PythonStatus.CRASHED,
        error="not one of its messages",
    ),
    "forged-error-of-no-text": ends(
        RESULT_SOCKET + "def main():\n    os.write(result_socket(), b'![1]')\n    os._exit(0)",
        PythonStatus.CRASHED,
        error="not one of its messages",
    ),
    "forged-invalid-utf8": ends(
        RESULT_SOCKET
        + "def main():\n    os.write(result_socket(), b'+\"\\xff\\xfe\"')\n    os._exit(0)",
        PythonStatus.CRASHED,
        error="Unicode",
    ),
    "forged-utf16": ends(
        RESULT_SOCKET
        + "def main():\n    os.write(result_socket(), b'+' + '[1]'.encode('utf-16'))\n"
        "    os._exit(0)",
        PythonStatus.CRASHED,
    ),
    "forged-half-character": ends(
        RESULT_SOCKET
        + "def main():\n    os.write(result_socket(), b'+\"\\\\ud800\"')\n    os._exit(0)",
        PythonStatus.CRASHED,
        error="Unicode",
    ),
    "forged-nan": ends(
        RESULT_SOCKET + "def main():\n    os.write(result_socket(), b'+[NaN]')\n    os._exit(0)",
        PythonStatus.CRASHED,
        error="NaN",
    ),
    "forged-infinity": ends(
        RESULT_SOCKET + "def main():\n    os.write(result_socket(), b'+1e999')\n    os._exit(0)",
        PythonStatus.CRASHED,
        error="range",
    ),
    "forged-huge-integer": ends(
        RESULT_SOCKET
        + "def main():\n    os.write(result_socket(), b'+' + b'9' * 100_000)\n    os._exit(0)",
        PythonStatus.CRASHED,
        error="digits",
    ),
    "forged-depth": ends(
        RESULT_SOCKET
        + "def main():\n    os.write(result_socket(), b'+' + b'[' * 9000 + b']' * 9000)\n"
        "    os._exit(0)",
        PythonStatus.CRASHED,
        error="deeper",
    ),
    "forged-depth-below-recursion": ends(
        RESULT_SOCKET
        + "def main():\n    os.write(result_socket(), b'+' + b'[' * 100 + b']' * 100)\n"
        "    os._exit(0)",
        PythonStatus.CRASHED,
        error="deeper",
    ),
    "forged-many-values": ends(
        RESULT_SOCKET
        + "def main():\n    os.write(result_socket(), b'+[' + b'[],' * 20_000 + b'1]')\n"
        "    os._exit(0)",
        PythonStatus.TOO_LARGE,
        error="values",
    ),
    "forged-flood": ends(
        RESULT_SOCKET + "def main():\n    while True: os.write(result_socket(), b'x' * 65536)",
        PythonStatus.TOO_LARGE,
    ),
    "half-a-message-then-hang": ends(
        RESULT_SOCKET
        + "def main():\n    os.write(result_socket(), b'+{\"a\":')\n    time.sleep(3600)",
        PythonStatus.WALL,
    ),
    "result-socket-closed": ends(
        RESULT_SOCKET + "def main():\n    os.close(result_socket())\n    return 1",
        PythonStatus.CRASHED,
    ),
    "result-socket-closed-then-hang": ends(
        RESULT_SOCKET + "def main():\n    os.close(result_socket())\n    time.sleep(3600)",
        PythonStatus.WALL,
    ),
    "inherited-descriptors": Attack(
        "import os, stat\n"
        "def main():\n"
        "    kinds = []\n"
        "    for number in range(1024):\n"
        "        try:\n"
        "            mode = os.fstat(number).st_mode\n"
        "        except OSError:\n"
        "            continue\n"
        "        kinds.append('socket' if stat.S_ISSOCK(mode) else\n"
        "                     'null' if os.fstat(number).st_rdev == os.makedev(1, 3) else mode)\n"
        "    return kinds",
        sees=["null", "null", "null", "socket"],
    ),
    "descriptors-closed": ends(
        "import os\ndef main():\n    os.closerange(0, 1024)\n    return 1", PythonStatus.CRASHED
    ),
    "second-request-unread": Attack(
        RESULT_SOCKET + "def main(): return len(os.read(result_socket(), 100))", sees=0
    ),
    "huge-result": ends("def main(): return 'x' * (2 << 20)", PythonStatus.TOO_LARGE),
    "many-values": ends("def main(): return [0] * 20_000", PythonStatus.TOO_LARGE, error="values"),
    "deep-result": ends(
        "def main():\n    deep = []\n    for _ in range(100_000): deep = [deep]\n    return deep",
        PythonStatus.RAISED,
        error="RecursionError",
    ),
    "recursive-result": ends(
        "def main():\n    loop = []\n    loop.append(loop)\n    return loop",
        PythonStatus.RAISED,
        error="Circular",
    ),
    "nan-result": ends("def main(): return float('nan')", PythonStatus.RAISED, error="ValueError"),
    "infinite-result": ends(
        "def main(): return [-float('inf')]", PythonStatus.RAISED, error="ValueError"
    ),
    "half-character-result": ends(
        "def main(): return '\\udfff'", PythonStatus.RAISED, error="Unicode"
    ),
    "huge-integer-result": ends(
        "def main(): return 10 ** 4000", PythonStatus.CRASHED, error="digits"
    ),
    "bytes-result": ends("def main(): return b'x'", PythonStatus.RAISED, error="TypeError"),
    "set-result": ends("def main(): return {1}", PythonStatus.RAISED, error="TypeError"),
    "graph-result": ends("def main(): return context", PythonStatus.RAISED, error="TypeError"),
    "endless-generator": ends(
        "import itertools\ndef main(): return itertools.count()",
        PythonStatus.RAISED,
        error="TypeError",
    ),
    "list-that-never-ends": ends(
        "class Endless(list):\n    def __iter__(self):\n        while True: yield 1\n"
        "def main(): return Endless([1])",
        PythonStatus.OK,
        PythonStatus.MEMORY,
        PythonStatus.CPU,
        PythonStatus.TOO_LARGE,
    ),
    "dictionary-that-lies": ends(
        "class Liar(dict):\n"
        "    def __len__(self): return -1\n"
        "    def items(self): raise SystemExit\n"
        "    def __iter__(self): raise SystemExit\n"
        "def main(): return Liar(a=1)",
        PythonStatus.OK,
        PythonStatus.RAISED,
    ),
    "class-that-lies": ends(
        "class Liar:\n"
        "    __class__ = property(lambda self: dict)\n"
        "    def __eq__(self, other): return True\n"
        "    def __hash__(self): return 0\n"
        "    def __reduce__(self): return (print, ('owned',))\n"
        "def main(): return Liar()",
        PythonStatus.RAISED,
        error="TypeError",
    ),
    "text-that-lies": Attack(
        "class Text(str):\n"
        "    def __str__(self): return 'other'\n"
        "    def __eq__(self, other): return True\n"
        "    def __hash__(self): return 0\n"
        "def main(): return [Text('real'), {Text('key'): Text('x')}]",
        sees=["real", {"key": "x"}],
    ),
    "number-that-lies": Attack(
        "class Number(int):\n"
        "    def __repr__(self): return '], [\"owned\"'\n"
        "    __str__ = __repr__\n"
        "def main(): return [Number(7)]",
        sees=[7],
    ),
    "pickle-instead-of-json": ends(
        RESULT_SOCKET + "import pickle\n"
        "def main():\n    os.write(result_socket(), b'+' + pickle.dumps([print]))\n    os._exit(0)",
        PythonStatus.CRASHED,
    ),
}

POISON: dict[str, Attack] = {
    "networkx-patched": Attack(
        "import networkx as nx\n"
        "def main():\n"
        "    nx.shortest_path = nx.DiGraph.size = nx.Graph.size = lambda *a, **k: [1]\n"
        "    nx.DiGraph.__len__ = lambda self: 3\n"
        "    return len(context)",
        sees=3,
    ),
    "json-patched": ends(
        "import json\n"
        "def main():\n"
        "    json.loads = json.dumps = json.JSONEncoder.encode = lambda *a, **k: 'owned'\n"
        "    json.encoder.c_make_encoder = None\n"
        "    return 1",
        PythonStatus.OK,
        PythonStatus.CRASHED,
        PythonStatus.RAISED,
    ),
    "builtins-patched": ends(
        "import builtins\n"
        "def main():\n"
        "    builtins.len = builtins.sum = builtins.sorted = builtins.isinstance = lambda *a: 0\n"
        "    return 1",
        PythonStatus.OK,
        PythonStatus.CRASHED,
        PythonStatus.RAISED,
    ),
    "library-patched": Attack(
        "import collections, os\n"
        "def main():\n"
        "    collections.Counter = None\n"
        "    os.environ['PATH'] = os.environ['NETARENA'] = 'poison'\n"
        "    os.write = os._exit = None\n"
        "    return sorted(os.environ)",
        sees=["NETARENA", "PATH"],
    ),
    "context-damaged": Attack(
        "def main():\n"
        "    context.clear()\n"
        "    context.graph['poison'] = 1\n"
        "    return len(context)",
        sees=0,
    ),
    "attributes-damaged": Attack(
        "def main():\n    context.nodes['n3']['type'].append('x')\n    return context.nodes['n3']",
        sees={"type": ["EK_PORT", "x"]},
    ),
    "modules-emptied": ends(
        "import sys\ndef main():\n    sys.modules.clear()\n    sys.path.clear()\n    return 1",
        PythonStatus.OK,
        PythonStatus.RAISED,
        PythonStatus.CRASHED,
    ),
    "guest-replaced": Attack(
        "import sys\n"
        "def main():\n"
        "    sys.modules['guest'].call = sys.modules['guest'].load = None\n"
        "    sys.modules['__main__'].Warm = None\n"
        "    return 'replaced'",
        sees="replaced",
    ),
    "audit-hook": ends(
        "import sys\n"
        "def main():\n"
        "    def hook(*event): raise SystemExit\n"
        "    sys.addaudithook(hook)\n"
        "    return 1",
        PythonStatus.OK,
        PythonStatus.RAISED,
        PythonStatus.CRASHED,
    ),
    "trace-and-profile": Attack(
        "import sys\n"
        "def main():\n"
        "    sys.settrace(lambda *a: None)\n"
        "    sys.setprofile(lambda *a: None)\n"
        "    return 1",
        sees=1,
    ),
    "collector-off": Attack(
        "import gc\ndef main():\n    gc.disable()\n    gc.set_threshold(0)\n    return 1", sees=1
    ),
    "memory-written-by-ctypes": ends(
        "import ctypes\n"
        "def main():\n"
        "    ctypes.memset(id(context), 0xFF, 4096)\n"
        "    return len(context)",
        PythonStatus.CRASHED,
        PythonStatus.RAISED,
        PythonStatus.OK,
    ),
    "anonymous-shared-memory": Attack(
        "import mmap\n"
        "def main():\n"
        "    page = mmap.mmap(-1, 4096)\n"
        "    page.write(b'poison')\n"
        "    return 'written to itself'",
        sees="written to itself",
    ),
}

SECRETS: dict[str, Attack] = {
    "frames": Attack(
        "import os, sys\n"
        "def main():\n"
        "    frame, seen, files = sys._getframe(), [], []\n"
        "    while frame:\n"
        "        seen += map(repr, (frame.f_locals, frame.f_globals))\n"
        "        files.append(os.path.basename(frame.f_code.co_filename))\n"
        "        frame = frame.f_back\n"
        "    return [HALVES[0] + HALVES[1] in ''.join(seen), sorted(set(files))]",
        sees=[False, ["<answer>", "<guest>", "fork.py", "warm.py"]],
    ),
    "collector": Attack(
        "import gc\n"
        "def main():\n"
        "    gc.unfreeze()\n"
        "    secret = HALVES[0] + HALVES[1]\n"
        "    objects = [o for o in gc.get_objects() if isinstance(o, (dict, list, tuple))]\n"
        "    held = [v for o in objects for v in (o.values() if isinstance(o, dict) else o)]\n"
        "    texts = [v for v in held if type(v) is str and v is not secret]\n"
        "    return [len(texts) > 1000, secret in texts]",
        sees=[True, False],
    ),
    "modules": Attack(
        "import sys\n"
        "def main():\n"
        "    names = {name.partition('.')[0] for name in sys.modules}\n"
        "    ours = {'networkx', 'guest', 'protection', 'fork'}\n"
        "    foreign = names - set(sys.stdlib_module_names) - ours\n"
        "    return sorted(name for name in foreign if name != '__main__'\n"
        "                  and not name.startswith('_sysconfigdata'))",
        sees=[],
    ),
    "arguments": Attack(
        "import sys\ndef main(): return [sys.argv, sys.orig_argv[0] != '']", sees=[[""], True]
    ),
    **{
        f"import-{name}": Attack(
            f"def main(): return attempt(__import__, {name!r})",
            sees=("ModuleNotFoundError", "ImportError", "denied"),
        )
        for name in (
            *("netarena", "netarena_malt", "a2a_purple", "numpy", "pip", "pydantic", "pytest"),
            *("setuptools", "httpx", "scipy", "pandas", "site_packages"),
        )
    },
    "import-after-path": Attack(
        "import sys, importlib\n"
        "def main():\n"
        "    sys.path[:0] = [SITE, PROJECT, PROJECT + '/..']\n"
        "    importlib.invalidate_caches()\n"
        "    return [attempt(__import__, name) for name in ('netarena', 'pydantic', 'pytest')]",
        sees=["ModuleNotFoundError"] * 3,
    ),
    "import-by-location": Attack(
        "import importlib.util\n"
        "def main():\n"
        "    spec = importlib.util.spec_from_file_location('m', PROJECT + '/model.py')\n"
        "    return attempt(spec.loader.get_data, PROJECT + '/model.py')",
        sees=("denied",),
    ),
    "import-site": Attack(
        "import site, sys\n"
        "def main():\n"
        "    attempt(site.main)\n"
        "    return [attempt(__import__, name) for name in ('netarena', 'pydantic')]",
        # the result depends on whether the folder can be listed; both are refusals
        sees=(["ModuleNotFoundError"] * 2, ["denied"] * 2),
    ),
    "installed-distributions": Attack(
        "import importlib.metadata\n"
        "def main():\n"
        "    return len(list(importlib.metadata.distributions(path=[SITE])))",
        sees=0,
    ),
    "load-shared-object": Attack(
        "import ctypes\ndef main(): return attempt(ctypes.CDLL, OBJECT)", sees=("OSError",)
    ),
}

GROUPS = (
    *(READING, WRITING, NETWORK, PROCESSES, OTHERS, PRIVILEGE, EXHAUSTION, ENDINGS, CONFUSION),
    *(POISON, SECRETS),
)
ATTACKS: dict[str, Attack] = {name: attack for group in GROUPS for name, attack in group.items()}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Target:
    """Targets of the attacks: values for their code, a file of the service, forbidden files."""

    names: dict[str, Any]
    journal: Path
    unmade: tuple[Path, ...]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("service")
    # file permissions must not be the reason why attacks fail
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError):
            place.chmod(place.stat().st_mode | 0o055)
    journal = folder / "journal.jsonl"
    journal.write_text(json.dumps({"secret": SECRET}), encoding="utf-8")
    journal.chmod(0o666)
    import pydantic_core

    objects = sorted(Path(pydantic_core.__file__).parent.glob("*.so"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        names = {
            "JOURNAL": str(journal),
            "TARGET": str(folder / "made-by-attack"),
            "PROJECT": str(Path(netarena.__file__).parent),
            "SITE": str(Path(pydantic_core.__file__).parents[1]),
            "OBJECT": str(objects[0]),
            "SERVICE": os.getpid(),
            "PORT": server.getsockname()[1],
            "HALVES": [SECRET[:10], SECRET[10:]],
        }
        unmade = folder / "made-by-attack", Path("/dev/shm/netarena-attack")
        yield Target(names, journal, unmade)


@pytest.fixture(scope="module")
async def sandboxes(target: Target) -> AsyncIterator[dict[bool, PythonSandbox]]:
    """Yield a sandbox with short time limits (True) and one with the usual limits (False).

    Each has one warm process for all attacks.
    """
    del target
    os.environ["NETARENA_TEST_SECRET"] = SECRET
    payload = json.dumps(GRAPH).encode()
    async with (
        PythonSandbox(GUEST, payload, limits=LIMITS) as patient,
        PythonSandbox(GUEST, payload, limits=IMPATIENT) as impatient,
    ):
        yield {False: patient, True: impatient}
    del os.environ["NETARENA_TEST_SECRET"]


def _judge(attack: Attack, result: SandboxResult) -> None:
    assert result.status in attack.ends, result
    assert re.search(attack.error, result.error, re.DOTALL), result
    assert len(result.error) < 2200
    if isinstance(attack.sees, tuple):
        assert result.value in attack.sees, result
    elif attack.ends == (PythonStatus.OK,):
        assert result.value == attack.sees, result


@pytest.mark.anyio
@pytest.mark.requires("landlock", "seccomp")
@pytest.mark.parametrize("name", ATTACKS)
async def test_attack_gains_nothing_and_the_next_answer_is_correct(
    name: str, sandboxes: dict[bool, PythonSandbox], target: Target
) -> None:
    attack = ATTACKS[name]
    sandbox = sandboxes[PythonStatus.WALL in attack.ends]
    if MACHINE not in attack.machines:
        pytest.skip(f"no such call on {MACHINE}")
    warm = sandbox.pid
    content = target.journal.read_text(encoding="utf-8")

    result = await sandbox.run({"code": textwrap.dedent(attack.code), "names": target.names})
    _judge(attack, result)

    honest = await sandbox.run({"code": HONEST, "names": {}})
    assert honest.value == HONEST_VALUE, honest
    assert sandbox.pid == warm is not None
    assert target.journal.read_text(encoding="utf-8") == content
    assert not [path for path in target.unmade if path.exists()]


def test_attack_table_has_at_least_sixty_attacks_with_unique_names() -> None:
    assert len(ATTACKS) == sum(map(len, GROUPS)) >= 60
