"""``tcpdump`` for agents' commands. It captures packets, and the real tcpdump prints them.

libpcap captures with a ring buffer in kernel memory. No limit covers this memory, so commands must
not have a ring buffer. This program captures without a ring buffer and passes the packets to
``tcpdump -r -``, which does all formatting, filtering, counting and writing of files. It runs
inside the sandbox with the system's Python, so it must not import any module of this project.
"""

from __future__ import annotations

import fcntl
import getopt
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NoReturn

REAL = next(filter(os.path.exists, ("/usr/bin/tcpdump", "/usr/sbin/tcpdump")), "tcpdump")
#: Options of tcpdump 4.99.
SHORT = "aAbB:c:C:dDeE:fF:G:hHi:IjJ:KlLm:M:nNOpqQ:r:s:StT:uUvV:w:W:xXy:Yz:Z:#"
LONG = [
    *("absolute-tcp-sequence-numbers", "buffer-size=", "count", "direction="),
    *("dont-verify-checksums", "fp-type", "help", "immediate-mode", "interface=", "lengths"),
    *("linktype=", "list-data-link-types", "list-interfaces", "list-time-stamp-types", "micro"),
    *("monitor-mode", "nano", "no-optimize", "no-promiscuous-mode", "number", "packet-buffered"),
    *("print", "relinquish-privileges=", "snapshot-length=", "time-stamp-precision="),
    *("time-stamp-type=", "version"),
]
#: Options with which tcpdump does not capture.
_ITSELF = {
    *("-r", "-V", "-d", "-L", "-h", "-J", "--help", "--version"),
    *("--list-data-link-types", "--list-time-stamp-types"),
}
#: Capture options that this program handles.
_OURS = {
    *("-i", "-B", "-I", "-j", "-p", "-Q", "-s", "-y", "-Z", "--interface", "--buffer-size"),
    *("--monitor-mode", "--time-stamp-type", "--no-promiscuous-mode", "--direction"),
    *("--snapshot-length", "--linktype", "--relinquish-privileges", "--immediate-mode"),
    "--time-stamp-precision",
}
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_EVERYTHING = 0x0003  # ETH_P_ALL
_SOL_PACKET, _ADD_MEMBERSHIP, _PROMISCUOUS = 263, 1, 1
_SO_TIMESTAMP = 29
_TIME = struct.Struct("=qq")
_GET_HARDWARE, _ETHERNET, _LOOPBACK = 0x8927, 1, 772
_OUTGOING = 4
_SNAPSHOT = 262_144
#: Link types of capture files: Ethernet, raw IP, and Linux cooked capture for "any".
_EN10MB, _RAW, _COOKED = 1, 101, 113


def main(arguments: Sequence[str]) -> int:
    """Run the capture and return the exit status of tcpdump."""
    try:
        options, expression = getopt.gnu_getopt(list(arguments), SHORT, LONG)
    except getopt.GetoptError:
        _be_tcpdump(arguments)  # prints the error message
    given = dict(options)
    if not _ITSELF.isdisjoint(given):
        _be_tcpdump(arguments)
    if not {"-D", "--list-interfaces"}.isdisjoint(given):
        sys.stdout.writelines(f"{index}.{name}\n" for index, name in socket.if_nameindex())
        return 0
    interface = given.get("-i", given.get("--interface", "")) or _first()
    snapshot = int(given.get("-s", given.get("--snapshot-length", "0"))) or _SNAPSHOT
    way = given.get("-Q", given.get("--direction", "inout"))
    try:
        capture, link_type = _open(
            interface, promiscuous=not {"-p", "--no-promiscuous-mode"} & given.keys()
        )
    except OSError as error:
        why = error.strerror or "No such device exists"
        sys.stderr.write(f"tcpdump: {interface}: {why}\n")
        return 1
    kept = [part for name, value in options if name not in _OURS for part in _spell(name, value)]
    line = [REAL, "-Z", "root", "-r", "-", *kept, *expression]
    for number in _ENDS:
        signal.signal(number, _end)
    # The reader exits only at the end of its input, so that no captured packet is lost.
    with subprocess.Popen(line, stdin=subprocess.PIPE, process_group=0) as reader:
        assert reader.stdin is not None
        with suppress(SystemExit, BrokenPipeError), reader.stdin as file:
            file.write(struct.pack("=IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, snapshot, link_type))
            file.flush()
            for record in _records(capture, reader.pid, link_type, snapshot, way):
                file.write(record)
                file.flush()
        return reader.wait()


def _end(*_: object) -> NoReturn:
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)
    raise SystemExit


def _be_tcpdump(arguments: Sequence[str]) -> NoReturn:
    # -Z root: the sandbox does not allow tcpdump to change to another user.
    os.execv(REAL, [REAL, "-Z", "root", *arguments])  # noqa: S606 -- the arguments are the agent's own


def _spell(name: str, value: str) -> list[str]:
    if name.startswith("--"):
        return [f"{name}={value}" if value else name]
    return [name, value] if value else [name]


def _first() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name != "lo"), "lo")


def _open(interface: str, *, promiscuous: bool) -> tuple[socket.socket, int]:
    """Return a socket that captures from an interface or ``any``, and its link type."""
    if interface.isdigit():
        interface = socket.if_indextoname(int(interface))
    kind, link_type, index = socket.SOCK_DGRAM, _COOKED, 0
    if interface != "any":
        index = socket.if_nametoindex(interface)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            told = fcntl.ioctl(asked, _GET_HARDWARE, struct.pack("16s24x", interface.encode()))
        ethernet = struct.unpack_from("=H", told, 16)[0] in {_ETHERNET, _LOOPBACK}
        kind, link_type = (socket.SOCK_RAW, _EN10MB) if ethernet else (socket.SOCK_DGRAM, _RAW)
    capture = socket.socket(socket.AF_PACKET, kind, 0 if index else socket.htons(_EVERYTHING))
    capture.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMP, 1)
    if index and promiscuous:
        request = struct.pack("=iHH8x", index, _PROMISCUOUS, 0)
        capture.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, request)
    if index:  # protocol 0: the socket receives no packets before bind
        capture.bind((interface, _EVERYTHING))
    capture.setblocking(False)
    return capture, link_type


def _records(
    capture: socket.socket, reader: int, link_type: int, snapshot: int, way: str
) -> Iterator[bytes]:
    """Yield captured packets as records of a capture file, until the reader exits."""
    life = os.pidfd_open(reader)
    while True:
        ready, _, _ = select.select([capture.fileno(), life], [], [])
        if life in ready:
            return
        data, about, _, source = capture.recvmsg(_SNAPSHOT, socket.CMSG_SPACE(_TIME.size))
        name, protocol, kind, hardware, address = source
        # a packet on lo is captured twice, when sent and when received; skip the first copy
        if kind == _OUTGOING and (way == "in" or name == "lo"):
            continue
        if kind != _OUTGOING and way == "out":
            continue
        seconds, micros = next((_TIME.unpack(one[2]) for one in about), (0, 0))
        if link_type == _COOKED:
            data = struct.pack("!HHH8sH", kind, hardware, len(address), address, protocol) + data
        size = min(len(data), snapshot)
        yield struct.pack("=IIII", seconds, micros, size, len(data)) + data[:size]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
