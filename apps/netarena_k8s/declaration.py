"""Declarations, with which an agent ends a ticket and names the causes that it has found.

    done
    cart-policy: port
    order-rules: selector

Each line after ``done`` is POLICY: WORD, with a word of ``WORDS``. The causes are optional. A block
that begins with ``done`` is either accepted as a declaration or refused. It never runs as a
command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from netarena.sdk import MAX_CAUSES, Cause, Claim, Move, ReplyRefused, check_causes

DONE = "done"
#: word -> description of the mistake in a policy, as in the prompt
WORDS: Mapping[str, str] = MappingProxyType(
    {
        "missing": "an ingress rule or peer is missing (example: one caller is not in the list)",
        "extra": "an ingress rule or peer must not exist (example: a rule allows a caller that is "
        "not intended)",
        "peer": "the podSelector of an ingress peer selects the wrong pods (example: app=till1 "
        "instead of app=till)",
        "namespace": "an ingress peer selects the wrong namespaces (example: namespaceSelector "
        "team=shop, a label that the namespace lacks)",
        "address": "an ingress rule has an ipBlock instead of pods (example: 10.0.0.0/8)",
        "port": "an ingress port has the wrong number, name or range (example: the service's port "
        "instead of the pod's port)",
        "protocol": "an ingress port has the wrong protocol (example: UDP instead of TCP)",
        "selector": "the policy applies to the wrong pods (example: a wrong label in "
        "spec.podSelector)",
        "types": "policyTypes is wrong (example: Ingress is missing, so no ingress rule applies)",
        "egress": "the egress rules are wrong (example: the rule for one destination is missing)",
        "lookup": "egress does not allow name lookups (example: the rule for UDP 53 is missing)",
    }
)
#: kind of fault -> its word
WORD_OF: Mapping[str, str] = MappingProxyType(
    {
        "remove_ingress": "missing",
        "add_ingress": "extra",
        "change_port": "port",
        "change_protocol": "protocol",
        "add_egress": "egress",
        "pod_selector": "selector",
        "wrong_app": "selector",
        "peer_label": "peer",
        "peer_expression": "peer",
        "namespace_peer": "namespace",
        "joined_peers": "peer",
        "policy_types": "types",
        "ip_block": "address",
        "named_port": "port",
        "service_port": "port",
        "port_range": "port",
        "empty_rules": "missing",
        "open_rule": "extra",
        "open_peer": "peer",
        "dns_egress": "lookup",
        "egress_port": "egress",
    }
)

_FORM = "after the line 'done', each line must be POLICY: WORD"
#: maximum length of a declaration; longer ones are refused without reading their lines
_MAX_CHARS = 32_768
_CAUSE = re.compile(r"(?:[-*][ \t]++)?([a-z0-9][a-z0-9.-]{0,252})[ \t]*+:[ \t]*+([A-Za-z_-]{1,40})")


def read_claim(info: str, body: str) -> str | None:
    """Return the declaration in a code block, in canonical form, or None if the block is not a
    declaration.

    ``info`` is the text after the opening backticks. Raises ReplyRefused for a malformed
    declaration.
    """
    text = body.strip()
    if info.strip().lower() == DONE:
        text = f"{DONE}\n{text}".strip()
    first, _, rest = text.partition("\n")
    if first.strip().lower() != DONE:
        return None
    if len(rest) > _MAX_CHARS:
        raise ReplyRefused(f"the declaration is too long: {_FORM}, {MAX_CAUSES} at most")
    lines = [line.strip() for line in rest.split("\n") if line.strip()]
    return write_claim(check_causes([*map(_read_cause, lines)], WORDS))


def _read_cause(line: str) -> Cause:
    found = _CAUSE.fullmatch(line)
    if found is None:
        raise ReplyRefused(f"the declaration has a line that is not a cause: {_FORM}")
    return Cause(found[1], found[2])


def write_claim(causes: Iterable[Cause]) -> str:
    """Return the text of a declaration that names these causes."""
    return "\n".join([DONE, *(f"{cause.place}: {cause.what}" for cause in causes)])


def claim_of(move: Move) -> Claim | None:
    """Return the declaration in a move, or None if the move is a command."""
    if not isinstance(move, str):
        return None
    first, *lines = move.split("\n")
    if first != DONE or not all(map(_CAUSE.fullmatch, lines)):
        return None
    return Claim(causes=tuple(map(_read_cause, lines)) or None)


def causes_of(faults: Sequence[tuple[str, str]]) -> list[Cause]:
    """Return the causes that a correct declaration names for these faults, given as (policy, kind
    of fault)."""
    return [Cause(policy, WORD_OF[kind]) for policy, kind in faults]
