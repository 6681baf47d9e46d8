"""Blocking interface to sessions for callers without an event loop.

In a process, all sessions of an application share one thread with an event loop. The first session
creates the thread and enters the application. Both end with the process.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from netarena.config import Config
from netarena.model import Query, Step
from netarena.task.application import Application, forwarded, load
from netarena.training.reward import Rewards
from netarena.training.session import Acted, Session, Snapshot

#: Number of tasks for each label and seed.
MOST_TASKS = 100_000
_STOP_S = 30.0
T = TypeVar("T")


class Arena:
    """An entered application with its own event loop in a thread.

    With ``training``, the queries are for training. Otherwise they are the queries of an assessment
    with the same seed.
    """

    def __init__(self, name: str, *, training: bool = True) -> None:
        """Load the application called ``name`` and enter it.

        Raises ConfigError if the application is not installed, and EnvironmentFailed if it cannot
        start.
        """
        self.application = load_for(name, training=training)
        #: Sessions that are still in use.
        self.sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor())
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.call(self.application.__aenter__())

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop and return its result. Exceptions are passed on."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Remove the worlds of all sessions, and exit the application."""
        asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result(_STOP_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)
        self._loop.close()

    def drop(self, session: Session) -> None:
        """Close a session on the event loop without waiting for the end."""
        if self._loop.is_running():
            asyncio.run_coroutine_threadsafe(session.close(), self._loop)

    async def _leave(self) -> None:
        await asyncio.gather(*(session.close() for session in self.sessions))
        await self.application.__aexit__(None, None, None)


#: Arenas by process id, name and ``training``. The key contains the process id, because a forked
#: process does not inherit its parent's threads.
_arenas: dict[tuple[int, str, bool], Arena] = {}
_lock = threading.Lock()


def arena(name: str, *, training: bool = True) -> Arena:
    """Return this process's arena for an application. Raises the errors of ``Arena``."""
    key = (os.getpid(), name, training)
    with _lock:
        if key not in _arenas:
            _arenas[key] = Arena(name, training=training)
        return _arenas[key]


def close_all() -> None:
    """Close all arenas of this process. Later calls of ``arena`` create new arenas."""
    with _lock:
        for key in [key for key in _arenas if key[0] == os.getpid()]:
            _arenas.pop(key).close()


# Closing an arena needs an executor, and atexit handlers run only after executors are shut down.
# This function therefore registers with ``threading``, whose functions run in reverse order, so it
# runs before the shutdown of the executors.
getattr(threading, "_register_atexit", atexit.register)(close_all)


class Seat:
    """A session (``netarena.training.session``) with blocking calls, initially without a world."""

    def __init__(
        self,
        name: str,
        values: Mapping[str, Any] | None = None,
        rewards: str | Rewards = "default",
        *,
        training: bool = True,
    ) -> None:
        """Create a session. ``values`` are config keys. Raises ConfigError for an invalid key."""
        serving = forwarded(load_for(name, training=training), values)
        self._arena = arena(serving.name, training=training)
        application = self._arena.application
        self.config = config_of(application, values or {})
        application.check(self.config)
        self.tasks = application.size(self.config)
        self._session = Session(application, self.config, rewards)
        self._arena.sessions.add(self._session)
        # Close the session if this object is garbage-collected without a call of ``close``.
        self._left = weakref.finalize(self, self._arena.drop, self._session)
        self._left.atexit = False

    @property
    def application(self) -> Application:
        return self._arena.application

    @property
    def turns(self) -> int:
        return self._session.turns

    @property
    def query(self) -> Query:
        return self._session.query

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(self._session.steps)

    def start(self, seed: int, task: int) -> str:
        return self._arena.call(self._session.start(seed, task))

    def act(self, text: str) -> Acted:
        return self._arena.call(self._session.act(text))

    def starting(self, seed: int, task: int) -> Coroutine[Any, Any, str]:
        """Return a coroutine for ``start``, so that ``wait`` can start several sessions."""
        return self._session.start(seed, task)

    def acting(self, text: str) -> Coroutine[Any, Any, Acted]:
        """Return a coroutine for ``act``, so that ``wait`` can run several at the same time."""
        return self._session.act(text)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the application's event loop and return its result."""
        return self._arena.call(work)

    def forfeit(self) -> float:
        return self._session.forfeit()

    def snapshot(self) -> Snapshot:
        return self._arena.call(self._session.snapshot())

    def restore(self, snapshot: Snapshot) -> str:
        return self._arena.call(self._session.restore(snapshot))

    def close(self) -> None:
        self._arena.call(self._session.close())


def load_for(name: str, *, training: bool) -> Application:
    """Load an application that generates queries for training or, without ``training``, for
    assessments."""
    return load(name, training=training)


def config_of(application: Application, values: Mapping[str, Any]) -> Config:
    """Return the config of sessions, in which each seed has ``MOST_TASKS`` tasks of each label."""
    return application.config_type.parse({"num_queries": MOST_TASKS, **values})
