"""The Python sandbox from outside: places, limits, ends, restarts, machines that lack something."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from netarena.errors import ConfigError, EnvironmentFailed
from netarena.model import JsonValue
from netarena.sandbox.python import Limits, PythonSandbox, Status

pytestmark = [pytest.mark.anyio, pytest.mark.requires("landlock", "seccomp")]

GUEST = """
import os, time
def load(payload):
    return payload.decode()
def call(context, request):
    names = {"context": context, "request": request, "os": os, "time": time}
    exec(compile(request["code"], "<answer>", "exec"), names)
    return names["main"]()
"""
SLEEP: JsonValue = {"code": "def main(): time.sleep(600)"}
ONE: JsonValue = {"code": "def main(): return 1"}
PROJECT = Path(__file__).parents[2]
PATIENCE_S = 20.0


def small(**options: Any) -> PythonSandbox:
    """A sandbox without packages: it starts in a few hundredths of a second."""
    return PythonSandbox(GUEST, b"payload", preload=(), **options)


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.005)


def children(pid: int | None) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def asleep(pid: int | None) -> list[int]:
    """The answers of this warm process that are protected and in their sleep."""
    found = []
    for child in children(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{child}/status").read_text()
            if "Seccomp:\t2" in status and "State:\tS" in status:
                found.append(child)
    return found


def lives(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_the_guest_sees_payload_and_request_and_each_answer_starts_afresh() -> None:
    code = "def main():\n    global context\n    context += '!'\n    return [context, request['x']]"
    async with small() as sandbox:
        for x in range(3):
            result = await sandbox.run({"code": code, "x": [x, None, "é"]})
            assert result.value == ["payload!", [x, None, "é"]]
            assert result.status is Status.OK
            assert 0 < result.elapsed_s < PATIENCE_S
            assert 0 < result.cpu_s < 1


async def test_answers_do_not_mix() -> None:
    code = "def main():\n    time.sleep(request['x'] % 5 / 500)\n    return [request['x']] * 50"
    async with small(parallel=4) as sandbox:
        results = await asyncio.gather(*(sandbox.run({"code": code, "x": x}) for x in range(40)))
    assert [result.value for result in results] == [[x] * 50 for x in range(40)]


async def test_those_that_wait_are_served_in_order_and_do_not_pay_for_waiting() -> None:
    order: list[int] = []

    async def one(sandbox: PythonSandbox, number: int) -> float:
        result = await sandbox.run({"code": "def main(): time.sleep(0.3)"})
        assert result.status is Status.OK, "waiting counted as running"
        order.append(number)
        return result.queued_s

    async with small(parallel=1, limits=Limits(wall_s=0.8)) as sandbox:
        queued = await asyncio.gather(*(one(sandbox, number) for number in range(4)))
    assert order == [0, 1, 2, 3]
    assert queued[0] < 0.3
    assert queued[3] > 0.85


async def test_a_cancelled_answer_is_killed_and_frees_its_place() -> None:
    async with small(parallel=1) as sandbox:
        running = asyncio.create_task(sandbox.run(SLEEP))
        await until(lambda: bool(asleep(sandbox.pid)), "no child")
        waiting = asyncio.create_task(sandbox.run(SLEEP))
        await asyncio.sleep(0)
        for task in (waiting, running):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: not children(sandbox.pid), "the child lives on")
        assert (await sandbox.run(ONE)).value == 1


async def test_the_warm_process_is_started_again_once_it_is_gone() -> None:
    async with small(parallel=2) as sandbox:
        under_way = asyncio.create_task(sandbox.run(SLEEP))
        await until(lambda: bool(asleep(sandbox.pid)), "no child")
        first, (child,) = sandbox.pid, children(sandbox.pid)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        result = await under_way
        assert result.status is Status.CRASHED
        assert "sandbox" in result.error
        results = await asyncio.gather(*(sandbox.run(ONE) for _ in range(5)))
        assert [result.value for result in results] == [1] * 5
        assert sandbox.pid not in {None, first}
        await until(lambda: not lives(child), "the orphan lives on")


async def test_close_ends_everything() -> None:
    sandbox = small()
    await sandbox.start()
    under_way = asyncio.create_task(sandbox.run(SLEEP))
    await until(lambda: bool(asleep(sandbox.pid)), "no child")
    pids = [sandbox.pid or 0, *children(sandbox.pid)]
    await sandbox.close()
    assert (await under_way).status is Status.CRASHED
    await until(lambda: not any(map(lives, pids)), "a process outlived close")
    with pytest.raises(EnvironmentFailed, match="closed"):
        await sandbox.run(ONE)
    await sandbox.close()


SERVICE = """
import asyncio, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it for background jobs
from test_sandbox import GUEST, SLEEP, PythonSandbox, asleep, until
async def main():
    async with PythonSandbox(GUEST, preload=(), parallel=2) as sandbox:
        tasks = [asyncio.create_task(sandbox.run(SLEEP)) for _ in range(2)]
        await until(lambda: len(asleep(sandbox.pid)) == 2, "no children")
        print(sandbox.pid, *asleep(sandbox.pid), flush=True)
        await asyncio.gather(*tasks)
asyncio.run(main())
"""


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_the_end_of_the_service_is_the_end_of_its_answers(signal_number: int) -> None:
    path = [str(PROJECT), str(Path(__file__).parent)]
    with subprocess.Popen(  # noqa: ASYNC220 - nothing else runs in this loop
        [sys.executable, "-c", SERVICE],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((*path, *sys.path))},
        text=True,
    ) as service:
        assert service.stdout is not None
        pids = [int(pid) for pid in service.stdout.readline().split()]
        assert len(pids) == 3
        assert all(map(lives, pids))
        service.send_signal(signal_number)
        await until(lambda: not any(map(lives, pids)), "an answer outlived the service")


@pytest.mark.parametrize(
    ("guest", "reason"),
    [
        (
            "def load(payload): raise ValueError('bad graph')\ncall = load",
            "ValueError: bad graph",
        ),
        ("def load(payload): return 1", "call"),
        ("import os\nos._exit(3)", "ended with 3"),
        ("not python either", "SyntaxError"),
    ],
)
async def test_a_guest_that_does_not_load_is_our_failure(guest: str, reason: str) -> None:
    sandbox = PythonSandbox(guest, preload=())
    with pytest.raises(EnvironmentFailed, match=reason) as caught:
        await sandbox.start()
    assert caught.value.proven_ours
    await sandbox.close()


async def test_a_package_that_is_not_installed_is_told() -> None:
    with pytest.raises(ConfigError, match="no_such_package is not installed"):
        await PythonSandbox(GUEST, preload=("no_such_package",)).start()
    with pytest.raises(ConfigError, match="parallel: must be 1 to 256"):
        PythonSandbox(GUEST, parallel=1000)


async def test_results_up_to_the_limit_pass() -> None:
    code = "def main(): return 'x' * request['size']"
    async with small(limits=Limits(result_bytes=100_000)) as sandbox:
        fits = await sandbox.run({"code": code, "size": 100_000 - 3})
        assert fits.value == "x" * (100_000 - 3)
        above = await sandbox.run({"code": code, "size": 100_000 - 2})
        assert (above.status, above.value) == (Status.TOO_LARGE, None)


async def test_a_gibibyte_is_usable_and_no_more() -> None:
    code = "def main(): return len(bytearray(request['mib'] << 20))"
    async with small() as sandbox:
        assert (await sandbox.run({"code": code, "mib": 1000})).value == 1000 << 20
        assert (await sandbox.run({"code": code, "mib": 1025})).status is Status.MEMORY


async def test_a_large_request_arrives() -> None:
    code = "def main(): return [len(request['text']), request['text'][-3:]]"
    async with small() as sandbox:
        result = await sandbox.run({"code": code, "text": "é" * 3_000_000 + "end"})
    assert result.value == [3_000_003, "end"]


FLOOD = """
import stat
def main():
    socket = max(number for number in range(3, 64) if is_socket(number))
    text = b'+[' + b'[1,2.5,"abc"],' * 200_000 + b'1]'
    while text:
        text = text[os.write(socket, text):]
    os._exit(0)
def is_socket(number):
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False
"""


async def test_the_event_loop_is_never_blocked_by_results() -> None:
    busy_s = 0.0  # CPU time of this thread from one turn of the loop to the next, at most

    async def watch() -> None:
        nonlocal busy_s
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            busy_s = max(busy_s, time.thread_time() - before)

    async with small(parallel=2, limits=Limits(result_values=1_000_000)) as sandbox:
        watcher = asyncio.create_task(watch())
        results = await asyncio.gather(*(sandbox.run({"code": FLOOD}) for _ in range(3)))
        watcher.cancel()
    assert [len(result.value) for result in results] == [200_001] * 3  # type: ignore[arg-type]
    assert busy_s < 0.08  # reading one of these takes twice that


async def test_answers_have_users_of_their_own(requirement: Callable[[str], None]) -> None:
    requirement("root")
    code = """
def main():
    time.sleep(0.2)
    return [*os.getresuid(), *os.getresgid(), os.getgroups()]
"""
    async with small(parallel=3) as sandbox:
        results = await asyncio.gather(*(sandbox.run({"code": code}) for _ in range(3)))
    users = {json.dumps(result.value) for result in results}
    assert len(users) == 3
    assert all(0 not in json.loads(user) for user in users)


async def test_the_order_of_sets_is_the_same_in_every_life() -> None:
    code = "def main(): return list({'a', 'b', 'c', 'd', 'e', 'f'})"
    orders = []
    for _ in range(3):
        async with small() as sandbox:
            orders.append((await sandbox.run({"code": code})).value)
    assert orders[0] == orders[1] == orders[2]


IMPORTS = """
import sys
def load(payload):
    return None
def call(context, request):
    failed = {}
    for name in request:
        try:
            __import__(name)
        except BaseException as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed
"""
#: left out on purpose, or with libraries that only a terminal or a screen needs
NOT_IMPORTABLE = {
    *("ensurepip", "idlelib", "test", "tkinter", "turtle", "turtledemo", "_tkinter", "lib2to3"),
    *(
        "readline",
        "rlcompleter",
        "curses",
        "_curses",
        "_curses_panel",
        "_dbm",
        "_gdbm",
        "antigravity",
    ),
    *("this", "sre_compile", "sre_constants", "sre_parse", "nis", "_crypt", "crypt", "pip"),
}


async def test_the_standard_library_can_be_imported_in_an_answer() -> None:
    names = sorted(set(sys.stdlib_module_names) - NOT_IMPORTABLE)
    plain = subprocess.run(  # noqa: ASYNC221 - nothing else runs in this loop
        [
            sys.executable,
            "-S",
            "-W",
            "ignore",
            "-c",
            f"{IMPORTS}\nprint(sorted(call(0, {names!r})))",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    missing_anyway = set(eval(plain.stdout))
    async with PythonSandbox(IMPORTS, preload=(), limits=Limits(open_files=64)) as sandbox:
        result = await sandbox.run(list[Any](names))
    assert isinstance(result.value, dict), result
    assert {name: why for name, why in result.value.items() if name not in missing_anyway} == {}
    assert len(names) - len(missing_anyway) > 200


async def test_networkx_works_in_an_answer_its_parts_loaded_on_demand_too() -> None:
    code = """
import networkx as nx
from networkx.algorithms import approximation, bipartite, community, isomorphism
from networkx.readwrite import json_graph
import networkx.algorithms.tree.mst
def main():
    graph = nx.karate_club_graph()
    return [nx.diameter(graph), len(list(nx.connected_components(graph))),
            nx.is_isomorphic(graph, graph.copy()), len(nx.node_link_data(graph, edges="links")),
            len(community.greedy_modularity_communities(graph)), nx.__name__]
"""
    async with PythonSandbox(GUEST) as sandbox:
        result = await sandbox.run({"code": code})
    assert result.value == [5, 1, True, 5, 3, "networkx"]


# A filter that makes this process a machine without landlock: its calls do not exist.
LACKING_LANDLOCK = """
import asyncio, ctypes, json, struct, sys
from test_sandbox import GUEST
from netarena.errors import EnvironmentFailed
from netarena.sandbox.python import PythonSandbox, diagnose
op = lambda code, value, then=0, other=0: struct.pack("=HBBI", code, then, other, value)
program = b"".join([
    op(0x20, 0), op(0x35, 444, 0, 3), op(0x25, 446, 2), op(6, 0x50000 | 38), op(6, 0x7FFF0000),
    op(6, 0x7FFF0000),
])
code = ctypes.create_string_buffer(program, len(program))
head = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(head)), 0, 0) == 0
READ = {"code": "def main(): return len(open('/etc/passwd').read()) > 0"}
FORK = {"code": "def main(): return os.fork()"}
async def main():
    told = {check.name: check for check in diagnose()}
    landlock = told["python sandbox: landlock"]
    try:
        await PythonSandbox(GUEST, preload=()).start()
        refused = ""
    except EnvironmentFailed as error:
        refused = str(error)
    async with PythonSandbox(GUEST, preload=(), unsandboxed=True) as sandbox:
        read, fork = await sandbox.run(READ), await sandbox.run(FORK)
    print(json.dumps([landlock.ok, landlock.severity, landlock.remedy, refused, read.value,
                      fork.status, fork.error]))
asyncio.run(main())
"""


async def test_a_machine_without_landlock_is_refused_unless_allowed() -> None:
    path = [str(PROJECT), str(Path(__file__).parent), *sys.path]
    done = subprocess.run(  # noqa: ASYNC221 - the same
        [sys.executable, "-c", LACKING_LANDLOCK],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
    )
    assert done.returncode == 0, done.stderr
    ok, severity, remedy, refused, read, fork, error = json.loads(done.stdout)
    assert (ok, severity) == (False, "sandbox")
    assert "5.13" in remedy
    assert "no landlock" in refused
    assert read is True, "the test's filter did not take landlock away"
    assert (fork, "PermissionError" in error or "Blocking" in error) == ("raised", True)
