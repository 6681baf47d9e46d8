"""Program that reads all data of a machine that an agent can read without sending packets.

It runs inside the agent's own sandbox, as ``python3 -c``, and prints one line: base64 of compressed
JSON. It imports only the standard library and no module of this project.

Netlink dumps are decoded without names. An attribute of up to eight bytes becomes a number, and a
longer attribute becomes a list of 32-bit words. The dumps therefore include fields that ``ip`` does
not print, such as the times at which an address was created and updated.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

#: Netlink dumps: name, request type, length of the header before the attributes, address families.
DUMPS = (
    ("link", 18, 16, (0,)),
    ("addr", 22, 8, (2, 10)),
    ("route", 26, 12, (2, 10)),
    ("neigh", 30, 12, (0,)),
    ("rule", 34, 12, (2, 10)),
    ("qdisc", 38, 20, (0,)),
)
#: Name -> command whose output is included unchanged
COMMANDS = {
    "nft": ["nft", "-a", "-j", "list", "ruleset"],
    "conntrack": ["conntrack", "-L"],
}
#: Files below /proc/net that are included unchanged.
TABLES = ("snmp", "raw", "icmp", "packet", "unix", "tcp")
FOLDERS = ("/etc/frr", "/etc/serve", "/var/run/frr")
#: Commands of vtysh that each print one JSON value.
SHOWN = (
    "show ip route json",
    "show bgp summary json",
    "show ip ospf neighbor json",
    "show interface json",
    "show ip ospf json",
    "show ip bgp json",
    "show ip ospf database json",
)
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3
_LONGEST = 400
_ANSWER_S = 10


def dump(kind: int, header: int, family: int) -> list[Any]:
    """Return the messages of a netlink dump, each as [header bytes, attributes]."""
    found: list[Any] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.settimeout(_ANSWER_S)
        body = struct.pack("B", family).ljust(header, b"\0")
        link.send(struct.pack("IHHII", 16 + len(body), kind, _DUMP, 1, 0) + body)
        while True:
            data = link.recv(1 << 18)
            while data:
                size, answer = struct.unpack_from("IH", data)
                if answer in {_ERROR, _DONE}:
                    return found
                message = data[16:size]
                found.append([list(message[:header]), attributes(message[header:])])
                data = data[(size + 3) & ~3 :]


def attributes(data: bytes) -> dict[int, Any]:
    """Return attributes by their number: integers, or lists of 32-bit words."""
    found: dict[int, Any] = {}
    while len(data) >= 4:
        size, kind = struct.unpack_from("HH", data)
        if size < 4:
            break
        value = data[4:size]
        if len(value) in {1, 2, 4, 8}:
            found[kind & 0x3FFF] = int.from_bytes(value, "little")
        elif len(value) < _LONGEST:
            found[kind & 0x3FFF] = list(struct.unpack_from(f"{len(value) // 4}I", value))
        data = data[(size + 3) & ~3 :]
    return found


def read_text(path: Path) -> str:
    """Return the beginning of a file, or "" if the file cannot be read."""
    try:
        with path.open(errors="replace") as stream:
            return stream.read(20_000)
    except OSError:
        return ""


def run(command: list[str]) -> str:
    """Return the standard output of a command, or "" if it cannot run."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")[:200_000]


def sysctls() -> tuple[dict[str, str], dict[str, int]]:
    """Return the values of all IPv4 sysctls, and the inode numbers of all network sysctls."""
    found: dict[str, str] = {}
    inodes: dict[str, int] = {}
    for folder, _, names in sorted(os.walk("/proc/sys/net")):
        for name in sorted(names):
            path = Path(folder, name)
            try:
                inodes[str(path)[10:]] = path.stat().st_ino
            except OSError:
                continue
            if "/ipv4/" in str(path) and "/neigh/" not in str(path):
                found[str(path)[10:]] = read_text(path).strip()
    return found, inodes


def files() -> dict[str, list[float]]:
    """Return the times, inode number, size, mode, owner and link count of each file in the
    machine's folders."""
    found: dict[str, list[float]] = {}
    for top in FOLDERS:
        for folder, folders, names in os.walk(top):
            for name in (*folders, *names):
                path = Path(folder, name)
                try:
                    one = path.lstat()
                except OSError:
                    continue
                found[str(path)] = [
                    one.st_mtime, one.st_ctime, one.st_ino, one.st_size, one.st_mode, one.st_uid,
                    one.st_nlink,
                ]  # fmt: skip
    return found


def shown() -> dict[str, Any]:
    """Return the output of each command to the routing daemons."""
    rest = run(["vtysh", *(part for one in SHOWN for part in ("-c", one))])
    found: dict[str, Any] = {"running": run(["vtysh", "-c", "show running-config"])}
    for name in SHOWN:
        start = rest.find("{")
        try:
            found[name], end = json.JSONDecoder().raw_decode(rest, max(0, start))
        except ValueError:
            break
        rest = rest[end:]
    return found


def main() -> None:
    """Print all readings as one line."""
    seen: dict[str, Any] = {}
    for name, kind, header, families in DUMPS:
        seen[name] = [one for family in families for one in dump(kind, header, family)]
    for name, command in COMMANDS.items():
        seen[name] = run(command)
    seen["proc"] = {name: read_text(Path("/proc/net", name)) for name in TABLES}
    seen["sysctl"], seen["sysctl_inode"] = sysctls()
    seen["files"] = files()
    if Path("/etc/frr/frr.conf").exists():
        seen["frr.conf"] = read_text(Path("/etc/frr/frr.conf"))
        seen["frr"] = shown()
    packed = zlib.compress(json.dumps(seen).encode(), 9)
    sys.stdout.write(base64.b64encode(packed).decode() + "\n")


if __name__ == "__main__":
    main()
