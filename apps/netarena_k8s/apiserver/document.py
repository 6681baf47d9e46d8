"""YAML from outside: safe types only, of bounded depth and size once its aliases are followed."""

from __future__ import annotations

from typing import Any

import yaml

#: collections within collections: the parser's own stack is not to be trusted with more
MAX_DEPTH = 200


def read_documents(text: str | bytes, max_values: int, *, aliases: bool) -> list[Any]:
    """The documents of a text. Raises ValueError, whose words say where and what."""
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            if isinstance(event, yaml.AliasEvent) and not aliases:
                raise ValueError("aliases are not taken here")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ValueError("exceeded max depth")
        found = list(yaml.load_all(text, Loader=yaml.CSafeLoader))
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        told = " ".join(str(getattr(error, "problem", None) or error).split())[:200]
        raise ValueError(f"line {mark.line + 1}: {told}" if mark else told) from None
    _count(found, max_values)
    return found


def _count(value: Any, most: int) -> None:
    """Aliases make much of little, or a value that holds itself."""
    waiting, seen = [value], 0
    while waiting:
        one = waiting.pop()
        seen += 1
        if seen > most:
            raise ValueError(f"more than {most} values, those of aliases counted")
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
