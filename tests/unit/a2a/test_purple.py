from __future__ import annotations

import pytest
from peer import Answering

from netarena.a2a import purple
from netarena.a2a.client import A2AAgent
from netarena.a2a.purple import Streaming, purple_app
from netarena.a2a.service import listen, serving
from netarena.errors import AgentFailed, FailureReason
from netarena.model import Reply

pytestmark = pytest.mark.anyio


class InPieces(Answering):
    """Streams the pieces listed in the prompt; a piece ``-`` discards the earlier ones."""

    def __init__(self) -> None:
        super().__init__(str)

    async def stream(self, prompt, *, context_id, timeout_s):
        whole = ""
        for piece in prompt.split("|"):
            if piece == "!":
                raise AgentFailed(FailureReason.TASK_FAILED, "no more")
            void = piece == "-"
            whole = "" if void else whole + piece
            yield None if void else piece
        yield Reply(text=whole.upper() if "shout" in whole else whole, metadata={"usage": {"n": 1}})


@pytest.mark.parametrize("every_s", [0.0, 60.0])
@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("one", "one"),
        ("one| two| three", "one two three"),
        ("one| two|-|anew", "anew"),
        ("one|-", ""),
        ("shout| it", "SHOUT IT"),  # the final reply differs from the pieces
    ],
)
async def test_streamed_reply_arrives_complete(monkeypatch, prompt, text, every_s):
    monkeypatch.setattr(purple, "PIECE_EVERY_S", every_s)
    agent = InPieces()
    assert isinstance(agent, Streaming)
    app = purple_app(agent, name="p", description="d")
    async with serving(app, listen("127.0.0.1", 0)) as url:
        client = A2AAgent(url)
        await client.open(timeout_s=30)
        try:
            if not text:
                with pytest.raises(AgentFailed, match="no text"):
                    await client.ask(prompt, context_id="c", timeout_s=30)
                return
            reply = await client.ask(prompt, context_id="c", timeout_s=30)
        finally:
            await client.aclose()
    assert reply.text == text
    assert reply.metadata == {"usage": {"n": 1}}


async def test_reply_that_fails_halfway_ends_as_a_failed_task(monkeypatch):
    monkeypatch.setattr(purple, "PIECE_EVERY_S", 0.0)
    app = purple_app(InPieces(), name="p", description="d")
    async with serving(app, listen("127.0.0.1", 0)) as url:
        client = A2AAgent(url)
        await client.open(timeout_s=30)
        try:
            with pytest.raises(AgentFailed, match="no more") as caught:
                await client.ask("one|!", context_id="c", timeout_s=30)
        finally:
            await client.aclose()
    assert caught.value.reason is FailureReason.TASK_FAILED
