"""The table of faults in docs/evidence/k8s-faults.md matches the code.

``python tests/unit/k8s/test_fault_page.py`` rewrites it.
"""

from __future__ import annotations

from pathlib import Path

from netarena.report.markdown import replace_section, table
from netarena_k8s.fault.subtle import KINDS_OF_LARGE
from netarena_k8s.fault.table import KINDS, PAPER_KINDS, WORDS, WORDS_OF_LARGE

_PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "k8s-faults.md"


def _page() -> str:
    rows = [
        [f"`{kind}`", f"`{method}`", WORDS[kind][method]]
        for kind, methods in KINDS.items()
        for method in methods
    ]
    large = [
        [f"`{kind}`", f"`{method}`", {**WORDS[kind], **WORDS_OF_LARGE.get(kind, {})}[method]]
        for kind, methods in KINDS_OF_LARGE.items()
        for method in methods
    ]
    head = ["kind", "method", "what is wrong"]
    text = replace_section(_PAGE.read_text(encoding="utf-8"), "faults", table(head, rows))
    return replace_section(text, "faults of large shops", table(head, large))


def test_fault_page_lists_every_method() -> None:
    text = _PAGE.read_text(encoding="utf-8")
    assert text == _page()
    extended = sum(len(methods) for kind, methods in KINDS.items() if kind not in PAPER_KINDS)
    assert f"{len(KINDS) - len(PAPER_KINDS)} further kinds with {extended} methods" in text


if __name__ == "__main__":
    _PAGE.write_text(_page(), encoding="utf-8")
