"""Linux namespaces that isolate one episode, and a network for each of its emulated machines.

This module uses ctypes because Python has unshare and setns only from 3.12 on (namespaces(7),
user_namespaces(7)).

Descriptors of namespaces are plain integers. A thread is in one network namespace at a time.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

#: The host's user to which the root user of an episode's namespaces is mapped. This user owns no
#: files. The kernel limits its resources, whereas the host's user 0 is exempt from the limit on
#: processes.
NOBODY = 65534

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER = 0x00020000, 0x04000000, 0x08000000, 0x10000000
_NEWPID, _NEWNET = 0x20000000, 0x40000000
#: CLONE_VM of clone(2), which makes a child share its parent's memory, and the size of the child's
#: stack in bytes.
_VM, _STACK_BYTES = 0x100, 1 << 16
#: Size of sigset_t (glibc and musl).
_SIGNAL_SET_BYTES = 128
_MS_RDONLY, _MNT_DETACH = 1, 2
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS = 1, 4, 8
_CAPABILITY_VERSION = 0x20080522
#: Capability with which root can create user namespaces on machines where ordinary users may not.
_CAP_SYS_ADMIN = 1 << 21
#: ioctl that opens the user namespace that owns a namespace (ioctl_ns(2))
_NS_GET_USERNS = 0xB701

_libc = ctypes.CDLL(None, use_errno=True)


class NamespaceUnavailable(Exception):
    """This machine cannot isolate an episode. The message names the missing permission."""


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends. A change of user cancels this."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def isolate() -> int:
    """Enter new user, network, mount, process, IPC and host-name namespaces as their root user.

    The call forks. It returns the new process's id in the caller, and -1 in the new process. The
    new process is process 1 of the namespaces and dies with the caller. Raises
    NamespaceUnavailable.
    """
    try:
        _drop_root()
        user, group = os.geteuid(), os.getegid()
        flags = _NEWUSER | _NEWNET | _NEWNS | _NEWPID | _NEWIPC | _NEWUTS
        _check(_libc.unshare(flags), "unshare")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {user} 1"),
            ("gid_map", f"0 {group} 1"),
        ):
            Path("/proc/self", name).write_text(text, encoding="ascii")
    except OSError as error:
        raise NamespaceUnavailable(f"new namespaces cannot be created: {error.strerror}") from error
    die_with_parent()
    if inner := os.fork():
        return inner
    die_with_parent()
    try:
        _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "mount /")
        safe = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
        _check(_libc.mount(b"proc", b"/proc", b"proc", safe, None), "mount /proc")
    except OSError as error:
        raise NamespaceUnavailable(
            f"/proc cannot be mounted in a new namespace: {error.strerror}"
        ) from error
    return -1


def _drop_root() -> None:
    """Switch to the user ``NOBODY``; keep only CAP_SYS_ADMIN, which new namespaces may need."""
    if os.geteuid() != 0:
        return
    _check(_libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0), "prctl")
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    kept = struct.pack("=6I", _CAP_SYS_ADMIN, _CAP_SYS_ADMIN, 0, 0, 0, 0)
    # ignore failures: the kernel may still allow new namespaces, as it may for any user
    _libc.capset(header, kept)
    # makes the files below /proc/self belong to ``NOBODY``, so that its ID maps can be written
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def lacking() -> str:
    """Return the reason why this machine cannot isolate an episode, or "" if it can.

    Call it only while no other thread runs, because it forks.
    """
    read, write = os.pipe()
    outer = os.fork()
    if not outer:
        _try_to_isolate(write)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        said = file.read().decode()
    os.waitpid(outer, 0)
    return said


def _try_to_isolate(descriptor: int) -> NoReturn:
    try:
        inner = isolate()
        if inner > 0:
            os.waitpid(inner, 0)
    except BaseException as error:  # noqa: BLE001 -- the caller receives any error
        os.write(descriptor, str(error).encode())
    os._exit(0)


def current_network() -> int:
    """Return a descriptor of the calling thread's network namespace."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def leave_network() -> None:
    """Move the calling thread into a new network namespace."""
    _check(_libc.unshare(_NEWNET), "unshare")


def new_network() -> int:
    """Create a network namespace owned by a new user namespace; return the network's descriptor.

    The caller must be root of its user namespace. The caller's user namespace is the parent of the
    new one, so the caller has all capabilities in both. A process inside the new user namespace has
    capabilities over this network only. Raises OSError.
    """
    child, stack = _stopped_child(_NEWUSER | _NEWNET)
    try:
        folder = Path("/proc", str(child))
        for name in ("uid_map", "gid_map"):
            (folder / name).write_bytes(b"0 0 1")
        return os.open(folder / "ns/net", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        del stack  # keep the child's stack allocated until the child has ended


def _stopped_child(namespaces: int) -> tuple[int, object]:
    """Start a process that enters new namespaces and stops; return its id and its stack.

    A process that has entered a user namespace cannot leave it, so a child must enter it. The child
    shares this process's memory and runs ``raise(SIGSTOP)`` of the C library. os.fork would take 4
    ms longer, because it copies the page tables of an interpreter with all its modules.
    """
    stack = ctypes.create_string_buffer(_STACK_BYTES)
    top = ctypes.addressof(stack) + _STACK_BYTES & ~15
    function = ctypes.cast(_libc["raise"], ctypes.c_void_p)
    # signal handlers of this process must not run in the child. The functions of the module
    # ``signal`` would take ten times longer, because they convert all numbers to enums
    every, before = (ctypes.create_string_buffer(_SIGNAL_SET_BYTES) for _ in range(2))
    _libc.sigfillset(every)
    _libc.pthread_sigmask(signal.SIG_SETMASK, every, before)
    try:
        child = _libc.clone(
            function,
            ctypes.c_void_p(top),
            _VM | namespaces | signal.SIGCHLD,
            ctypes.c_void_p(signal.SIGSTOP),
        )
    finally:
        _libc.pthread_sigmask(signal.SIG_SETMASK, before, None)
    _check(child < 0, "clone")
    return child, stack


def most_user_namespaces() -> int:
    """Return the kernel's limit on user namespaces per user, or None if it cannot be read."""
    try:
        text = Path("/proc/sys/user/max_user_namespaces").read_text(encoding="ascii")
    except FileNotFoundError:  # the kernel has no such limits
        return sys.maxsize
    return int(text)


def owner(network: int) -> int | None:
    """Return a new descriptor of the user namespace that owns a network namespace.

    Returns None if the caller itself is in that user namespace. Raises OSError if that user
    namespace is neither the caller's nor one of its descendants.
    """
    found = fcntl.ioctl(network, _NS_GET_USERNS)
    if os.path.samestat(os.fstat(found), Path("/proc/self/ns/user").stat()):
        os.close(found)
        return None
    return found


def raise_loopback() -> None:
    """Bring up the loopback interface in the calling thread's network namespace (netdevice(7))."""
    set_flags, up = 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asked:
        fcntl.ioctl(asked, set_flags, struct.pack("16sh14x", b"lo", up))


@contextmanager
def network_files() -> Iterator[Path | None]:
    """Mount a /sys that shows the calling thread's network; yield its path (context manager).

    Yields None if the kernel does not allow such a mount. The process must be in its own user and
    mount namespaces. The mount still shows this network after the thread has entered another one.
    """
    safe = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    if _libc.mount(b"sysfs", b"/sys", b"sysfs", safe, None):
        yield None
        return
    try:
        yield Path("/sys")
    finally:
        _check(_libc.umount2(b"/sys", _MNT_DETACH), "umount /sys")


@contextmanager
def process_files() -> Iterator[None]:
    """Mount a new /proc of the calling process's namespaces (context manager).

    The time stamp of a file in /proc is the time of its first lookup in that mount. In a sandbox
    with a new mount, time stamps therefore do not show which settings were read or written before.
    The caller must be process 1 of its own namespaces. Raises OSError.
    """
    safe = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _check(_libc.mount(b"proc", b"/proc", b"proc", safe, None), "mount /proc")
    try:
        yield
    finally:
        _check(_libc.umount2(b"/proc", _MNT_DETACH), "umount /proc")


def hide(folder: Path, names: Iterable[str]) -> None:
    """Hide the entries ``names`` of ``folder`` in this mount namespace.

    The caller must be root of its own user namespace, which owns the mounts. Raises OSError if the
    kernel does not allow overlays there, or if the overlay has no room for its entries.
    """
    room = Path("/mnt")
    mount_memory(room, 1 << 20, 1 << 8)
    try:
        gone = room / "gone"
        gone.mkdir()
        for name in names:
            os.mknod(gone / name, stat.S_IFCHR, os.makedev(0, 0))
        options = f"lowerdir={gone}:{folder},userxattr".encode()
        flags = _MS_NOSUID | _MS_NODEV
        _check(_libc.mount(b"overlay", bytes(folder), b"overlay", flags, options), "mount overlay")
    finally:
        _check(_libc.umount2(bytes(room), _MNT_DETACH), f"umount {room}")


def mount_memory(folder: Path, most_bytes: int, most_files: int) -> None:
    """Mount an empty in-memory file system with these limits on an existing folder."""
    options = f"size={most_bytes},nr_inodes={most_files},mode=0700".encode()
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _check(_libc.mount(b"tmpfs", bytes(folder), b"tmpfs", flags, options), "mount tmpfs")
