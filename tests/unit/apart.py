"""A network for tests, whose worker runs in a thread of the test process, so tests can patch it."""

from __future__ import annotations

import json
import socket
import threading

from netarena.sandbox.namespace import leave_network
from netarena_network.real import zygote
from netarena_network.real.kernel_lock import Turns
from netarena_route.real.worker import RouteWorker

END_S = 30.0


class Apart:
    """A worker in a thread with its own network namespace, so that coverage traces its code."""

    def __init__(self, network):
        self.world = network
        self._ours, theirs = socket.socketpair()
        self._lines = self._ours.makefile("rb")
        self._thread = threading.Thread(target=self._serve, args=(theirs,), daemon=True)
        self._thread.start()

    def _serve(self, connection):
        leave_network()
        self.thread = threading.get_native_id()
        zygote.serve(connection, RouteWorker(Turns()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._lines.close()
        self._ours.close()
        self._thread.join(END_S)

    def ask(self, do, **arguments):
        self._ours.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
        answer = json.loads(self._lines.readline())
        assert answer.pop("cpu_s") > 0
        return answer

    def build(self, *, emulator="netns", **more):
        world = self.world.model_dump(mode="json")
        answer = self.ask("build", world=world, emulator=emulator, **more)
        assert "ok" in answer, answer
        return self

    def do(self, machine, text):
        """Run a command outside the episode; ``{p}`` stands for the prefix of machine names."""
        text = text.replace("{p}", self.world.prefix)
        answer = self.ask("inject", commands=[[self.name(machine), text]])
        assert answer == {"ok": None}, answer

    def name(self, short):
        return f"{self.world.prefix}_{short}"

    def observe(self):
        return self.ask("observe")["ok"]["state"]

    def works(self, source, target, matrix=None):
        places = [self.world.endpoints.index(self.name(one)) for one in (source, target)]
        return (matrix or self.observe()["matrix"])[places[0]][places[1]] == "1"

    def ping(self, source, target_address):
        """Return whether the ordinary ping program gets an answer."""
        answer = self.ask(
            "inject", commands=[[self.name(source), f"ping -c1 -W2 {target_address}"]]
        )
        return "ok" in answer
