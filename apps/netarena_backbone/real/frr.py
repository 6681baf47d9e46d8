"""FRR on one router: configuration files, sandboxed daemons, and queries to the daemons' sockets.

Each router has its own four daemons (zebra, staticd, ospfd, bgpd). They are started from one
frr.conf, which is split in the same way as vtysh splits it. Like vtysh, this module sends each
daemon a command, terminated by a null character, over the daemon's socket. The answer is text,
three null characters and a status.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from netarena.sdk import (
    SHELL_ENVIRONMENT,
    Confined,
    EnvironmentFailed,
    ShellLimits,
    mount_memory,
    one_line,
)

#: Daemons in the order in which they start. zebra comes first: if the other daemons do not find its
#: socket on their first attempt, they retry only every ten seconds.
DAEMONS = ("zebra", "staticd", "ospfd", "bgpd")
PROGRAMS, VTYSH = Path("/usr/lib/frr"), Path("/usr/bin/vtysh")
#: Folder in which commands find the daemons' sockets.
SOCKETS = "/run/frr"
#: Folder for daemons' logs that commands can read, as in ``log file /var/log/frr/bgpd.log``.
LOGS = "/var/log/frr"
#: Files in ``LOGS`` with the messages of ``log stdout`` and of ``log syslog``.
STDOUT_LOG, SYSLOG_LOG = "stdout.log", "syslog.log"
#: Device to which the C library writes messages if no syslog daemon listens.
_CONSOLE = "/dev/console"
#: Shell loop that copies messages from the console, where lines end with a carriage return, to a
#: file. If the file system is full, messages are lost but the loop continues to read, because a
#: daemon that cannot write would stop.
_COPY = (
    f"exec 9<>{_CONSOLE}\n"
    f"while :; do (while IFS= read -r line; do printf '%s\\n' \"${{line%?}}\"; done) <&9"
    f" >>{LOGS}/{SYSLOG_LOG} 2>/dev/null; done &"
)
#: Resource limits of a router's daemons. They run for one episode and use about 1 % of its duration
#: as CPU time.
LIMITS = ShellLimits(cpu_s=120.0, memory_bytes=192 << 20, address_bytes=768 << 20)
#: Time limit in s on a busy machine, both for starting daemons and for saving all configurations.
_TRY_S = 20.0
#: Maximum number of characters of the list of refused log files in a note.
_NOTE_CHARS = 200
#: Folder for zebra's own socket and other files that only daemons may access.
_PRIVATE = "/run/private"
_ZEBRA = f"{_PRIVATE}/zserv.api"
_SLEEP = Path("/bin/sleep")
#: FIFO that delays bgpd.
_GATE = "/run/gate"

#: First words of a block -> daemons to which the block belongs; all other blocks belong to every
#: daemon
_OWNERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("router ospf", ("ospfd",)),
    ("router bgp", ("bgpd",)),
    ("bgp ", ("bgpd",)),
    ("ip route ", ("staticd",)),
    ("router-id ", ("zebra",)),
    ("ip router-id ", ("zebra",)),
    ("ip protocol ", ("zebra",)),
    ("ip nht ", ("zebra",)),
    ("ip prefix-list ", ("zebra", "ospfd", "bgpd")),
    ("access-list ", ("zebra", "ospfd", "bgpd")),
    ("ip access-list ", ("zebra", "ospfd", "bgpd")),
    ("route-map ", ("zebra", "ospfd", "bgpd")),
    ("key chain ", ("ospfd",)),
)
_INTERFACE = "interface "
#: First words of the lines below ``interface`` that belong to ospfd instead of zebra.
_OSPF = "ip ospf "
_NOTHING = ("!", "end", "exit")
#: Lines in the output of ``show running-config`` that are not commands.
_HEAD = re.compile(r"^(?:Building|Current) configuration.*$", re.MULTILINE)
#: Time limit for daemons to end after SIGTERM, and pause between checks.
_END_S, _END_PAUSE_S = 3.0, 0.01
#: Message that vtysh prints after saving, and the mode of a saved file.
_SAVED, _SAVED_MODE = b"configuration saved to", 0o640


#: Name of a log file in the output of ``show logging``, or in the error message about a log file
#: that cannot be opened.
_LOG_FILE = re.compile(
    r"^(?:File logging: level \w+, filename |can't open logfile )(?P<path>[^\r\n]+)", re.MULTILINE
)


def refused_logs(output: str, logs: Path) -> str:
    """Return a note on the log files in a command's output that FRR cannot write, or "".

    ``logs`` is the folder that commands see as ``LOGS``.
    """
    named = dict.fromkeys(match["path"].strip() for match in _LOG_FILE.finditer(output))
    refused = [one for one in named if not _is_written(Path(one), logs)]
    if not refused:
        return ""
    return (
        f"refused log file: {one_line(', '.join(refused), _NOTE_CHARS)}; FRR writes only files "
        f"directly in {LOGS}, for example {LOGS}/ospfd.log, 1 MiB in total; messages of "
        f"'log stdout' and 'log syslog' are in {STDOUT_LOG} and {SYSLOG_LOG} there"
    )


def _is_written(path: Path, logs: Path) -> bool:
    """Return whether FRR has opened the log file, which must be directly in the folder ``logs``."""
    try:
        return path.parent == Path(LOGS) and (logs / path.name).is_file()
    except OSError:  # the name is too long
        return False


def missing() -> str:
    """Return a message about missing files of FRR, or "" if FRR is installed."""
    gone = [path for path in (*(PROGRAMS / name for name in DAEMONS), VTYSH) if not path.is_file()]
    return f"FRR is not installed: {gone[0]} does not exist" if gone else ""


def split(text: str) -> dict[str, str]:
    """Split the output of ``show running-config`` into the configurations of the daemons.

    A block is a line and the lines indented below it.
    """
    parts: dict[str, list[str]] = {name: [] for name in DAEMONS}
    owners: Sequence[str] = DAEMONS
    interface = False
    for line in text.splitlines():
        if not line.strip() or line.strip().startswith(_NOTHING):
            continue
        if not line.startswith(" "):
            interface = line.startswith(_INTERFACE)
            owners = next((who for words, who in _OWNERS if line.startswith(words)), DAEMONS)
            if interface:
                owners = ("zebra", "ospfd")
            for name in owners:
                parts[name].append(line)
        elif interface:
            own = line.strip().startswith((_OSPF, f"no {_OSPF}"))
            parts["ospfd" if own else "zebra"].append(line)
        else:
            for name in owners:
                parts[name].append(line)
    return {name: "\n".join(lines) + "\n" for name, lines in parts.items()}


def needed(text: str) -> tuple[str, ...]:
    """Return the daemons that an frr.conf needs; for example, ospfd is needed only for ``router
    ospf``."""
    words = {"ospfd": "router ospf", "bgpd": "router bgp"}
    lines = text.splitlines()
    return tuple(
        name
        for name in DAEMONS
        if name not in words or any(line.startswith(words[name]) for line in lines)
    )


def hold(  # noqa: PLR0913 -- all inputs of a router's daemons
    parts: Mapping[str, str],
    *,
    netns: int,
    hostname: str,
    sockets: Path,
    logs: Path | None = None,
    console: Path | None = None,
    gate: Path | None = None,
    daemons: Sequence[str] = DAEMONS,
) -> Confined:
    """Start a router's daemons, which listen in the folder ``sockets`` about 0.3 s later.

    ``parts`` contains the configuration of each daemon. Logs are written to the folder ``logs``.
    ``console`` is a pipe (a FIFO) for the messages of ``log syslog``; it requires ``logs``. With
    ``gate``, also a FIFO, bgpd starts only when a line is written into it.
    """
    texts = {
        "/etc/passwd": "root:x:0:0:root:/tmp:/bin/sh\n",
        # Daemons do not start without the group frrvty.
        "/etc/group": "root:x:0:\nfrrvty:x:0:root\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\n",
    }
    texts |= {f"/etc/frr/{name}.conf": part for name, part in parts.items()}
    wait_at_gate = {"bgpd": f"read _ <{_GATE}; "} if gate is not None else {}
    first, *rest = (
        f"({wait_at_gate.get(name, '')}exec {PROGRAMS / name} -u root -g root -A 127.0.0.1 -P 0"
        f" -f /etc/frr/{name}.conf -z {_ZEBRA} -i {_PRIVATE}/{name}.pid --vty_socket {SOCKETS}) &"
        for name in daemons
    )
    # The daemons' option -d would close the standard output. Without it, the script must wait for
    # zebra's socket.
    wait = f"until [ -S {_ZEBRA} ] || ! kill -0 $! 2>/dev/null; do {_SLEEP} 0.02; done"
    script = "\n".join((first, wait, *rest))
    folders = {SOCKETS: sockets}
    if logs is not None:
        folders[LOGS] = logs
        script = f"exec >>{LOGS}/{STDOUT_LOG}\n{script}"
    if console is not None:
        folders[_CONSOLE] = console
        script += f"\n{_COPY}"
    if gate is not None:
        folders[_GATE] = gate
    return Confined(
        script,
        netns=netns,
        hostname=hostname,
        programs=[*(PROGRAMS / name for name in daemons), _SLEEP],
        texts=texts,
        folders=folders,
        limits=LIMITS,
        # The daemons see no other log folder, because commands could not read it.
        private=[_PRIVATE],
        home="/" if logs is None else LOGS,
    )


def try_out(netns: int) -> str:
    """Return the reason why daemons do not start on this host, or "" if they start.

    Must be called by process 1 of an episode's namespaces.
    """
    if problem := missing():
        return problem
    home = Path("/mnt")
    mount_memory(home, 1 << 16, 32)
    with hold(
        split("hostname r\n"), netns=netns, hostname="r", sockets=home, daemons=DAEMONS
    ) as held:
        terminals = Terminals()
        try:
            deadline = time.monotonic() + _TRY_S
            while missed := [one for one in DAEMONS if not terminals.reach(("r", one), home)]:
                if time.monotonic() > deadline or not held.alive:
                    return f"FRR daemon {missed[0]} does not start"
                time.sleep(0.01)  # wait until the programs have started
        finally:
            terminals.close()
    return ""


def save(routers: Iterable[tuple[str, Path, Path]]) -> None:
    """Save each router's configuration with vtysh.

    ``routers`` yields (name, socket folder, target folder). Each vtysh runs in a UTS namespace,
    because it writes the host name into the file.

    Raises EnvironmentFailed if vtysh fails. Failures are detected from the output, because the exit
    status is 1 even if the file was saved: vtysh cannot change the file's owner to FRR's user. This
    user does not exist in a user namespace.
    """
    running = [
        (
            saved / "frr.conf",
            subprocess.Popen(
                [
                    *("bwrap", "--dev-bind", "/", "/", "--unshare-uts", "--hostname", name, "--"),
                    *(VTYSH, "--vty_socket", sockets, "--config_dir", saved, "--writeconfig"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=SHELL_ENVIRONMENT,
            ),
        )
        for name, sockets, saved in routers
    ]
    deadline = time.monotonic() + _TRY_S
    try:
        for file, one in running:
            told, _ = one.communicate(timeout=max(0.0, deadline - time.monotonic()))
            if _SAVED not in told:
                words = told.decode("utf-8", "replace")
                raise EnvironmentFailed(f"vtysh did not save the configuration: {words}")
            file.chmod(_SAVED_MODE)
    except subprocess.TimeoutExpired:
        raise EnvironmentFailed("vtysh did not exit in time") from None
    finally:
        for _, one in running:
            one.kill()
            one.wait()


def running(
    terminals: Terminals, routers: Mapping[str, Iterable[str]]
) -> dict[str, dict[str, str]]:
    """Return the running configuration of each router's daemons.

    ``routers`` maps each router to its daemons. Raises EnvironmentFailed if a daemon does not
    answer.
    """
    asked = {
        (name, daemon): ("show running-config",)
        for name, daemons in routers.items()
        for daemon in daemons
    }
    answers = terminals.ask(asked, LONG_S)
    if silent := asked.keys() - answers.keys():
        raise EnvironmentFailed(f"no answer from {' of '.join(reversed(min(silent)))}")
    parts: dict[str, dict[str, str]] = {name: {} for name in routers}
    for (name, daemon), said in answers.items():
        parts[name][daemon] = _HEAD.sub("", said[0].text)
    return parts


def end(held: Sequence[Confined]) -> None:
    """End the daemons of several routers with SIGTERM; after ``_END_S``, kill daemons that still
    run."""
    for one in held:
        one.terminate()
    deadline = time.monotonic() + _END_S
    for one in held:
        while one.running() and time.monotonic() < deadline:
            # the daemons are not child processes, so their end must be polled
            time.sleep(_END_PAUSE_S)
        one.close()


# -------------------------------------------------------------------------------- queries

#: A machine and the name of a daemon.
Who: TypeAlias = tuple[str, str]
_END = b"\0\0\0"
#: Time limits for answers: for queries during convergence, and longer for judgements, because a
#: daemon may be busy.
_SOON_S, LONG_S = 5.0, 15.0
#: Maximum size of one answer, enough for a table of thousands of routes.
_MOST_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 16


class Answer(NamedTuple):
    """Output of one command, and its status (0: success)."""

    text: str
    status: int

    @property
    def value(self) -> Any:
        """The output as JSON, or None if it is not JSON."""
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(self.text)
        return None


class Terminals:
    """Sockets to all daemons, which can be queried at the same time.

    Daemons run configurations of agents. Therefore their answers are limited in size and time.
    After a late answer, the next query uses a new socket.
    """

    def __init__(self) -> None:
        self._sockets: dict[Who, socket.socket] = {}
        self._paths: dict[Who, Path] = {}
        #: Daemons whose socket has not been used for a query yet.
        self._fresh: set[Who] = set()
        #: Daemons that listen, but did not answer the last queries in time.
        self.late: set[Who] = set()

    def close(self) -> None:
        for one in self._sockets.values():
            one.close()
        self._sockets.clear()
        self._paths.clear()

    def __contains__(self, who: object) -> bool:
        return who in self._sockets

    def reach(self, who: Who, folder: Path) -> bool:
        """Return whether the daemon listens in its router's folder and can therefore be queried."""
        self._paths[who] = folder / f"{who[1]}.vty"
        return self._socket(who) is not None

    def _socket(self, who: Who) -> socket.socket | None:
        """Return a socket to a daemon for which ``reach`` was called, or None if it does not
        listen."""
        if who in self._sockets or who not in self._paths:
            return self._sockets.get(who)
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        # A blocking connect would hang if the connection queue of a busy daemon were full.
        one.setblocking(False)
        try:
            one.connect(str(self._paths[who]))
        except BlockingIOError:
            self.late.add(who)
            one.close()
            return None
        except OSError:
            one.close()
            return None
        self._sockets[who] = one
        self._fresh.add(who)
        return one

    def forget(self, router: str) -> None:
        """Close the sockets to a router's daemons, after the daemons have ended."""
        for who in [who for who in self._sockets if who[0] == router]:
            self._forget(who)
        self.late = {who for who in self.late if who[0] != router}

    def _forget(self, who: Who) -> None:
        self._sockets.pop(who).close()
        self._fresh.discard(who)

    def ask(
        self, questions: Mapping[Who, Sequence[str]], within_s: float = _SOON_S
    ) -> dict[Who, list[Answer]]:
        """Return the answers of the daemons that answered all of their queries in time."""
        deadline = time.monotonic() + within_s
        open_: dict[int, tuple[Who, _Reading]] = {}
        poll = select.poll()
        self.late.difference_update(questions)
        for who, commands in questions.items():
            one = self._socket(who)
            if one is None or not commands:
                continue
            before = ("enable",) * (who in self._fresh)
            try:
                one.sendall(b"".join(text.encode() + b"\0" for text in (*before, *commands)))
            except OSError:
                self._forget(who)
                continue
            self._fresh.discard(who)
            open_[one.fileno()] = who, _Reading(len(commands), skipped=len(before))
            poll.register(one, select.POLLIN)
        found: dict[Who, list[Answer]] = {}
        while open_:
            ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            for descriptor, _ in ready:
                who, reading = open_[descriptor]
                try:
                    chunk = self._sockets[who].recv(_CHUNK_BYTES)
                except BlockingIOError:
                    continue
                except OSError:
                    chunk = b""
                if chunk and reading.add(chunk):
                    found[who] = reading.answers
                elif chunk and not reading.excessive:
                    continue
                else:
                    self._forget(who)
                poll.unregister(descriptor)
                del open_[descriptor]
            if not ready:
                for who, _ in open_.values():
                    # on the old socket, the late answer would be read as that of the next query
                    self._forget(who)
                    self.late.add(who)
                break
        return found


class _Reading:
    """The answers received from a daemon so far."""

    def __init__(self, wanted: int, *, skipped: int) -> None:
        self._wanted, self._skipped = wanted, skipped
        self._text = bytearray()
        self._total = 0
        self.answers: list[Answer] = []

    @property
    def excessive(self) -> bool:
        return self._total > _MOST_BYTES

    def add(self, chunk: bytes) -> bool:
        """Add received bytes; return whether all answers are complete."""
        start = max(0, len(self._text) - len(_END))
        self._text += chunk
        self._total += len(chunk)
        while (at := self._text.find(_END, start)) >= 0 and at + len(_END) < len(self._text):
            said = self._text[:at].decode("utf-8", "replace")
            if self._skipped:
                self._skipped -= 1
            else:
                self.answers.append(Answer(said, self._text[at + len(_END)]))
            del self._text[: at + len(_END) + 1]
            start = 0
        return len(self.answers) >= self._wanted
