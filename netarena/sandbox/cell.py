"""Sandbox for one shell command that can reach one address of this machine.

    async with Cell({"kubectl": path}) as cell:
        result = await cell.run("kubectl get pods", address=("127.0.0.1", 6443), files=...)

A helper process that has already loaded its modules (the *warm* process) forks a relay for each
command. The relay forks the process that runs the command (``shell.run``, without capabilities).
That process is process 1 of new namespaces, whose network has only a loopback interface. A socket
in this network listens at the given address. The relay, which runs outside, receives the socket and
forwards a limited number of connections to the same address on the machine. After the command has
ended, its files are removed, except one small folder if the caller requests this (``Keep``).

Where namespaces are not available, as in a default container, landlock confines the command
(``confinement``), which is a weaker protection. ``examine`` reports the missing protections.

    python -m netarena.sandbox.cell DESCRIPTOR [WALLS]   run as the process of a ``child.Forker``
    python -m netarena.sandbox.cell                      report the features available here
"""

from __future__ import annotations

import asyncio
import contextlib
import encodings.ascii
import encodings.idna  # noqa: F401 -- imported early, because the user that commands run as may be unable to read it
import json
import os
import resource
import select
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

from netarena.aio import finish
from netarena.errors import EnvironmentFailed, NetArenaError, one_line
from netarena.sandbox import confinement, namespace, shell
from netarena.sandbox.caller import Caller
from netarena.sandbox.child import Forker, Forking, program, surroundings, try_out
from netarena.sandbox.folder import OwnFolder
from netarena.sandbox.fork import Forks
from netarena.sandbox.relay import Relay
from netarena.sandbox.scratch import Keep, pack, unpack
from netarena.sandbox.shell import CommandResult, Room, ShellLimits

__all__ = [
    "CELL_LIMITS",
    "MAX_CONNECTIONS",
    "Cell",
    "Keep",
    "Standing",
    "Walls",
    "examine",
    "lacking",
]

#: The mechanism that isolates commands.
Walls: TypeAlias = Literal["namespaces", "landlock"]
#: Function that takes a caller and returns an async context manager. Inside the context, the server
#: at the command's address accepts connections of this caller.
Admit: TypeAlias = Callable[[Caller], AbstractAsyncContextManager[None]]

#: Limits of one command. They are high, because Go programs reserve far more address space than
#: they use and start many threads.
CELL_LIMITS = ShellLimits(memory_bytes=512 << 20, address_bytes=4 << 30, processes=256)
#: Paths of the command's files and of the cache folder inside the command's own namespaces.
_PLACES = {"{files}": "/tmp", "{kept}": "/keep"}  # noqa: S108 -- the sandbox's own
#: Maximum number of concurrent connections; further connections are closed immediately.
MAX_CONNECTIONS = 32
#: Command-line advice for machines that lack required features.
REMEDY = (
    "apt-get install bubblewrap; in a container, docker run --privileged, or with fewer rights "
    "--security-opt seccomp=unconfined --security-opt systempaths=unconfined "
    "--security-opt apparmor=unconfined"
)

_MODULE = "netarena.sandbox.cell"  # not __name__, which is "__main__" if run as a program
_START_S = 60.0  # time to start the interpreter and import modules
_STOP_S = 10.0
#: Address at which no server listens, for commands that need no network.
NOWHERE = ("127.0.0.1", 9)
#: Time in s for setting up and removing the sandbox on a busy machine, in addition to the command's
#: time limit.
_GRACE_S = 90.0
_CHUNK_BYTES = 1 << 16
_MOST_BYTES = 16 << 20  # maximum size of one request or answer
#: Subfolder of the cell's folder where each command's in-memory file system is mounted.
_FOLDER = "keep"


@dataclass(frozen=True)
class Standing:
    """The features of this machine that a cell can use.

    ``lacking`` is the reason why no command can run, and ``reduced`` lists the protections that are
    weaker than namespaces. If both are empty, all features are available.
    """

    lacking: str = ""
    reduced: str = ""


class Cell(Forking):
    """Runs commands; use ``start`` and ``close``, or an async context manager.

    ``programs`` (name -> path, or the text of a script) take precedence over the system's programs.
    ``walls`` is the mechanism that isolates commands; the default is the strongest one that the
    machine offers.
    """

    def __init__(
        self, programs: Mapping[str, Path | str] | None = None, walls: Walls | None = None
    ) -> None:
        self._wanted = dict(programs or {})
        self._programs: dict[str, str] = {}
        self._home: OwnFolder | None = None
        super().__init__(
            Forker(
                "commands cannot be run",
                lambda control: program(_MODULE, control, walls or ""),
                start_s=_START_S,
                stop_s=_STOP_S,
                environment=surroundings(),
            )
        )
        self._starting = asyncio.Lock()
        self._commands = 0
        self._users: set[int] = set()
        self._asking: set[asyncio.StreamWriter] = set()
        #: The mechanism that isolates commands; None until the cell has started.
        self.walls: Walls | None = None
        self._unapart = ""
        #: CPU time in s of all commands so far, including the sandbox's own processes.
        self.cpu_s = 0.0

    async def start(self) -> None:
        """Start the warm process. ``run`` also does this, and restarts the process if it has died.

        Raises EnvironmentFailed; its message names the missing features of this machine.
        """
        async with self._starting:
            try:
                if self._home is None:
                    await finish(asyncio.to_thread(self._settle))
                said = await self._start_process()
            except BaseException:
                # this callback also runs if the start failed
                if self._forker.pid is None:
                    self._clear()
                raise
        self.walls, self._unapart = said["ready"], said["unapart"]

    async def run(  # noqa: PLR0913 -- the command's inputs
        self,
        command: str,
        *,
        address: tuple[str, int] = NOWHERE,
        files: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        keep: Keep | None = None,
        limits: ShellLimits = CELL_LIMITS,
        admit: Admit = lambda _: contextlib.nullcontext(),
    ) -> CommandResult:
        """Run ``command`` with bash; ``files`` (name -> content) are in its scratch directory.

        ``address`` is an IPv4 loopback address and a port, the same inside and outside; by default
        the command can reach no address. With ``keep``, the command may write to a folder that
        initially has the content from the end of the previous command. In ``environment``,
        ``{files}`` and ``{kept}`` are replaced with the paths of the two folders. ``admit``
        receives the caller that owns the command's connections. Its context is entered before the
        command starts and exited after the command ends.

        All processes of the command have ended when this method returns. Raises EnvironmentFailed
        if no command could run; the error is marked as proven if the sandbox could not be set up.
        """
        await self.start()
        assert self._home is not None
        request: dict[str, Any] = {
            "command": command,
            "address": address,
            "files": dict(files or {}),
            "environment": dict(environment or {}),
            "programs": self._programs,
            "folder": str(self._home.path / _FOLDER),
            "keep": None if keep is None else keep.pack(),
            "limits": asdict(limits),
        }
        self._commands += 1
        request["user"] = user = self._take_user()
        if self.walls == "landlock":
            request["folder"] += str(self._commands)
        try:
            answer = await self._ask(request, _GRACE_S + limits.wall_s, admit)
        finally:
            self._users.discard(user)
        self.cpu_s += answer.get("cpu_s", 0.0)
        if "failed" in answer:
            ours = bool(answer.get("ours"))
            raise EnvironmentFailed(
                one_line(f"a command could not be run: {answer['failed']}"), proven_ours=ours
            )
        if keep is not None and answer["kept"] is not None:
            keep.files = unpack(answer["kept"])
        return CommandResult(**answer["result"])

    async def close(self) -> None:
        """Stop the warm process and all running commands."""
        for writer in self._asking:
            writer.close()
        async with self._starting:
            await self._forker.close()
            self._clear()

    @property
    def reduced(self) -> str:
        """Return the protections that are weaker than namespaces, or "" if namespaces are used."""
        return f"{self._unapart}: {confinement.reduced()}" if self.walls == "landlock" else ""

    async def _start_process(self) -> dict[str, Any]:
        try:
            return await self._forker.start()
        except EnvironmentFailed as failed:
            raise EnvironmentFailed(f"{failed}; {REMEDY}", proven_ours=True) from None

    def _settle(self) -> None:
        """Create and fill the cell's own folder. This call blocks."""
        self._home = OwnFolder("netarena-cell-")
        self._programs = _furnish(self._home.path, self._wanted)

    def _clear(self) -> None:
        if self._home is not None:
            self._home.close()
            self._home = None

    async def _ask(
        self, request: Mapping[str, Any], within_s: float, admit: Admit
    ) -> dict[str, Any]:
        """Send a request and return the answer within the time limit.

        Closing the socket stops the command.
        """
        talk = await self._forker.talk(_MOST_BYTES)
        talk.end.cancel()  # the end of the stream also reports that the process has ended
        reader, writer = talk.reader, talk.writer
        self._asking.add(writer)
        try:
            async with asyncio.timeout(within_s):
                line = await reader.readline()
                if line.endswith(b"\n"):
                    async with admit(Caller(int(line), request["user"] or None)):
                        writer.write(json.dumps(request).encode() + b"\n")
                        await writer.drain()
                        line = await reader.readline()
        except (OSError, ValueError) as error:
            raise EnvironmentFailed(f"the process of a command does not answer: {error}") from None
        finally:
            self._asking.discard(writer)
            writer.close()
        if not line.endswith(b"\n"):
            raise EnvironmentFailed("the process of a command has exited")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _take_user(self) -> int:
        """Return the next id in ``USERS`` that no command uses; 0 means the service's user."""
        if os.geteuid():
            return 0
        users = confinement.USERS
        while (user := users[(os.getpid() + self._commands) % len(users)]) in self._users:
            self._commands += 1
        self._users.add(user)
        return user


def examine() -> Standing:
    """Return the features of this machine that a cell can use. This takes half a second."""
    if closed := _closed(Path(tempfile.gettempdir())):
        return Standing(closed)
    try:
        said = try_out(program(_MODULE), _START_S)
    except EnvironmentFailed as failed:
        return Standing(failed.detail)
    return Standing(**json.loads(said))


def lacking() -> str:
    """Return a one-line reason why cells cannot run commands here, or "" if they can."""
    return examine().lacking


def _furnish(home: Path, programs: Mapping[str, Path | str]) -> dict[str, str]:
    """Prepare the cell's folder. Return the path of each program that a command's user can read.

    Raises EnvironmentFailed if the users that run commands cannot enter the folder.
    """
    home.chmod(0o755)
    if closed := _closed(home.parent):
        raise EnvironmentFailed(closed, proven_ours=True)
    (home / _FOLDER).mkdir()
    return {
        name: str(_write(own, home / name) if isinstance(own, str) else _readable(own, home / name))
        for name, own in programs.items()
    }


def _closed(folder: Path) -> str:
    """Return the reason why the users that run commands cannot enter ``folder``, or "" if they
    can."""
    if os.geteuid() or _may_be_entered((folder, *folder.parents)):
        return ""
    return (
        f"{folder} is not accessible to other users, but commands run as another user: set "
        "TMPDIR to an accessible folder"
    )


def _may_be_entered(folders: Iterable[Path]) -> bool:
    """Return whether every user may enter all of the folders."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)


def _write(script: str, path: Path) -> Path:
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    return path


def _readable(program: Path, copy: Path) -> Path:
    """Return ``program`` if the users that run commands can read it; otherwise copy it to ``copy``
    and return ``copy``."""
    program = program.resolve()
    everybody = stat.S_IROTH | stat.S_IXOTH
    open_to_all = program.stat().st_mode & everybody == everybody
    if os.geteuid() or (open_to_all and _may_be_entered(program.parents)):
        return program
    shutil.copyfile(program, copy)
    copy.chmod(0o755)
    return copy


# The code below runs in the warm process and its children.


class _Commands(Forks):
    """Forks a relay for each command."""

    def __init__(self, control: socket.socket, walls: Walls) -> None:
        super().__init__(control)
        self._walls = walls

    def begin(self, connection: int) -> int:
        return self.spawn(lambda: _work(socket.socket(fileno=connection), self._walls))

    def leave(self) -> None:
        if self._walls == "namespaces":
            super().leave()
            return
        for pid in self._begun:  # a relay ends by itself when its caller's socket closes
            os.waitpid(pid, 0)


def _work(asked: socket.socket, walls: Walls) -> None:
    """Run one command, relay its connections, and send the answer (in a new child process)."""
    answer: dict[str, Any]
    try:
        if walls == "namespaces":
            namespace.die_with_parent()
        asked.sendall(b"%d\n" % os.getpid())
        with asked.makefile("rb") as lines:
            request = json.loads(lines.readline(_MOST_BYTES))
        answer = (_relayed if walls == "namespaces" else _confined)(request, asked)
    except BaseException as error:  # noqa: BLE001 -- no exception may return to the main loop
        answer = {"failed": f"{type(error).__name__}: {error}"}
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    answer["cpu_s"] = sum(one.ru_utime + one.ru_stime for one in used)
    asked.setblocking(True)
    with contextlib.suppress(OSError):
        asked.sendall(json.dumps(answer).encode() + b"\n")


def _confined(request: dict[str, Any], asked: socket.socket) -> dict[str, Any]:
    """Run a command without namespaces as a child of this process and return the answer."""
    keep = request["keep"] and Keep.unpack(request["keep"])
    task = confinement.Task(
        command=request["command"],
        port=request["address"][1],
        folder=Path(request["folder"]),
        user=request["user"] or None,
        files=request["files"],
        programs={name: Path(path) for name, path in request["programs"].items()},
        environment=request["environment"],
        keep=keep,
        limits=ShellLimits(**request["limits"]),
    )
    try:
        result, kept = confinement.run(task, asked)
    except EnvironmentFailed as error:
        return _failure(error)
    return _answer(result, keep, kept)


def _failure(error: EnvironmentFailed) -> dict[str, Any]:
    return {"failed": error.detail, "ours": error.proven_ours}


def _answer(
    result: CommandResult, keep: Keep | None, kept: dict[str, bytes] | None
) -> dict[str, Any]:
    if keep is not None and kept == keep.files:
        kept = None
    return {"result": asdict(result), "kept": None if kept is None else pack(kept)}


def _relayed(request: dict[str, Any], asked: socket.socket) -> dict[str, Any]:
    """Relay connections of the process that runs the command; return its answer."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        ours.close()
        asked.close()
        _live_apart(request, theirs)
    theirs.close()
    # the relay needs no privileges
    if user := request["user"]:  # the command's own user identifies its connections
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        namespace.die_with_parent()
    os.nice(shell.NICENESS)
    said, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if descriptors:
        listening = socket.socket(fileno=descriptors[0])
        said = asyncio.run(_carry(listening, tuple(request["address"]), ours, asked))
    else:
        while more := ours.recv(_CHUNK_BYTES):
            said += more
    ours.close()  # if the process still runs, closing its socket stops it
    os.waitpid(child, 0)
    answer: dict[str, Any] = json.loads(said or b'{"failed": "its process sent no answer"}')
    return answer


async def _carry(
    listening: socket.socket,
    address: tuple[str, int],
    answering: socket.socket,
    asked: socket.socket,
) -> bytes:
    """Relay connections until the answer arrives or the caller has ended."""
    relay = Relay(address, MAX_CONNECTIONS)
    await relay.start(listening)
    answer = asyncio.create_task(_read_all(answering))
    unasked = asyncio.create_task(_read_all(asked))
    await asyncio.wait([answer, unasked], return_when=asyncio.FIRST_COMPLETED)
    found = answer.result() if answer.done() else b'{"failed": "nobody waits for it"}'
    for task in (answer, unasked):
        task.cancel()
    await relay.close()
    return found


async def _read_all(end: socket.socket) -> bytes:
    end.setblocking(False)
    found = b""
    while more := await asyncio.get_running_loop().sock_recv(end, _CHUNK_BYTES):
        found += more
    return found


def _live_apart(request: dict[str, Any], telling: socket.socket) -> NoReturn:
    """Run the command in new namespaces, as process 1 (in a new child process)."""
    try:
        inner = namespace.isolate()
        if inner > 0:
            telling.close()
            os.waitpid(inner, 0)
            os._exit(0)
        answer = _run(request, telling)
    except EnvironmentFailed as error:
        answer = _failure(error)
    except namespace.NamespaceUnavailable as error:
        answer = {"failed": str(error), "ours": True}
    except BaseException as error:  # noqa: BLE001 -- no exception may return to the main loop
        answer = {"failed": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(OSError):
        telling.sendall(json.dumps(answer).encode())
    os._exit(0)


def _run(request: dict[str, Any], telling: socket.socket) -> dict[str, Any]:
    keep, folder = request["keep"] and Keep.unpack(request["keep"]), Path(request["folder"])
    try:
        if keep is not None:
            namespace.mount_memory(folder, keep.most_bytes, keep.most_files)
            keep.fill(folder)
        namespace.raise_loopback()
        with socket.create_server(tuple(request["address"]), backlog=MAX_CONNECTIONS) as listening:
            socket.send_fds(telling, [b"!"], [listening.fileno()])
    except (namespace.NamespaceUnavailable, OSError) as error:
        raise EnvironmentFailed(f"no sandbox could be created: {error}", proven_ours=True) from None
    waited_for = select.poll()
    waited_for.register(telling, 0)  # poll reports a hang-up even with mask 0

    def unwanted(_: int) -> str:
        return "nobody waits for it" if waited_for.poll(0) else ""

    home = namespace.current_network()
    environment = dict(request["environment"])
    for place, path in _PLACES.items():
        environment = {name: value.replace(place, path) for name, value in environment.items()}
    result = shell.run(
        request["command"],
        netns=home,
        limits=ShellLimits(**request["limits"]),
        watch=unwanted,
        room=Room(
            files=request["files"],
            programs={name: Path(path) for name, path in request["programs"].items()},
            folders={_PLACES["{kept}"]: folder} if keep is not None else {},
            environment=environment,
        ),
        capable=False,
    )
    return _answer(result, keep, keep.collect(folder) if keep is not None else None)


async def _try() -> Standing:
    """Return the machine's features, found by running a command with the best isolation."""
    try:
        async with Cell() as cell:
            result = await cell.run("true", address=("127.0.0.1", 9))
    except NetArenaError as error:
        return Standing(str(error))
    if result.told:
        return Standing(result.told)
    return Standing(reduced=cell.reduced)


def _unapart() -> str:
    """Return the reason why no command can run in its own namespaces, or "" if commands can."""
    return namespace.lacking() or shell.available()


def main() -> None:
    """Run this module as a program (see the module's docstring)."""
    if len(sys.argv) == 1:
        sys.stdout.write(json.dumps(asdict(asyncio.run(_try()))))
        return
    control = socket.socket(fileno=int(sys.argv[1]))
    wanted = sys.argv[2]
    os.chdir("/")
    unapart = _unapart() if wanted != "landlock" else ""
    walls: Walls = "landlock" if unapart or wanted == "landlock" else "namespaces"
    missing = unapart if wanted == "namespaces" else ""
    if walls == "landlock" and not missing and (unconfined := confinement.lacking()):
        missing = f"{unapart}, and {unconfined}" if unapart else unconfined
    if missing:
        control.send(json.dumps({"failed": missing}).encode())
        return
    shell.command_environment()
    _Commands(control, walls).serve(ready=walls, unapart=unapart)


if __name__ == "__main__":
    main()
