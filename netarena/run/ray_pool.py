"""Workers on Ray: a local Ray instance for one run, or a cluster that includes this machine.

Ray executes code for every process that can reach its ports and has its token. Therefore token
authentication is always on:

- A local instance uses a random token of this process, in a file that only its owner can read. The
  instance listens on 127.0.0.1 only, and has no dashboard.
- A cluster listens on all addresses, because Ray cannot be bound to a single address. The cluster
  must have been started with ``RAY_AUTH_MODE=token``; otherwise it is refused.

Ray is imported only when a pool starts. No secret is part of a ``runtime_env``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from netarena.aio import finish
from netarena.errors import ConfigError, one_line
from netarena.run.relay import RayRelay
from netarena.run.remote import LinkLostError

#: Variables that choose Ray's authentication.
_MODE, _TOKEN, _TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
#: Environment variables of a local Ray instance. The value of the first one makes Ray listen only
#: on the loopback address. The second keeps the normal priority of workers, which have time limits.
#: The third turns off Ray's memory monitor, which would kill relays.
_LOOPBACK, _NICENESS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_worker_niceness"
_MONITOR = "RAY_memory_monitor_refresh_ms"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Custom resource that limits workers per node, if the cluster has it.
RESOURCE = "netarena"
#: Maximum length of the path of the folder for temporary files. The path of a socket may have at
#: most 107 bytes, and the names of Ray's folder and of the socket in it need 90.
_FOLDER_CHARS = 17
#: Size of Ray's object store in bytes: the minimum, because workers do not use it.
_STORE_BYTES = 80 << 20
#: Time limit in s for checking whether a node is still reachable after a connection broke.
_NODE_S = 90.0
_PAUSE_S = 1.0
#: Time limit for an actor to end its worker, in s.
_CLOSE_S = 10.0
#: Program that connects to a cluster without a token; status 0 means that the cluster answered.
_PROBE = """
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1]).get_all_node_info(timeout=10)
except AuthenticationError:
    sys.exit(16)
"""
#: Exit status of the program if the cluster asks for a token.
_PROTECTED = 16
_PROBE_S = 60.0
#: Time limit for connecting to the cluster's head node, in s.
_CONNECT_S = 10.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class RayPool:
    """Starts workers in actors of Ray; an asynchronous context manager.

    Without ``address``, the pool starts and stops a local Ray. ``number`` is the number of workers.
    The default is the number of cores, or the amount of the custom resource ``netarena``, but at
    most ``most``.
    """

    def __init__(self, address: str | None, number: int | None, most: int) -> None:
        self._address, self._number, self._most = address, number, most
        self._ray: Any = None
        self._folder: Path | None = None
        self._before: dict[str, str | None] = {}
        self._options: dict[str, Any] = {}
        self._size = 0

    @property
    def size(self) -> int:
        return self._size

    async def __aenter__(self) -> Self:
        handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        try:
            await finish(asyncio.to_thread(self._start))
        except BaseException:
            await finish(asyncio.to_thread(self._stop))
            raise
        finally:
            # Ray's own handler of SIGTERM would end this process without closing any world
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await finish(asyncio.to_thread(self._stop))

    async def hire(self) -> RayLink:
        """Start a worker in a new actor."""
        actor = None
        try:
            actor = self._ray.remote(RayRelay).options(**self._options).remote()
            node, name = await actor.start_here.remote()
        except BaseException as error:
            if actor is not None:
                with suppress(Exception):
                    self._ray.kill(actor)
            if not isinstance(error, Exception):
                raise  # cancelled, for example because the time limit for the start has expired
            raise LinkLostError(_describe(error)) from None
        return RayLink(self._ray, actor, node, name)

    def _start(self) -> None:
        self._folder = _make_folder()
        self._set({_MODE: "token", "RAY_USAGE_STATS_ENABLED": "0"})
        if self._address is None:
            self._set({_LOOPBACK: "0", _NICENESS: "0", _MONITOR: "0"})
            self._set(
                {_TOKEN: None, _TOKEN_PATH: str(_write_token(self._folder)), "RAY_ADDRESS": None}
            )
        else:
            _check_cluster(self._address)
        self._ray = _import()
        shared = {
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "include_dashboard": False,
        }
        try:
            if self._address is None:
                cores = self._number or min(os.cpu_count() or 1, self._most)
                self._ray.init(
                    address="local",
                    num_cpus=cores,
                    num_gpus=0,
                    object_store_memory=_STORE_BYTES,
                    _temp_dir=str(self._folder / "ray"),
                    **shared,
                )
            else:
                del shared["include_dashboard"]
                self._ray.init(address=self._address, **shared)
        except Exception as error:  # noqa: BLE001 -- Ray raises errors of many types
            what = "--executor" if self._address is None else "--ray-address"
            raise ConfigError(what, f"Ray cannot be used: {_describe(error)}") from None
        if self._address is not None:
            _refuse_open(self._ray.get_runtime_context().gcs_address)
        resources = self._ray.cluster_resources()
        cores = resources.get(RESOURCE, resources.get("CPU", 1))
        self._size = self._number or max(1, min(int(cores), self._most))
        self._options = {
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": "SPREAD",
            "num_cpus": 0 if RESOURCE in resources else 1,
            "resources": {RESOURCE: 1} if RESOURCE in resources else None,
        }

    def _set(self, variables: dict[str, str | None]) -> None:
        for name, value in variables.items():
            self._before.setdefault(name, os.environ.get(name))
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _stop(self) -> None:
        if self._ray is not None:
            self._ray.shutdown()
        before, self._before = self._before, {}
        self._set(before)
        self._before = {}
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class RayLink:
    """A connection to a worker through its actor."""

    def __init__(self, ray: Any, actor: Any, node: str, name: str) -> None:
        self._ray, self._actor, self._id, self._name = ray, actor, node, name
        self._numbers = count()
        self._cut_off = False

    @property
    def node(self) -> str:
        return self._name

    def send(self, data: bytes) -> None:
        with suppress(self._ray.exceptions.RayError):  # ``receive`` reports a lost worker
            self._actor.send.remote(next(self._numbers), data)

    async def receive(self) -> bytes:
        """Return the next bytes. Raises LinkLostError."""
        errors = self._ray.exceptions
        try:
            data, ended = await self._actor.receive.remote()
        except errors.ActorUnavailableError as error:
            detail = _describe(error)
            self._cut_off = True
            raise LinkLostError(detail, node_gone=await self._was_cut_off()) from None
        except errors.RayError as error:
            gone = await asyncio.to_thread(self._node_gone)
            raise LinkLostError(_describe(error), node_gone=gone) from None
        if ended:
            raise LinkLostError(ended)
        return bytes(data)

    async def examine(self) -> None:
        """Wait until the actor answers. Raises LinkLostError if ``_NODE_S`` expires first."""
        errors = self._ray.exceptions
        end = asyncio.get_running_loop().time() + _NODE_S
        ping = asyncio.ensure_future(self._ping())
        try:
            while not ping.done() and asyncio.get_running_loop().time() < end:
                if await asyncio.to_thread(self._node_gone):
                    raise LinkLostError("Ray reports that the node is dead", node_gone=True)
                await asyncio.wait({ping}, timeout=_PAUSE_S)
            if self._cut_off or (ping.done() and isinstance(ping.exception(), errors.RayError)):
                await asyncio.sleep(_NODE_S)  # usually cancelled, because ``receive`` fails earlier
            if not ping.done() or ping.exception() is not None:
                raise LinkLostError(f"the relay of the worker did not answer for {_NODE_S:g} s")
        finally:
            ping.cancel()

    async def _ping(self) -> None:
        await self._actor.ping.remote()

    async def close(self) -> None:
        """Have the actor end its worker, then kill the actor."""
        errors = self._ray.exceptions
        with suppress(errors.RayError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._actor.stop.remote()
        with suppress(errors.RayError):
            self._ray.kill(self._actor)

    async def _was_cut_off(self) -> bool:
        """Return whether a connection broke because of the network or node, not the worker."""
        end = asyncio.get_running_loop().time() + _NODE_S
        while asyncio.get_running_loop().time() < end:
            try:
                await self._actor.ping.remote()
            except self._ray.exceptions.ActorUnavailableError:
                await asyncio.sleep(_PAUSE_S)
            except self._ray.exceptions.RayError:
                return await asyncio.to_thread(self._node_gone)
            else:
                return True  # the actor still runs, so the connection was interrupted
        return True

    def _node_gone(self) -> bool:
        """Return whether Ray reports that the node is gone; false if Ray raises an error."""
        try:
            nodes = self._ray.nodes()
        except Exception:  # noqa: BLE001 -- Ray raises errors of many types
            return False
        return not any(node["NodeID"] == self._id and node["Alive"] for node in nodes)


def check_ray(address: str | None, option: str = "--executor") -> None:
    """Raise ConfigError if Ray is not installed, or if no cluster listens at ``address``.

    ``option`` is the option that chose Ray. This function does not import Ray, because Ray reads
    variables that a pool must set first.
    """
    if find_spec("ray") is None:
        raise _missing("ray", option)
    if address is not None:
        _check_cluster(address)


def _import() -> Any:
    """Import and return the module ``ray``. Raises ConfigError if it is not installed."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise _missing(error.name, "--executor") from None
    return ray


def _missing(package: str | None, option: str) -> ConfigError:
    return ConfigError(
        option,
        f'workers need the package {package}, which is not installed: pip install "netarena[ray]"',
    )


def _make_folder() -> Path:
    """Create and return a run's folder for Ray's files, which only its owner may enter."""
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) > _FOLDER_CHARS:
        folder = "/tmp"  # noqa: S108 -- mkdtemp creates a private folder in it
    return Path(tempfile.mkdtemp(prefix="netarena-ray-", dir=folder))


@cache
def _token() -> str:
    """Return the token of all local instances of this process; Ray reads the token only once."""
    return secrets.token_hex(32)


def _write_token(folder: Path) -> Path:
    """Write the token into a file that only its owner can read."""
    path = folder / "token"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(_token())
    return path


def _check_cluster(address: str) -> None:
    """Raise ConfigError if the token is missing, or if no service listens at ``address``."""
    if not _has_token():
        raise ConfigError(
            "--ray-address",
            f"the cluster's token is missing: set {_TOKEN_PATH} to a file that contains the "
            f"token of its nodes (started with {_MODE}=token)",
        )
    _check_address(address)


def _has_token() -> bool:
    path = Path(os.environ.get(_TOKEN_PATH) or Path.home() / ".ray" / "auth_token")
    return bool(os.environ.get(_TOKEN)) or path.is_file()


def _check_address(address: str) -> None:
    """Raise ConfigError if no service listens at ``address``.

    Ray itself would wait a long time for the service.
    """
    if address == "auto":  # Ray itself looks for a cluster on this machine
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError("--ray-address", f"must be HOST:PORT or auto, not {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError as error:
        why = error.strerror or f"no answer within {_CONNECT_S:g} s"
        raise ConfigError(
            "--ray-address",
            f"cannot connect to {address} ({why}): give the address of the cluster's head node, "
            "as 'ray start --head' prints it",
        ) from None


def _refuse_open(address: str) -> None:
    """Raise ConfigError unless the cluster refuses clients without a token."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PROBE, address],
            env={**environ, _MODE: "disabled", "HOME": "/nonexistent"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            "--ray-address", _unknown(address, f"no answer within {_PROBE_S:g} s")
        ) from None
    if done.returncode == _PROTECTED:
        return
    if done.returncode == 0:
        raise ConfigError(
            "--ray-address",
            f"the cluster at {address} answers without a token, so every process that reaches it "
            f"can execute code there: start its nodes with {_MODE}=token",
        )
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    raise ConfigError("--ray-address", _unknown(address, lines[-1]))


def _unknown(address: str, why: str) -> str:
    return one_line(
        f"cannot check whether the cluster at {address} asks for a token ({_COLOUR.sub('', why)}): "
        "check the head node, and try again",
        500,
    )


def _describe(error: Exception) -> str:
    """Return the first and the last line of an error of Ray, which may have many lines."""
    text = _COLOUR.sub("", str(error)) or type(error).__name__
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return one_line(": ".join(dict.fromkeys((lines[0], lines[-1]))), 500)
