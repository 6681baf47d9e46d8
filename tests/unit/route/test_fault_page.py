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


def _spell(template: str) -> str:
    text = re.sub(r"(?<!\{)\{(\w+)\}", _speak, template)
    return text.replace("{{", "{").replace("}}", "}").replace("|", "\\|")


def _speak(match: re.Match[str]) -> str:
    name = match[1]
    return "" if name.startswith("at_") else _SPOKEN.get(name, name.upper())


def _row(kind: str, method: Method) -> str:
    words = _spell(method.words.replace("{machine}", _WHERE[method.scope]))
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
