"""Network namespaces of an episode's machines, each owned by a separate user namespace.

A program in one of them cannot use, see or exhaust resources of another.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.requires("episodes")

_PROGRAM = """
import encodings.ascii, encodings.idna, json, os, sys
import pyroute2
from netarena.sandbox import shell
from netarena.sandbox.namespace import current_network, isolate, new_network, owner
from netarena.sandbox.shell import ShellLimits, command_environment, entered
from netarena_network.real import guard
command_environment()
if (inner := isolate()) > 0:
    os.waitpid(inner, 0)
    sys.exit()
one, other = new_network(), new_network()
def cable(one, other):
    from pyroute2 import IPRoute
    with IPRoute() as route:
        peer = {{"ifname": "v1", "net_ns_fd": other}}
        route.link("add", kind="veth", ifname="v0", net_ns_fd=one, peer=peer)
{}
sys.stdout.flush()
os._exit(0)
"""


def inside(program: str) -> Any:
    """Run a program in the namespaces of an episode with two machines; return its JSON output."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_each_network_has_its_own_user_namespace() -> None:
    found = inside("""
names = [os.readlink(f"/proc/self/fd/{owner(one)}") for one in (one, other)]
print(json.dumps([*names, os.readlink("/proc/self/ns/user"), owner(current_network())]))
""")
    first, second, episode, own = found
    assert len({first, second, episode}) == 3
    assert own is None


def test_worker_keeps_its_capabilities_in_the_namespaces_of_its_machines() -> None:
    inside("""
import pathlib, socket, subprocess
cable(one, other)
with entered(one):
    pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    for line in ("ip link set v0 up", "iptables -A INPUT -j DROP", "tc q add dev v0 root pfifo"):
        subprocess.run(line, shell=True, check=True)
print(json.dumps("ok"))
""")


def test_command_has_two_capabilities_in_its_machines_user_namespace() -> None:
    output, expected = inside("""
result = shell.run("readlink /proc/self/ns/user; grep CapBnd /proc/self/status; "
                   "ip link add v type bridge && sysctl -qw net.ipv4.ip_forward=1 && echo done",
                   netns=one)
print(json.dumps([result.output, os.readlink(f"/proc/self/fd/{owner(one)}")]))
""")
    assert output.splitlines() == [expected, "CapBnd:\t0000000000003000", "done"]


def test_links_of_another_machine_cannot_be_changed() -> None:
    """The attacker has the ids of the other network and of its link, but does not own them."""
    said, inner = inside("""
cable(one, other)
from netarena_network.attack import FAMILIES
names = ("links-of-others", "take-links-down", "macvlan-on-others", "delete-links")
said = [shell.run(FAMILIES["walls"][name].command, netns=one).output for name in names]
print(json.dumps([said, shell.run("ip -o link show v1", netns=other).output]))
""")
    assert said == ["all tried\n"] * 4
    assert " v1@" in inner


def test_fork_bomb_on_one_machine_does_not_limit_another() -> None:
    bomb, beside = inside("""
limits = [ShellLimits(wall_s=6.0, processes=guard.process_limit(3, one)) for one in (one, other)]
read, write = os.pipe()
bomb = os.fork()
if not bomb:
    result = shell.run("for i in $(seq 300); do sleep 30 & done; echo full > /dev/stderr; wait",
                       netns=one, limits=limits[0])
    os.write(write, result.output[:4000].encode())
    os._exit(0)
os.close(write)
# the other machine's command begins when the first has used up its processes
import time
deadline = time.monotonic() + 30
while guard.process_limit(3, one) - limits[0].processes < 60 and time.monotonic() < deadline:
    time.sleep(0.01)
result = shell.run("for i in $(seq 40); do sleep 0.1 & done; wait; echo done",
                   netns=other, limits=limits[1])
print(json.dumps([os.read(read, 8000).decode(), result.output]))
""")
    assert "Resource temporarily unavailable" in bomb
    assert beside == "done\n"


def test_error_about_a_refused_namespace_contains_the_errno() -> None:
    number = inside("""
import pathlib
pathlib.Path("/proc/sys/user/max_user_namespaces").write_text("0")
try:
    new_network()
    print(json.dumps(0))
except OSError as error:
    print(json.dumps(error.errno))
""")
    assert number == 28  # ENOSPC
