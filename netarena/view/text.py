"""Visible signs for invisible, reordering and control characters in untrusted text on a page.

The templates escape markup (autoescape). This module handles characters that HTML allows.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: Maximum numbers of characters and of lines of a text that a page shows without a click.
SHOWN_CHARS = 6000
SHOWN_LINES = 100
#: Invisible characters, characters that change the order of text, control characters except newline
#: and tab, and lone surrogates.
_ODD = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    r"\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    r"\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
#: Names of well-known control characters, because few fonts have symbols for them.
_NAMES = {0x00: "NUL", 0x07: "BEL", 0x08: "BS", 0x0D: "CR", 0x1B: "ESC", 0x7F: "DEL"}


def visible(text: str) -> str:
    r"""Return the text with visible signs in place of invisible and control characters.

    >>> visible("\x1b[31m a\u202eb \ud800\n")
    '⟨ESC⟩[31m a⟨202E⟩b ⟨D800⟩\n'
    """
    return _ODD.sub(_sign, text)


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"⟨{_NAMES.get(code) or f'{code:04X}'}⟩"


class Folded(NamedTuple):
    """A text that may be truncated. If it is, the length of the complete text is also stored."""

    shown: str
    whole: int = 0


def fold(text: str, chars: int = SHOWN_CHARS, lines: int = SHOWN_LINES) -> Folded:
    """Return a text, truncated if it is clearly longer than the limit."""
    if len(text) <= chars * 1.2 and text.count("\n") <= lines * 1.2:
        return Folded(text)
    shown = text[:chars]
    if shown.count("\n") > lines:
        shown = "\n".join(shown.split("\n", lines)[:lines])
    return Folded(shown, len(text))
