"""The table of requested changes in docs/backbone-changes.md matches the code.

``python tests/unit/backbone/planned/test_page.py`` rewrites it.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

from netarena_backbone.draw import draw
from netarena_backbone.planned.refusal import options
from netarena_backbone.planned.table import KINDS, SETUPS
from netarena_backbone.world.model import World

_PAGE = Path(__file__).parents[4] / "docs" / "backbone-changes.md"
_BEGIN, _END = "<!-- changes -->\n", "<!-- /changes -->"
#: Seeds of worlds; each example comes from the first world in which its method is possible.
_SEEDS = range(35, 45)


@cache
def _world(seed: int) -> World:
    return draw(random.Random(seed), 6)


def _example(kind: str, method: str) -> str:
    """Return the shortest request text of a method, in a world prepared for it if needed."""
    for world in map(_world, _SEEDS):
        setup = SETUPS.get((kind, method))
        prepared = [one.edit(world) for one in options(world, *setup)] if setup else [world]
        for one in prepared:
            if words := [change.words for change in options(one, kind, method)]:
                return min(words, key=lambda told: (len(told), told))
    raise AssertionError(f"no world has room for {kind} {method}")


def _table() -> str:
    rows = []
    for kind, methods in KINDS.items():
        names = ", ".join(f"`{one.name}`" for one in methods)
        example = _example(kind, methods[0].name).replace("|", "\\|")
        rows.append(f"| `{kind}` | {names} | {example} |")
    return "\n".join(["| kind | methods | example of the first |", "| --- " * 3 + "|", *rows])


def _page_with() -> str:
    before, _, rest = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    number = sum(map(len, KINDS.values()))
    told = f"There are {number} methods of {len(KINDS)} kinds:\n\n"
    return f"{before}{_BEGIN}{told}{_table()}\n{_END}{rest.partition(_END)[2]}"


def test_change_page_lists_every_kind_and_method() -> None:
    assert _PAGE.read_text(encoding="utf-8") == _page_with()


if __name__ == "__main__":
    _PAGE.write_text(_page_with(), encoding="utf-8")
