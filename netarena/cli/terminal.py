"""Output of untrusted text without control sequences, in the encoding of the terminal or pipe."""

from __future__ import annotations

import codecs
import json
import logging
import os
import re
import sys
from io import TextIOWrapper

_ODD = re.compile(r"[^ -~\n]")
#: Replacements for characters of NetArena's own texts that the output's encoding lacks.
_SIGNS = {"–": "-", "−": "-", "…": "...", "×": "x", "·": "-", "→": "->", "≤": "<=", "≥": ">="}


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return a value as JSON without control sequences (see ``escape``).

    Raises ValueError for NaN and infinity.
    """
    return escape(json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False))


def open_streams() -> None:
    """Prepare standard input, output and error, even if they are closed.

    Closed streams are replaced: writes to standard output then fail, and standard error is
    discarded. Characters that the encoding of a stream lacks are replaced.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    codecs.register_error(__name__, _spell)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=__name__)


def _spell(error: UnicodeError) -> tuple[str, int]:
    """Error handler for ``codecs``: return a replacement for unencodable characters, and the
    position after these characters."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    spelt = (_SIGNS.get(c) or c.encode("ascii", "backslashreplace").decode() for c in lacking)
    return "".join(spelt), error.end


def escape(document: str) -> str:
    """Return JSON with escapes for control, invisible and unencodable characters.

    Texts of agents and files may contain such characters. The value does not change.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return _ODD.sub(
        lambda c: c[0] if _is_shown(c[0], encoding) else json.dumps(c[0])[1:-1], document
    )


def _is_shown(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return character.isprintable()


class PlainFormatter(logging.Formatter):
    """Formats log lines so that untrusted text in them contains no control sequences."""

    def format(self, record: logging.LogRecord) -> str:
        return _ODD.sub(
            lambda c: c[0] if c[0].isprintable() else ascii(c[0])[1:-1], super().format(record)
        )


def open_log(line: str) -> None:
    """Log to standard error in the format ``line``, which is a format string of ``logging``."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter(line))
    logging.basicConfig(handlers=[handler])


def tell_more(module: str) -> None:
    """Also log informational messages of the package of ``module``."""
    logging.getLogger(module.partition(".")[0]).setLevel(logging.INFO)
