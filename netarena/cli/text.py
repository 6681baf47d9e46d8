"""Text of others on our terminal: JSON and log lines that do nothing to it."""

from __future__ import annotations

import json
import logging
import re

_ODD = re.compile(r"[^ -~\n]")


def json_text(value: object, *, indent: int | None = None) -> str:
    """A value as JSON that does nothing to a terminal; see ``escape``. Raises ValueError for NaN
    and infinity."""
    return escape(json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False))


def escape(document: str) -> str:
    """JSON with escapes in place of all characters that a terminal obeys, or does not show: agents
    and files choose them. It stands for the same value."""
    return _ODD.sub(lambda c: c[0] if c[0].isprintable() else json.dumps(c[0])[1:-1], document)


class PlainFormatter(logging.Formatter):
    """Log lines that do nothing to a terminal, whatever text of others they hold."""

    def format(self, record: logging.LogRecord) -> str:
        return _ODD.sub(
            lambda c: c[0] if c[0].isprintable() else ascii(c[0])[1:-1], super().format(record)
        )


def open_log(line: str) -> None:
    """Log to standard error in this format, which is as of ``logging``."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter(line))
    logging.basicConfig(handlers=[handler])
