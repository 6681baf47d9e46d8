"""The table of faults in docs/evidence/backbone-faults.md matches the code.

``python tests/unit/backbone/test_page.py`` rewrites it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from netarena_backbone.draw import draw
from netarena_backbone.fault.change import Method
from netarena_backbone.fault.derive import orders
from netarena_backbone.fault.lasting import LASTING
from netarena_backbone.fault.table import KINDS
from netarena_backbone.world.model import World

_PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "backbone-faults.md"
#: Seeds of worlds; each example comes from the first world in which its method is possible.
_SEEDS = range(35, 45)
_TABLES = {
    "faults": KINDS,
    "latent faults": {
        kind: [one for one in methods if one not in KINDS[kind]]
        for kind, methods in LASTING.items()
    },
}


@cache
def _world(seed: int) -> World:
    return draw(random.Random(seed), 6)


def _table(table: Mapping[str, Sequence[Method]]) -> str:
    rows = []
    for kind, methods in table.items():
        for method in methods:
            drawn = map(_world, _SEEDS)
            world, change = next((one, found) for one in drawn for found in method.changes(one))
            repair = "; ".join(command for _, command in orders(change.edit(world), world))
            cells = (f"`{kind}`", f"`{method.name}`", change.words, f"`{repair}`")
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(["| kind | method | example | repaired by |", "| --- " * 4 + "|", *rows])


def _page_with() -> str:
    text = _PAGE.read_text(encoding="utf-8")
    for name, table in _TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{_table(table)}\n{end}{rest.partition(end)[2]}"
    return text


def test_fault_page_lists_every_method() -> None:
    text = _PAGE.read_text(encoding="utf-8")
    assert text == _page_with()
    first, new = (sum(map(len, table.values())) for table in _TABLES.values())
    kinds = len({*KINDS, *LASTING})
    assert f"{first + new} fault methods of {kinds} kinds. {new} methods occur only in" in text
    lasting = sum(map(len, LASTING.values()))
    assert f"{lasting} methods, {new} of them new" in text
    use = (_PAGE.parents[1] / "backbone.md").read_text(encoding="utf-8")
    assert f"[All {first + new} fault methods]" in use
    assert f"The {first} methods of the first table are" in use


def test_fault_page_names_each_method_that_may_be_latent() -> None:
    text = _PAGE.read_text(encoding="utf-8")
    for kind, methods in LASTING.items():
        old = [f"`{one.name}`" for one in methods if one in KINDS[kind]]
        assert not old or f"`{kind}`: {', '.join(old)}" in text


if __name__ == "__main__":
    _PAGE.write_text(_page_with(), encoding="utf-8")
