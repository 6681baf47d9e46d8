"""A server of OpenEnv in a separate process, and OpenEnv's client."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys

from openenv.core.generic_client import GenericEnvClient

command = [sys.executable, "-m", "netarena", "openenv", "toy", "--port", "0", "--sessions", "2"]
server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
try:
    line = server.stderr.readline()
    url = re.search(r"OpenEnv at (http://\S+?)/?$", line.strip())[1]
    for path, body, words in (
        ("/step", {"action": {"text": "jump"}}, "connect to /ws"),
        ("/reset", {"seed": 3, "task": -7}, "task"),
    ):
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        told = json.load(answer)["detail"]
        assert (answer.status, "\n" in told) == (400, False), told
        assert words in told, told
        connection.close()
    with (
        GenericEnvClient(base_url=url).sync() as one,
        GenericEnvClient(base_url=url).sync() as other,
    ):
        first = one.reset(seed=3, task=2)
        assert first.observation["text"].startswith("You run a waterworks."), first
        assert other.reset(seed=4).observation["text"] != first.observation["text"]
        refused = one.step({"text": "jump"})
        assert (refused.done, refused.reward) == (False, -4.0), refused
        for number in range(1, 9):
            found = one.step({"text": f"open v{number}"})
            if found.done:
                break
        assert found.done
        assert found.reward > 90
        assert found.observation["metadata"]["solved"], found
        assert one.state()["step_count"] == number + 1
        assert one.state()["done"]
        assert not other.state()["done"]
        # the next task of the same seed
        assert one.reset(seed=3).observation["text"] != first.observation["text"]
finally:
    server.send_signal(signal.SIGTERM)
    rest = server.stderr.read()
assert server.wait(30) == 143, rest
assert "Traceback" not in rest, rest
print("ok")
