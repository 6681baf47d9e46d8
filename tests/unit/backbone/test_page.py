"""The table of faults in docs/evidence/backbone-faults.md matches the code.

``python tests/unit/backbone/test_page.py`` rewrites it.
"""

from __future__ import annotations

import random
from pathlib import Path

from netarena_backbone.draw import draw
from netarena_backbone.fault.derive import orders
from netarena_backbone.fault.table import KINDS

_PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "backbone-faults.md"
#: seeds of worlds in which together every method can be applied
_SEEDS = (35, 36)
_BEGIN, _END = "<!-- faults -->\n", "<!-- /faults -->"


def _table() -> str:
    worlds = [draw(random.Random(seed), 6) for seed in _SEEDS]
    rows = []
    for kind, methods in KINDS.items():
        for method in methods:
            world, change = next((one, found) for one in worlds for found in method.changes(one))
            repair = "; ".join(command for _, command in orders(change.edit(world), world))
            cells = (f"`{kind}`", f"`{method.name}`", change.words, f"`{repair}`")
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(["| kind | method | example | repaired by |", "| --- " * 4 + "|", *rows])


def _page_with(table: str) -> str:
    before, _, rest = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    return f"{before}{_BEGIN}{table}\n{_END}{rest.partition(_END)[2]}"


def test_fault_page_lists_every_method() -> None:
    text = _PAGE.read_text(encoding="utf-8")
    assert text == _page_with(_table())
    assert f"{sum(map(len, KINDS.values()))} methods of {len(KINDS)} kinds" in text


if __name__ == "__main__":
    _PAGE.write_text(_page_with(_table()), encoding="utf-8")
