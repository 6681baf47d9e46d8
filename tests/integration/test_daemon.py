"""Programs that run as long as a world: their permissions, limits and end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netarena.sandbox.daemon import Confined, family
from netarena.sandbox.namespace import current_network, leave_network
from netarena.sandbox.shell import ShellLimits

pytestmark = [pytest.mark.requires("bwrap"), pytest.mark.requires("root")]

END_S = 60.0
PYTHON = Path("/usr/bin/python3").resolve()
LIMITS = ShellLimits(cpu_s=30.0, memory_bytes=48 << 20, address_bytes=1 << 30)
#: program that tries forbidden operations and writes the names of those that succeed
TRIES = """
import ctypes, os, socket, subprocess
won = []
def attempt(name, what):
    try:
        if what() is not False:
            won.append(name)
    except (OSError, subprocess.SubprocessError):
        pass
for path in ("/x", "/usr/lib/x", "/etc/x", "/dev/x", "/proc/sys/kernel/core_pattern"):
    attempt("write " + path, lambda path=path: open(path, "w").close())
for path in ("/root", "/home", "/work", "/mnt", "/sys/class"):
    attempt("list " + path, lambda path=path: os.listdir(path))
for path in ("/etc/shadow", "/usr/bin/env", "/bin/cat"):
    attempt("read " + path, lambda path=path: open(path).read(1))
attempt("run", lambda: subprocess.run(["/usr/bin/id"], check=True))
attempt("see others", lambda: len([one for one in os.listdir("/proc") if one.isdigit()]) > 2)
attempt("name", lambda: socket.sethostname("x"))
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
libc = ctypes.CDLL(None, use_errno=True)
attempt("namespace", lambda: libc.unshare(0x10000000) == 0)
attempt("mount", lambda: libc.mount(b"t", b"/tmp", b"tmpfs", 0, None) == 0)
def fill():
    with open("/tmp/x", "wb") as file:
        for _ in range(4):
            file.write(bytes(1 << 20))
attempt("disk", fill)
status = open("/proc/self/status").read()
attempt("right", lambda: int(status.split("CapEff:")[1].split()[0], 16) & ~0x3400 != 0)
open("/told/out", "w").write(repr(won))
"""


@pytest.fixture(name="netns", scope="module")
def _netns() -> Iterator[int]:
    found: list[int] = []

    def leave() -> None:
        leave_network()
        found.append(current_network())

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    yield found[0]
    os.close(found[0])


def hold(program: str, netns: int, folder: Path) -> Confined:
    return Confined(
        f"{PYTHON} -I /etc/program &",
        netns=netns,
        hostname="r1",
        programs=[PYTHON],
        texts={"/etc/program": program},
        folders={"/told": folder},
        limits=LIMITS,
    )


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + END_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_daemon_can_access_only_its_folder_and_network(netns: int, tmp_path: Path) -> None:
    with hold(TRIES, netns, tmp_path):
        until((tmp_path / "out").exists)
        until((tmp_path / "out").read_text)

    assert (tmp_path / "out").read_text() == "[]"


def test_daemon_above_its_memory_limit_is_killed_and_reported(netns: int, tmp_path: Path) -> None:
    hungry = "import time\nhold = bytearray(64 << 20)\nopen('/told/out', 'w')\ntime.sleep(1000)\n"
    with hold(hungry, netns, tmp_path) as held:
        until((tmp_path / "out").exists)
        held.know([PYTHON.name], family())
        assert held.ended() == []
        assert held.excess() == f"{PYTHON.name} was ended: it holds more than 48 MiB of memory"
        until(held.ended)
        assert held.ended() == [PYTHON.name]
        assert held.excess() == ""
        assert held.alive


def test_all_daemons_end_with_their_owner(netns: int, tmp_path: Path) -> None:
    with hold("open('/told/out', 'w')\nimport time\ntime.sleep(1000)\n", netns, tmp_path) as held:
        until((tmp_path / "out").exists)
        held.know([PYTHON.name], family())
        assert held.alive
        assert not held.ended()
        (waited_s,) = held.delayed_s()
        assert 0.0 < waited_s < END_S
    until(held.ended)
    assert not held.alive
    assert held.delayed_s() == [0.0]
