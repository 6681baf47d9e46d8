"""Program that looks for traces of a backbone's faults, without documentation or probes.

Four properties of a machine could show that faults were added later: its startup configuration,
file times, rule handles and address ages. They reveal nothing if the network was built with its
faults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

#: Command that runs on each machine. Each section of its output follows a line that begins with
#: ``==``.
COMMAND = (
    "echo == configuration; "
    "if [ -e /etc/frr/frr.conf ]; then vtysh -c 'show running-config' | "
    "grep -vxE 'Building configuration...|Current configuration:|end|!|' > /tmp/running; "
    "grep -vxE '!|' /etc/frr/frr.conf > /tmp/startup; diff /tmp/startup /tmp/running; fi; "
    "echo == files; find /etc/frr /etc/serve -printf '%T@ %p\\n' 2>/dev/null; "
    "echo == handles; nft -a list ruleset | grep -oE 'handle [0-9]+$'; "
    "echo == lifetimes; ip addr show | grep valid_lft | grep -v 'forever preferred_lft forever'; "
    'echo == addresses; python3 -c "$READ"'
)
#: Prints when each IPv4 address was set and last changed, in units of 0.01 s (ifa_cacheinfo).
_READ = """
import socket, struct
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
s.send(struct.pack("=IHHII", 24, 22, 0x301, 1, 0) + bytes([2]) + bytes(7))
left = True
while left:
    data = s.recv(65536)
    while data:
        size, kind = struct.unpack_from("=IH", data)
        left = kind == 20
        at = 24
        while left and at < size:
            length, what = struct.unpack_from("=HH", data, at)
            if what == 6:
                print(*struct.unpack_from("=II", data, at + 12))
            at += (length + 3) & ~3
        data = data[(size + 3) & ~3:]
"""
COMMAND = f"READ='{_READ}'; {COMMAND}"
_KNOWN_FILES = frozenset(
    {
        "/etc/frr",
        "/etc/frr/frr.conf",
        "/etc/frr/vtysh.conf",
        "/etc/serve",
        "/etc/serve/services",
        "/etc/serve/zone",
        "/etc/serve/resolver",
    }
)


def findings(output: str) -> Iterator[str]:
    """Yield a line for each trace of a later change in the output of ``COMMAND``."""
    sections = {
        title: lines.splitlines()
        for title, _, lines in (part.partition("\n") for part in output.split("== ")[1:])
    }
    for line in sections["configuration"]:
        if line.startswith(("<", ">")):
            yield f"the startup configuration differs: {line}"
    times = dict(line.split(" ", 1)[::-1] for line in sections["files"] if " " in line)
    for path in times.keys() - _KNOWN_FILES:
        yield f"a file that machines must not have: {path}"
    if len({*times.values()}) > 1:
        yield f"files were changed at different times: {times}"
    handles = [int(found) for found in re.findall(r"handle (\d+)", "\n".join(sections["handles"]))]
    # Tables and chains have handles too, and each gets its handle before its contents do. Handles
    # start at 1 in each table.
    runs = [number for number in handles if number > 1]
    if runs != sorted(runs) or (runs and [*range(2, max(runs) + 1)] != runs):
        yield f"handles of rules have gaps or are out of order: {handles}"
    for line in sections["lifetimes"]:
        yield f"an address has a lifetime: {line.strip()}"
    ages = [tuple(map(int, line.split())) for line in sections["addresses"]]
    if ages != sorted(ages) or any(one != other for one, other in ages):
        yield f"addresses were set out of order, or changed afterwards: {ages}"
