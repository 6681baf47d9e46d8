"""Write the first table of standard input into a page, as ``scripts/demo --readme`` does.

    netarena leaderboard FILE... | python benchmarks/readme_table.py README.md

The page has the lines ``<!-- demo -->`` and ``<!-- /demo -->``; the table is written between these
lines unchanged. Input without a table does not change the page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from netarena.report.markdown import replace_section


def put_table(page: str, printed: Iterable[str]) -> str:
    """Return ``page`` with the first table of ``printed`` (up to an empty line) as its section.

    Raises ValueError for a page without the two marker lines, and if nothing was printed.
    """
    table = list(takewhile(str.strip, printed))
    if not table:
        raise ValueError("standard input contains no table")
    return replace_section(page, "demo", ["```", *(line.rstrip() for line in table), "```"])


def main() -> int:
    path = Path(sys.argv[1])
    try:
        page = put_table(path.read_text(encoding="utf-8"), sys.stdin)
    except ValueError as error:
        sys.stderr.write(f"{path}: {error}\n")
        return 1
    path.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
