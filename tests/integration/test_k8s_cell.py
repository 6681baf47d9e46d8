"""Commands of agents in their sandbox can use kubectl and one API server, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Self, TypeVar

import pytest

from netarena.errors import ConfigError, EnvironmentFailed
from netarena.model import Severity, Step
from netarena.sandbox import cell as sandbox
from netarena.sandbox.cell import CELL_LIMITS, MAX_CONNECTIONS, Cell, Keep, Standing, Walls
from netarena.sandbox.syntax import REFUSED
from netarena_k8s import diagnosis
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.embedded.cluster import Embedded
from netarena_k8s.kubectl import Kubectl, programs
from netarena_k8s.refusal import came_to_nothing
from netarena_k8s.world.boutique import boutique

T = TypeVar("T")
#: decorator of tests that run with both kinds of sandbox (the argument ``walls``)
each = pytest.mark.parametrize(
    "walls",
    [
        pytest.param("namespaces", marks=pytest.mark.requires("namespaces")),
        pytest.param("landlock", marks=pytest.mark.requires("confinement")),
    ],
)
NOWHERE = ("127.0.0.1", 9)
SECRET = "correct-horse-battery-staple"
#: sleeps longer than any test, with an argument that no other test run on this machine uses
NAP = f"sleep 987654.{uuid.uuid4().int}"


def in_cell(walls: Walls, scene: Callable[[Cell], Awaitable[T]]) -> T:
    async def go() -> T:
        async with Cell(walls=walls) as cell:
            assert cell.walls == walls
            return await scene(cell)

    return asyncio.run(go())


class Echo:
    """A loopback server that repeats what it receives and counts its connections."""

    def __init__(self) -> None:
        self._listening = socket.create_server((*NOWHERE[:1], 0), backlog=200)
        self.address: tuple[str, int] = self._listening.getsockname()
        self.met = 0
        self.most = 0
        self._open = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with self._lock:
                self.met += 1
                self._open += 1
                self.most = max(self.most, self._open)
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            with closing(connection):
                while told := connection.recv(65536):
                    connection.sendall(told)
        except OSError:
            pass
        finally:
            with self._lock:
                self._open -= 1


@each
def test_real_kubectl_works_and_caches_discovery(walls: Walls) -> None:
    async def go() -> None:
        async with Embedded() as cluster, Cell(programs(), walls) as cell:
            deployed = await cluster.deploy(boutique())
            kubectl = Kubectl(cell, deployed.access, deployed.admit)
            first = await kubectl.run("kubectl get pods -o name | sort | head -n 1")
            assert first.told.startswith("pod/adservice")
            assert kubectl._cache.files
            patch = '{"spec":{"podSelector":{"matchLabels":{"app":"nobody"}}}}'
            name = boutique().policies[0].name
            patched = await kubectl.run(f"kubectl patch networkpolicy {name} -p '{patch}'")
            assert patched.told == f"networkpolicy.networking.k8s.io/{name} patched\n"
            assert "nobody" in str((await deployed.look()).policies)
            refused = await kubectl.run("kubectl delete pods --all")
            assert refused.exit == 1
            assert "Forbidden" in refused.told
            # an editor would wait for input, and read the rest of the command line
            edited = await kubectl.run(f"kubectl edit networkpolicy {name}; echo after")
            assert "use kubectl patch" in edited.told
            assert edited.told.endswith("after\n")
            alone = await kubectl.run(f"KUBE_EDITOR=nano kubectl edit networkpolicy {name}")
            assert came_to_nothing(Step(prompt="", executed=True, output=alone.told))
            own = f"EDITOR='sed -i s/nobody/somebody/' kubectl edit networkpolicy {name}"
            assert (await kubectl.run(own)).told.endswith(f"{name} edited\n")
            # another episode's server is as unreachable as any other address
            other = await cluster.deploy(boutique())
            away = await kubectl.run(
                f"kubectl --server=https://127.0.0.1:{other.access.port} get pods"
            )
            assert {"namespaces": "refused", "landlock": "permission denied"}[walls] in away.told
            await asyncio.gather(deployed.close(), other.close())

    asyncio.run(go())


@each
def test_command_with_an_unclosed_construct_writes_nothing(walls: Walls) -> None:
    """The first line is a complete command, but the agent meant the loop to contain it."""

    async def go() -> None:
        async with Embedded() as cluster, Cell(programs(), walls) as cell:
            deployed = await cluster.deploy(boutique())
            before = (await deployed.look()).policies
            kubectl = Kubectl(cell, deployed.access, deployed.admit)
            name = boutique().policies[0].name
            patch = f'kubectl patch networkpolicy {name} -p \'{{"spec":{{"ingress":[]}}}}\''
            for rest in (
                "for p in a b; do",
                "if kubectl get pods; then",
                "{ kubectl get pods",
                ">",
            ):
                half = await kubectl.run(f"{patch}\n{rest}")
                assert half.output.startswith(REFUSED)
                assert came_to_nothing(Step(prompt="", executed=True, output=half.told))
            assert (await deployed.look()).policies == before
            whole = await kubectl.run(f"{patch}\nfor p in a b; do\n  echo $p\ndone")
            assert whole.told.endswith("patched\na\nb\n")
            await deployed.close()

    asyncio.run(go())


@each
def test_command_can_connect_only_to_the_given_address(walls: Walls) -> None:
    with (
        Echo() as echo,
        Echo() as other,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as abstract,
        tempfile.TemporaryDirectory() as folder,
    ):
        datagrams.bind(("127.0.0.1", 0))
        datagrams.setblocking(False)
        Path(folder).chmod(0o755)
        named.bind(f"{folder}/socket")
        named.listen()
        abstract.bind(f"\0netarena-test-cell-{os.getpid()}")
        abstract.listen()
        port = echo.address[1]
        command = (
            f"exec 3<>/dev/tcp/127.0.0.1/{port}; echo hello >&3; read -r -u 3 line; "
            "echo got $line; exec 3>&-\n"
            f"for p in {other.address[1]} 22 53; do (exec 3<>/dev/tcp/127.0.0.1/$p) && "
            "echo REACHED; done 2>&1\n"
            f"echo x > /dev/udp/127.0.0.1/{datagrams.getsockname()[1]}\n"
            f"echo x > /dev/udp/127.0.0.1/{port}\n"
            "(exec 3<>/dev/tcp/192.0.2.1/80) && echo REACHED\n"
            f"ls {folder} && echo REACHED\n"
            "grep -q @netarena /proc/net/unix && echo REACHED\n"
            "ip -o link | wc -l; grep CapEff /proc/self/status\n"
            "ip link set lo down && echo REACHED\n"
            "echo 1 > /proc/sys/net/ipv4/ip_default_ttl && echo REACHED\n"
            "unshare -Ur true && echo REACHED\n"
        )
        output = in_cell(walls, lambda cell: cell.run(command, address=echo.address)).output
        assert output.startswith("got hello\n")
        assert "REACHED" not in output
        if walls == "namespaces":
            assert output.count("Connection refused") >= 3
            assert "\n1\nCapEff:\t0000000000000000\n" in output
        else:
            assert output.count("connect: Permission denied") == 4
            assert output.count("bash: socket: Operation not permitted") == 2
        assert (echo.met, other.met) == (1, 0)
        with pytest.raises(BlockingIOError):
            datagrams.recv(10)


@each
def test_large_amounts_of_data_are_transferred_in_both_directions(walls: Walls) -> None:
    command = (
        "exec 3<>/dev/tcp/127.0.0.1/{}; head -c 5000000 /dev/zero >&3 & "
        "exec 3<>/dev/tcp/127.0.0.1/{}; (head -c 3000000 /dev/zero >&3) & "
        "head -c 3000000 <&3 | wc -c; kill %1"
    )
    with Echo() as echo:
        port = echo.address[1]
        result = in_cell(
            walls, lambda cell: cell.run(command.format(port, port), address=echo.address)
        )
    assert result.output.splitlines()[0] == "3000000"


@pytest.mark.requires("namespaces")
def test_number_of_connections_is_limited() -> None:
    open_many = (
        'for i in $(seq 10 89); do eval "exec $i<>/dev/tcp/127.0.0.1/{0}"; '
        'eval "echo x >&$i" 2>/dev/null; done; n=0; for i in $(seq 10 89); do '
        "read -t 5 -u $i line && n=$((n+1)); done; echo $n"
    )
    with Echo() as echo:
        port = echo.address[1]
        result = in_cell(
            "namespaces",
            lambda cell: cell.run(
                open_many.format(port), address=echo.address, limits=replace(CELL_LIMITS, wall_s=60)
            ),
        )
        assert result.output.splitlines()[-1] == str(MAX_CONNECTIONS)
        assert echo.most <= MAX_CONNECTIONS


@pytest.mark.requires("root")
@each
def test_inaccessible_temporary_folder_is_an_environment_failure_before_any_command(
    walls: Walls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cause is the machine: no command of another user can enter the temporary folder."""
    tmp_path.chmod(0o700)

    async def scene() -> None:
        cell = Cell(walls=walls)
        with monkeypatch.context() as closed:
            closed.setattr(tempfile, "tempdir", str(tmp_path))
            with pytest.raises(
                EnvironmentFailed, match=r"is not accessible to other users.*TMPDIR"
            ) as failed:
                await cell.start()
            assert sandbox.examine().lacking == failed.value.detail
        assert failed.value.proven_ours
        async with cell:
            assert (await cell.run("echo here", address=NOWHERE)).output == "here\n"

    asyncio.run(scene())
    assert not list(tmp_path.iterdir())


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use a temporary folder that no other process uses and commands can enter; yield its path."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def _within(folder: Path) -> list[Path]:
    return list(folder.iterdir())


#: program of a service that runs until it is killed; prints "ready" when its cell is ready
_SERVICE = """
import asyncio, sys
from netarena.sandbox.cell import Cell
async def go():
    async with Cell(walls=sys.argv[1]):
        print("ready", flush=True)
        await asyncio.sleep(600)
asyncio.run(go())
"""


@each
def test_folder_of_a_killed_service_is_removed_by_the_next_one(
    walls: Walls, temporary: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _SERVICE, walls],
        env={**os.environ, **_paths(), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
    ) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == b"ready\n"
        service.kill()
    (left,) = _within(temporary)

    async def scene(cell: Cell) -> None:
        (own,) = _within(temporary)
        assert own.name.startswith("netarena-cell-")
        assert own != left
        assert own.stat().st_mode & 0o777 == 0o755

    in_cell(walls, scene)
    assert not _within(temporary)


def test_cancelled_start_waits_for_its_folder_and_leaves_nothing_behind(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_go_on = threading.Event(), threading.Event()

    def furnish(home: Path, programs: object) -> dict[str, str]:
        began.set()
        may_go_on.wait(60)
        (home / "late").mkdir()
        return {}

    monkeypatch.setattr(sandbox, "_furnish", furnish)

    async def scene() -> None:
        cell = Cell()
        starting = asyncio.create_task(cell.start())
        await _until(began.is_set)
        for _ in range(2):
            starting.cancel()
            await asyncio.sleep(0.1)
        assert not starting.done()
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not _within(temporary)
        assert cell.pid is None

    asyncio.run(scene())


def test_start_that_is_cancelled_while_its_process_loads_leaves_nothing_behind(
    temporary: Path,
) -> None:
    async def scene() -> None:
        cell = Cell()
        starting = asyncio.create_task(cell.start())
        await _until(lambda: cell.pid is not None)
        assert _within(temporary)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not _within(temporary)
        assert cell.pid is None

    asyncio.run(scene())


@each
def test_concurrent_start_is_not_affected_by_a_cancelled_one(walls: Walls) -> None:
    async def scene() -> None:
        cell = Cell(walls=walls)
        first, second = (
            asyncio.create_task(cell.run("echo here", address=NOWHERE)) for _ in range(2)
        )
        await _until(lambda: cell.pid is not None)
        first.cancel()
        assert (await second).output == "here\n"
        assert first.cancelled()
        await cell.close()

    asyncio.run(scene())


@each
def test_given_files_are_read_only_and_the_scratch_folder_is_kept(walls: Walls) -> None:
    keep = Keep(most_bytes=1 << 20, most_files=20)

    async def scene(cell: Cell) -> list[str]:
        commands = (
            (
                "cat $F; echo y > $F; rm -f $F; mkdir -p $K/a; echo one > $K/a/b; ln -s b $K/a/c\n"
                "mkfifo $K/pipe; truncate -s 6M $K/holes; echo $MINE"
            ),
            "cat $K/a/b; cd $K; ls . a",
            "rm -r $K/a; head -c 2M /dev/zero > $K/full; touch $K/{1..50}",
            "ls $K | wc -l; cat $F",
        )
        return [
            (
                await cell.run(
                    command,
                    address=NOWHERE,
                    files={"note": SECRET + "\n"},
                    environment={"K": "{kept}", "F": "{files}/note", "MINE": "variable"},
                    keep=keep,
                )
            ).output
            for command in commands
        ]

    first, second, third, fourth = in_cell(walls, scene)
    assert first.startswith(SECRET + "\n")
    assert first.endswith("variable\n")
    refusal = {"namespaces": "Read-only file system", "landlock": "Permission denied"}[walls]
    assert refusal in first.splitlines()[1]
    assert second == "one\n.:\na\n\na:\nb\n"
    if walls == "namespaces":
        assert third.count("No space left on device") >= 31
    assert sum(map(len, keep.files.values())) <= keep.most_bytes
    assert len(keep.files) <= keep.most_files
    assert fourth.splitlines()[1] == SECRET


@each
def test_command_inherits_only_the_three_standard_descriptors(walls: Walls) -> None:
    """With one of the service's sockets, a command could answer in place of the sandbox."""
    command = (
        "for fd in {3..99}; do { : >&$fd; } && echo WRITES $fd; { : <&$fd; } && echo READS $fd; "
        "done 2> errors; grep -c 'Bad file descriptor' errors"
    )
    result = in_cell(walls, lambda cell: cell.run(command, address=NOWHERE))
    # bash temporarily saves its standard error as descriptor 10
    output = result.output.replace("WRITES 10\nREADS 10\n", "")
    assert output in {f"{2 * 97}\n", f"{2 * 96}\n"}


@each
def test_unlinked_files_count_towards_the_limit(walls: Walls) -> None:
    command = (
        'for i in {11..40}; do eval "exec $i> big"; head -c 7M /dev/zero >&$i 2>/dev/null || '
        "exit 3; rm big; done; sleep 1; echo HELD"
    )
    result = in_cell(walls, lambda cell: cell.run(command, address=NOWHERE))
    assert "HELD" not in result.output
    told = {"namespaces": "exit status 3", "landlock": "files without a name"}[walls]
    assert told in result.told


@each
def test_time_and_number_of_processes_are_limited_and_no_process_remains(walls: Walls) -> None:
    async def scene(cell: Cell) -> None:
        short = replace(CELL_LIMITS, wall_s=1)
        result = await cell.run(f"setsid {NAP} & {NAP}", address=NOWHERE, limits=short)
        assert result.timed_out
        assert not _sleepers()
        busy = await cell.run(
            "while :; do :; done",
            address=NOWHERE,
            limits=replace(CELL_LIMITS, wall_s=60, cpu_s=0.2),
        )
        assert busy.stopped == "a process used more than 0.2 s of CPU time"
        bomb = await cell.run(":(){ :|:& };:; wait", address=NOWHERE, limits=short)
        assert bomb.exit is None or bomb.exit >= 0
        assert (await cell.run("echo fine", address=NOWHERE)).output == "fine\n"

    in_cell(walls, scene)


@each
def test_command_whose_time_has_expired_is_interrupted_first_and_its_output_is_kept(
    walls: Walls,
) -> None:
    async def scene(cell: Cell) -> None:
        command = f"(echo begun; {NAP}) | grep begun & trap 'echo asked; exit' INT; {NAP} & wait"
        for wall_s in (0.2, 1.0, 5.0, 25.0):  # longer times are for busy machines
            short = replace(CELL_LIMITS, wall_s=wall_s)
            result = await cell.run(command, address=NOWHERE, limits=short)
            if "asked" in result.output and "begun" in result.output:
                break
        assert result.told == f"begun\nasked\n[stopped: it ran for {wall_s:g} s]\n"

    in_cell(walls, scene)


@each
def test_cancelled_command_ends(walls: Walls) -> None:
    async def scene(cell: Cell) -> None:
        with Echo() as echo:
            port = echo.address[1]
            task = asyncio.create_task(
                cell.run(f"exec 3<>/dev/tcp/127.0.0.1/{port}; {NAP}", address=echo.address)
            )
            await _until(lambda: echo.met == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await _until(lambda: not _sleepers())

    in_cell(walls, scene)


@each
def test_warm_process_that_died_is_restarted(walls: Walls) -> None:
    async def scene(cell: Cell) -> None:
        dead = cell.pid
        assert dead is not None
        os.kill(dead, signal.SIGKILL)
        await _until(lambda: cell.pid is None)
        assert (await cell.run("echo again", address=NOWHERE)).output == "again\n"

    in_cell(walls, scene)


@each
def test_sandbox_that_cannot_be_built_is_an_environment_failure(walls: Walls) -> None:
    """The sandbox fails before the command runs, so the agent is not the cause."""

    async def scene(cell: Cell) -> None:
        assert cell._home is not None
        shutil.rmtree(cell._home.path)
        with pytest.raises(EnvironmentFailed, match="No such file") as failed:
            await cell.run("true", address=NOWHERE, keep=Keep())
        assert failed.value.proven_ours

    in_cell(walls, scene)


@each
def test_command_that_cannot_be_executed_is_an_agent_failure(walls: Walls) -> None:
    """If this were an environment failure, an agent could void its episode with such a command.

    Where the sandbox replaces ``/tmp`` with a longer path, the command becomes too long.
    """

    async def scene(cell: Cell) -> None:
        result = await cell.run("true " + "/tmp " * 13_000, address=NOWHERE)
        assert result.exit == 0 or "too long" in result.stopped
        assert "null character" in (await cell.run("true \0", address=NOWHERE)).stopped
        assert (await cell.run("true", address=NOWHERE)).exit == 0

    in_cell(walls, scene)


@pytest.mark.requires("namespaces", "confinement")
def test_missing_sandbox_requirement_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sandbox.examine() == Standing()
    assert all(check.ok for check in diagnosis.diagnose())
    diagnosis.check(KubernetesConfig())

    monkeypatch.setattr(sandbox, "surroundings", lambda: {"PATH": "/nowhere", **_paths()})
    with pytest.raises(EnvironmentFailed, match="bubblewrap is not installed"):
        in_cell("namespaces", lambda cell: cell.run("true", address=NOWHERE))
    standing = asyncio.run(sandbox._try())
    monkeypatch.setattr(sandbox, "examine", lambda: standing)
    assert not standing.lacking
    assert standing.reduced.startswith("bubblewrap is not installed")
    assert "port number at any address" in standing.reduced

    diagnosis._cell.cache_clear()
    (note,) = (check for check in diagnosis.diagnose() if not check.ok)
    assert (note.severity, note.detail) == (Severity.NOTE, standing.reduced)
    assert "apt-get install bubblewrap" in note.remedy
    diagnosis.check(KubernetesConfig())

    monkeypatch.setattr(sandbox, "examine", lambda: Standing("there is no landlock"))
    diagnosis._cell.cache_clear()
    with pytest.raises(ConfigError, match="there is no landlock; apt-get install bubblewrap"):
        diagnosis.check(KubernetesConfig())
    diagnosis._cell.cache_clear()


#: program that runs a confined command as an ordinary user, on a kernel that reports an old version
_OF_ONE_USER = """
import json, os, resource, socket, sys
from pathlib import Path
from netarena.sandbox import confinement, protection
from netarena.sandbox.shell import ShellLimits
folder, version, command = sys.argv[1:]
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
service = os.fork()
if not service:
    import time
    time.sleep(60)
    os._exit(0)
mine = Path(folder, "journal")
mine.write_text("kept")
mine.chmod(0o644)
protection.landlock_version = lambda: int(version)
theirs, ours = socket.socketpair()
task = confinement.Task(
    command=command, port=9, folder=Path(folder, "command"), user=None, files={}, programs={},
    environment={"SERVICE": str(service), "JOURNAL": str(mine)}, keep=None,
    limits=ShellLimits(address_bytes=4 << 30, processes=60, wall_s=60),
)
running = os.fork()
if not running:
    result, _ = confinement.run(task, theirs)
    print(result.told, flush=True)
    os._exit(0)
os.waitpid(running, 0)
about = mine.stat()
print(json.dumps({
    "lives": os.waitpid(service, os.WNOHANG) == (0, 0),
    "nicer": os.getpriority(os.PRIO_PROCESS, service) - os.getpriority(os.PRIO_PROCESS, 0),
    "files": resource.prlimit(service, resource.RLIMIT_NOFILE)[0] > 10,
    "mode": about.st_mode & 0o777,
    "size": about.st_size,
    "old": about.st_mtime < 1e9,
    "left": os.listdir(folder),
}))
os.kill(service, 9)
"""


@pytest.mark.requires("confinement", "root")
@pytest.mark.parametrize("version", [4, 6])
def test_commands_run_as_the_services_user_cannot_reach_the_service(version: int) -> None:
    command = (
        "id -u; kill -9 $SERVICE && echo REACHED; kill -9 -1\n"
        "renice -n 19 $SERVICE && echo REACHED; taskset -p 1 $SERVICE && echo REACHED\n"
        "prlimit --pid $SERVICE --nofile=3:3 && echo REACHED\n"
        "cat /proc/$SERVICE/environ && echo REACHED; cat $JOURNAL && echo REACHED\n"
        "chmod 000 $JOURNAL; touch -d 1970-01-02 $JOURNAL; : >> $JOURNAL; rm $JOURNAL\n"
        "mv $JOURNAL x; ln $JOURNAL x && echo REACHED; truncate -s 0 $JOURNAL && echo REACHED\n"
        "ls .. && echo REACHED\n"
        "perl -e 'kill 9, $ENV{SERVICE} and print qq(REACHED\\n)'\n"
        f"{NAP} & (setsid {NAP} &)"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", _OF_ONE_USER, folder, str(version), command],
            capture_output=True,
            text=True,
            env=_paths(),
            timeout=90,
            check=False,
        )
    assert not done.stderr
    *output, found = done.stdout.splitlines()
    assert output[0] == "65534"
    assert "REACHED" not in done.stdout
    assert json.loads(found) == {
        "lives": True, "nicer": 0, "files": True, "mode": 0o644, "size": 4, "old": False,
        "left": ["journal"],
    }  # fmt: skip
    assert not _sleepers()


def _paths() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _sleepers() -> list[str]:
    found = []
    napping = NAP.replace(" ", "\0").encode() + b"\0"
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if (folder / "cmdline").read_bytes() == napping:
                    found.append(folder.name)
            except OSError:
                continue
    return found


async def _until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 -- depends on other processes
            await asyncio.sleep(0.01)


#: program with a confined command whose processes do not end
_UNENDED = """
import os, socket, sys
from pathlib import Path
from netarena.errors import EnvironmentFailed
from netarena.sandbox import confinement, shell
shell.END_S = 0.0
confinement._Confinement._kill_all = lambda self: None
theirs, ours = socket.socketpair()
task = confinement.Task(
    command="sleep 60 & sleep 60 &", port=9, folder=Path(sys.argv[1]), user=None, files={},
    programs={}, environment={}, keep=None, limits=shell.ShellLimits(),
)
try:
    confinement.run(task, theirs)
except EnvironmentFailed as failed:
    print(failed.detail)
for process in confinement._descendants()[0]:
    os.kill(process, 9)
"""


@pytest.mark.requires("confinement")
def test_process_that_does_not_die_is_reported_with_its_state(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _UNENDED, tmp_path / "command"],
        capture_output=True,
        text=True,
        env=_paths(),
        timeout=90,
        check=False,
    )
    # the process may be in any state, or may have just ended
    state = r"\d (?:[A-Za-z] \([a-z ]+\)|gone)"
    assert re.fullmatch(
        rf"a command's processes did not end after SIGKILL: {state}(, {state})*\n", done.stdout
    ), done
