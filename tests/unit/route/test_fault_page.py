"""The table of faults in docs/evidence/route-faults.md matches the code.

``python tests/unit/route/test_fault_page.py`` rewrites it.
"""

from __future__ import annotations

import re
from pathlib import Path

from netarena_route.fault.method import Method, Scope
from netarena_route.fault.table import ALL_KINDS, KINDS, PAPER_KINDS

_PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "route-faults.md"
_BEGIN, _END = "<!-- faults -->\n", "<!-- /faults -->"
_WHERE = {Scope.ROUTER: "router", Scope.HOST: "host", Scope.TWIN: "host"}
#: placeholders on the page for drawn values
_SPOKEN = {
    "lost_routes": "",
    "kept_settings": "",
    "nft": "NAME",
    "first_pref": "PREF",
    "peer_ip": "HOST",
    "peer": "HOST",
    "ip": "ADDRESS",
    "wide": "WIDE",
}
#: patterns in descriptions and their plainer form on the page. The descriptions themselves are part
#: of the queries, so a change would change the queries' digests.
_PLAINER = {
    r"sends what is for (\w+), its neighbour, to": r"sends packets for \1, in its own subnet, to",
    r"sends what is for (\w+) out by": r"sends packets for \1 through",
    r"sends what is for": "sends packets for",
    r"has (\w+) for its gateway, which nobody has": r"uses the unused address \1 as its gateway",
    r"(\w+), which nobody has": r"the unused address \1",
    r"what it should forward": "forwarded packets",
    r"what is longer": "packets longer",
    r"(drops|loses) all that it sends": r"\1 all packets that it sends",
    r"delays all that it sends by 10 s on (\w+)": r"delays all packets that it sends on \1 by 10 s",
    r"prohibits all that is not for itself": "prohibits all packets for other machines",
    r"all traffic of its own": "all of its own traffic",
    r"ICMP of its own": "its own ICMP packets",
    r"the address HOST of HOST": "HOST, the address of another machine,",
    r"HOST, the address of HOST": "HOST, the address of another machine",
    r"filters by reverse path": "checks the reverse path",
    r"has lost": "lacks",
    r"speak ARP": "use ARP",
    r"neighbour entry": "ARP entry",
    r"nothing that comes in by": "no packets that arrive on",
    r"what comes in by": "packets that arrive on",
    r"what is untracked": "untracked packets",
    r"takes all other subnets for its own": "treats all other subnets as on-link",
    r"takes HOST, of another subnet, for its own": "treats HOST of another subnet as on-link",
    r"a blackhole for a default route": "a blackhole default route",
    r"which has prohibit HOST": "which prohibits HOST",
    r"sends with a TTL of 1, which ends": "sends packets with a TTL of 1, which expire",
}


def _spell(template: str) -> str:
    text = re.sub(r"(?<!\{)\{(\w+)\}", _speak, template)
    return text.replace("{{", "{").replace("}}", "}").replace("|", "\\|")


def _speak(match: re.Match[str]) -> str:
    name = match[1]
    return "" if name.startswith("at_") else _SPOKEN.get(name, name.upper())


def _row(kind: str, method: Method) -> str:
    words = _spell(method.words.replace("{machine}", _WHERE[method.scope]))
    for pattern, plainer in _PLAINER.items():
        words = re.sub(pattern, plainer, words)
    return f"| `{kind}` | `{method.name}` | {words} | `{_spell(method.inject)}` |"


def _table() -> str:
    rows = [_row(kind, method) for kind, methods in ALL_KINDS.items() for method in methods]
    return "\n".join(["| kind | method | what is wrong | injected by |", "| --- " * 4 + "|", *rows])


def _page_with(table: str) -> str:
    before, _, rest = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    return f"{before}{_BEGIN}{table}\n{_END}{rest.partition(_END)[2]}"


def test_fault_page_lists_every_method() -> None:
    assert _PAGE.read_text(encoding="utf-8") == _page_with(_table())
    extended = sum(len(methods) for kind, methods in KINDS.items() if kind not in PAPER_KINDS)
    text = _PAGE.read_text(encoding="utf-8")
    assert f"{sum(map(len, KINDS.values()))} methods" in text
    assert f"{len(KINDS) - len(PAPER_KINDS)} kinds with {extended} methods" in text
    few = sum(len(methods) for kind, methods in ALL_KINDS.items() if kind not in KINDS)
    assert f"{len(ALL_KINDS) - len(KINDS)} more kinds with {few} methods" in text


if __name__ == "__main__":
    _PAGE.write_text(_page_with(_table()), encoding="utf-8")
