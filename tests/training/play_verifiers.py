"""An episode of verifiers, whose agent is a server with the OpenAI API."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import verifiers.v1 as vf
from verifiers.v1.utils.loaders import environment_class, load_environment

from netarena.errors import ConfigError
from netarena.training.verifiers import NetArenaEnv, NetArenaEnvConfig

asked: list[list[str]] = []


class Model(BaseHTTPRequestHandler):
    """Opens one valve after the other."""

    def log_message(self, *_) -> None:
        pass

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked.append([str(one["content"]) for one in sent["messages"]])
        turn = sum(one["role"] == "assistant" for one in sent["messages"]) + 1
        said = {"role": "assistant", "content": f"open v{turn}"}
        chunks = [{"delta": said, "finish_reason": None}, {"delta": {}, "finish_reason": "stop"}]
        whole = {"id": "1", "object": "chat.completion", "created": 0, "model": sent["model"]}
        self.send_response(200)
        if sent.get("stream"):
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            whole["object"] += ".chunk"
            for one in chunks:
                event = json.dumps({**whole, "choices": [{"index": 0, **one}]})
                self.wfile.write(f"data: {event}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
            return
        choice = {"index": 0, "message": said, "finish_reason": "stop"}
        body = json.dumps({**whole, "choices": [choice]}).encode()
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


async def main(url: str) -> None:
    told = {"id": "netarena-verifiers", "application": "toy", "seed": 3}
    assert environment_class("netarena-verifiers") is NetArenaEnv
    unnamed = load_environment(
        NetArenaEnvConfig.model_validate({"taskset": {"id": "netarena-verifiers"}})
    )
    refused = ""
    try:
        list(unnamed.taskset.load())
    except ConfigError as error:
        refused = str(error)
    assert refused.startswith("application: is required, for example --env.taskset.application")
    env = load_environment(NetArenaEnvConfig.model_validate({"taskset": told}))
    (task,) = env.taskset.include(idx=["2:3"])
    assert "solution" not in str(task.data)
    client = vf.EvalClientConfig(base_url=url, api_key_var="NOBODYS_KEY")
    async with env.serving():
        episode = await env.run_episode(task, vf.ModelContext(model="model", client=client))
    assert episode.ok, episode.errors
    (trace,) = episode.traces
    assert trace.metrics == {"solved": 1.0, "safe": 1.0}
    assert trace.info["outcome"] == "solved"
    assert trace.rewards["netarena"].score == 100.0 - len(asked)
    # the task is in the conversation once, followed by the results of each turn
    assert sum("You run a waterworks." in text for text in asked[-1]) == 1
    assert "open v1: v1 is open" in asked[1][-1]


server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["NOBODYS_KEY"] = "none"
asyncio.run(main(f"http://127.0.0.1:{server.server_port}/v1"))
print("ok")
