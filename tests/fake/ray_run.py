"""Run episodes on a local Ray for tests/integration/test_ray.py, and print one JSON object.

.venv-ray/bin/python tests/fake/ray_run.py FOLDER APP...
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import sys
from functools import partial
from pathlib import Path
from typing import Any

from netarena.agent.backoff import Backoff
from netarena.cli.executor import NamedSource, ProgramSource
from netarena.run import remote
from netarena.run.assessment import conduct
from netarena.run.journal import JOURNAL_NAME, read_journal
from netarena.run.ray_pool import RayPool
from netarena.run.remote import Remote
from netarena.task.application import load

VALUES: dict[str, dict[str, Any]] = {
    "malt": {"complexity_level": ["level1"]},
    "k8s": {"error_types": ["add_ingress", "remove_ingress"], "max_iterations": 3},
    "route": {"error_types": ["disable_routing", "disable_interface"], "max_iterations": 3},
    "backbone": {"max_iterations": 2, "end_index": 2},
}
#: calls that execute code, take up slots or read data, including some that answer if the token is
#: given
METHODS = (
    "CoreWorkerService/PushTask",
    "CoreWorkerService/GetCoreWorkerStats",
    "CoreWorkerService/KillActor",
    "NodeManagerService/RequestWorkerLease",
    "NodeManagerService/GetNodeStats",
    "InternalKVGcsService/InternalKVKeys",
    "InternalKVGcsService/InternalKVPut",
    "JobInfoGcsService/AddJob",
    "ActorInfoGcsService/GetAllActorInfo",
    "ActorInfoGcsService/RegisterActor",
    "NodeInfoGcsService/GetAllNodeInfo",
    "ObjectManagerService/Push",
    "ObjectManagerService/Pull",
)
CODES = {b"\x010": "ok", b"\x0212": "no such call", b"\x0216": "no token"}


async def play(pool: RayPool, name: str, out: Path) -> dict[str, list[Any]]:
    """Run episodes of scripted agents in this process and on Ray's workers; return both sets of
    results."""
    values = {"num_queries": 1, "seed": 7, "concurrency": 2, **VALUES[name]}
    told: dict[str, list[Any]] = {}
    for where in ("here", "there"):
        app = load(name)
        config = app.config_type.parse(values)
        source = NamedSource("random", 7)
        agents = {app.role: source.make(app, config, app.role, Backoff())}
        folder = out / f"{name}-{where}"
        if where == "here":
            async with app:
                await conduct(app, config, agents, out=folder)
        else:
            async with Remote(pool, {app.role: partial(_same, source)}, tell) as head:
                await conduct(app, config, agents, out=folder, executor=head)
        told[where] = results(folder)
    return told


def _has_episode(journal: Path) -> bool:
    return journal.exists() and b'"event": "episode"' in journal.read_bytes()


def _same(source: NamedSource) -> NamedSource:
    return source


def results(folder: Path) -> list[Any]:
    past = read_journal(folder / JOURNAL_NAME, slim=False)
    return [
        {
            "id": one.query_id,
            "outcome": one.outcome,
            "attempt": one.attempt,
            "verdict": [one.correct, one.safe, one.iterations, one.reason, one.detail],
            "moves": [step.move for step in one.steps],
            "findings": [
                [finding.model_dump(mode="json") for finding in step.judgement.findings]
                for step in one.steps
                if step.judgement
            ],
        }
        for one in sorted(past.episodes.values(), key=lambda one: one.query_id)
    ]


async def lose(pool: RayPool, out: Path, how: signal.Signals) -> dict[str, Any]:
    """Kill or stop one of two workers while its agent is busy; the agent's program records its
    environment variables."""
    toy = load("toy")
    config = toy.config_type.parse({"num_queries": 4, "seed": 7, "concurrency": 2})
    program = f'env > {out}/environ; sleep 1; cat > {out}/prompt; echo "open v1"'
    source = ProgramSource(["sh", "-c", program], "--agent-exec")
    agents = {toy.role: source.make(toy, config, toy.role, Backoff())}
    folder = out / how.name
    async with Remote(pool, {toy.role: lambda: source}, tell) as head:
        run = asyncio.ensure_future(conduct(toy, config, agents, out=folder, executor=head))
        journal = folder / JOURNAL_NAME
        async with asyncio.timeout(120):
            while not await asyncio.to_thread(_has_episode, journal):  # noqa: ASYNC110 -- waits for a file
                await asyncio.sleep(0.05)
            while not (victim := await asyncio.to_thread(_worker_with_agent)):  # noqa: ASYNC110 -- /proc
                await asyncio.sleep(0.05)
        os.kill(victim, how)
        await run
    return {
        "episodes": results(folder),
        "environ": (out / "environ").read_text(),
        "left": b"netarena.run.worker" in words(victim),
    }


def _worker_with_agent() -> int | None:
    """Return a worker that runs an agent's program now, or None if no worker does."""
    for pid in descendants():
        if b"netarena.run.worker" in words(pid) and any(
            b"open v1" in words(child) for child in descendants(pid)
        ):
            return pid
    return None


def tell(text: str) -> None:
    print(text, file=sys.stderr)


def words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def descendants(of: int | None = None) -> list[int]:
    """Return a process, by default this one, and all processes below it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [of or os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def ports() -> dict[int, str]:
    """Return the ports on which this process and its descendants listen, with the address."""
    inodes = set()
    for pid in descendants():
        for path in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(str(path.readlink()).removeprefix("socket:[").rstrip("]"))
            except OSError:
                continue
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            part = line.split()
            if part[3] == "0A" and part[9] in inodes:
                address, _, port = part[1].partition(":")
                found[int(port, 16)] = address
    return found


def literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def frame(kind: int, flags: int, stream: int, data: bytes) -> bytes:
    head = struct.pack(">I", len(data))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream) + data


def call(port: int, method: str, token: str) -> str:
    """Call a gRPC method with an empty message; return how it ended."""
    head = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"ray")]
    head += [(b":path", b"/ray.rpc." + method.encode()), (b"te", b"trailers")]
    head += [(b"content-type", b"application/grpc")]
    if token:
        head += [(b"authorization", b"Bearer " + token.encode())]
    data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
    data += frame(1, 4, 1, b"".join(literal(*pair) for pair in head))
    data += frame(0, 1, 1, b"\x00" + struct.pack(">I", 0))
    heard = b""
    try:
        with socket.create_connection(("127.0.0.1", port), 3) as connection:
            connection.sendall(data)
            while b"grpc-status" not in heard and (more := connection.recv(1 << 16)):
                heard += more
    except OSError:
        return "no answer"
    if b"grpc-status" not in heard:
        return "no answer"
    status = heard.partition(b"grpc-status")[2]
    return next((said for code, said in CODES.items() if status.startswith(code)), "other")


def post(port: int, path: str, token: str) -> str:
    """Send an HTTP request; return the status."""
    allowed = f"Authorization: Bearer {token}\r\n" if token else ""
    text = f"POST {path} HTTP/1.1\r\nHost: ray\r\n{allowed}Content-Length: 0\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", port), 3) as connection:
            connection.sendall(text.encode())
            return connection.recv(64).decode(errors="replace").partition(" ")[2][:3]
    except OSError:
        return "no answer"


def probe(path: Path) -> list[dict[str, Any]]:
    """Call all ports without a token, with a wrong token and with the token in ``path``."""
    token = path.read_text()
    tokens = ("", "0" * 64, token)
    told = []
    for port, address in ports().items():
        # a port that speaks another protocol does not answer
        speaks = call(port, METHODS[0], "") != "no answer"
        told.append(
            {
                "port": port,
                "address": address,
                "calls": {
                    # with the token, only calls that read data are made
                    method: [call(port, method, one) for one in tokens[: 2 + ("Get" in method)]]
                    for method in METHODS
                    if speaks
                },
                "http": [
                    post(port, "/get_or_create_runtime_env", one) for one in tokens if not speaks
                ],
            }
        )
    return told


async def main(out: Path, names: list[str]) -> None:
    told: dict[str, Any] = {"apps": {}}
    usual = remote.BEAT_S, remote.MOST_MISSED
    async with RayPool(None, 2, 4) as pool:
        path = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
        told["modes"] = [oct(one.stat().st_mode & 0o777) for one in (path, path.parent)]
        told["killed"] = await lose(pool, out, signal.SIGKILL)
        remote.BEAT_S, remote.MOST_MISSED = 1.0, 10  # shorter than usual, to save time
        told["stopped"] = await lose(pool, out, signal.SIGSTOP)
        remote.BEAT_S, remote.MOST_MISSED = usual
        for name in names:
            told["apps"][name] = await play(pool, name, out)
        link = await pool.hire()
        told["ports"] = await asyncio.to_thread(probe, path)
        await link.close()
    told["left"] = path.parent.exists()
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
