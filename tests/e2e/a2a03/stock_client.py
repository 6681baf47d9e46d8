"""Client of a green agent, built with version 0.3 of the SDK like AgentBeats' own client.

Run it in the environment with version 0.3: ``stock_client.py MODE URL REQUEST``. MODE is
``stream``, ``block``, ``leave`` (disconnects after the first artifact and returns with
``tasks/resubscribe``) or ``cancel``. Prints one JSON object: state, status text, all status texts
of the running task (``heard``), results with joined parts, number of events, and task id.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import Message, Part, Role, TaskIdParams, TaskQueryParams, TextPart


def texts(parts):
    return [part.root.text for part in parts if part.root.kind == "text"]


async def main(mode: str, url: str, request: str) -> dict:
    async with httpx.AsyncClient(timeout=60) as http:
        card = await A2ACardResolver(httpx_client=http, base_url=url).get_agent_card()
        config = ClientConfig(httpx_client=http, streaming=mode != "block")
        client = ClientFactory(config).create(card)
        message = Message(
            kind="message",
            role=Role.user,
            message_id=uuid.uuid4().hex,
            parts=[Part(root=TextPart(kind="text", text=request))],
        )
        task, events, heard = None, 0, []
        async for event in client.send_message(message):
            task, update = event
            events += 1
            if update is not None and update.kind == "status-update" and update.status.message:
                heard.extend(texts(update.status.message.parts))
            if mode in {"leave", "cancel"} and update is not None and task.artifacts:
                break
        if mode == "cancel":
            task = await client.cancel_task(TaskIdParams(id=task.id))
        if mode == "leave":
            try:
                async for event in client.resubscribe(TaskIdParams(id=task.id)):
                    task, _ = event
                    events += 1
            except Exception as error:  # noqa: BLE001 -- the SDK raises several types
                # the task had already ended
                print(f"resubscribe: {error!r}", file=sys.stderr)
            task = await client.get_task(TaskQueryParams(id=task.id))
        status = task.status.message
        return {
            "id": task.id,
            "state": task.status.state.value,
            "heard": heard,
            "said": "".join(texts(status.parts)) if status else "",
            "results": [
                json.loads(text)
                for artifact in task.artifacts or []
                for text in texts(artifact.parts)
            ],
            "events": events,
            "versions": card.protocol_version,
        }


print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
