"""Agent cards: one per service, for both protocol versions, at both well-known paths."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

#: Paths of the card: first for 1.0 clients and recent 0.3 clients, then for early 0.3 clients.
CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
#: Protocol versions in the card. 0.3 clients fail unless the card names their version.
VERSIONS = ("1.0", "0.3")
#: Form of a Host header: a name, an IPv4 address or a bracketed IPv6 address, with or without
#: a port.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|[A-Za-z0-9_.-]{1,253})(?::([0-9]{1,5}))?")


@dataclass(frozen=True)
class CardText:
    """The contents of a card except its URL."""

    name: str
    description: str
    version: str
    tags: Sequence[str] = ()
    example: str = ""


def make_card(text: CardText, url: str) -> AgentCard:
    """Return the card of a service at ``url``."""
    skill = AgentSkill(
        id=re.sub(r"[^a-z0-9]+", "-", text.name.lower()).strip("-"),
        name=text.name,
        description=text.description,
        tags=text.tags,
        examples=[text.example] if text.example else [],
    )
    return AgentCard(
        name=text.name,
        description=text.description,
        version=text.version,
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=version)
            for version in VERSIONS
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=False),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[skill],
    )


def _is_authority(host: str) -> bool:
    """Return whether a Host header can be used in a URL."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    address, port = match.groups()
    try:
        if address is not None:
            ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return port is None or 0 < int(port) < 2**16


def card_routes(text: CardText, card_url: str | None, fallback_url: str) -> list[Route]:
    """Return the routes of a card that contains ``card_url`` as the agent's URL.

    If ``card_url`` is None, the card contains the URL of the request or, for a request without a
    usable Host header, ``fallback_url``.
    """

    @lru_cache(maxsize=64)
    def render(url: str) -> JSONResponse:
        return JSONResponse(agent_card_to_dict(make_card(text, url)))

    async def get_card(request: Request) -> JSONResponse:
        host = request.headers.get("host", "")
        by_request = f"{request.url.scheme}://{host}/" if _is_authority(host) else fallback_url
        return render(card_url or by_request)

    return [Route(path, get_card, methods=["GET"]) for path in CARD_PATHS]
