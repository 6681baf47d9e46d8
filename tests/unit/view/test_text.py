"""Untrusted text: invisible characters are made visible, and long text is folded."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from netarena.view.text import SHOWN_CHARS, SHOWN_LINES, fold, visible

#: Unicode categories of characters that are invisible or change the order of others
UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(st.text())
def test_visible_text_is_encodable_and_unchanged_by_a_second_conversion(text: str) -> None:
    assert visible(visible(text)) == visible(text)
    visible(text).encode()


def test_every_invisible_character_has_a_visible_sign() -> None:
    left = [
        f"{code:04X}"
        for code in range(0x110000)
        if unicodedata.category(chr(code)) in UNSEEN and visible(chr(code)) == chr(code)
    ]
    # newline, tab, and visible letters and signs of scripts that join letters
    assert left[:2] == ["0009", "000A"]
    assert all(unicodedata.bidirectional(chr(int(code, 16))) not in
               {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "BN"}
               for code in left), left  # fmt: skip
    assert visible("a\r\nb\tc\x00") == "a⟨CR⟩\nb\tc⟨NUL⟩"


def test_long_text_is_folded() -> None:
    assert fold("a" * SHOWN_CHARS) == ("a" * SHOWN_CHARS, 0)
    assert fold("a" * 2 * SHOWN_CHARS) == ("a" * SHOWN_CHARS, 2 * SHOWN_CHARS)
    many = "\n" * 10 * SHOWN_LINES
    assert fold(many) == ("\n" * (SHOWN_LINES - 1), len(many))
