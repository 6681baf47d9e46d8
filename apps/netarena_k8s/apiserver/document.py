"""YAML from outside: safe types only, of bounded depth and size once its aliases are followed."""

from __future__ import annotations

import math
from typing import Any

import yaml

#: collections within collections: the parser's own stack is not to be trusted with more
MAX_DEPTH = 200


class _Loader(yaml.CSafeLoader):
    """Times are text, as JSON has them, and so is a bare ``=``; a tag that JSON has no type for
    says nothing."""


_YAML = "tag:yaml.org,2002:"
_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] not in {f"{_YAML}timestamp", f"{_YAML}value"}]
    for first, pairs in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def _make_plain(loader: _Loader, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    assert isinstance(node, yaml.ScalarNode)
    return loader.construct_scalar(node)


for _tag in (None, *(f"{_YAML}{name}" for name in ("timestamp", "binary", "set", "omap", "pairs"))):
    _Loader.add_constructor(_tag, _make_plain)


def read_documents(text: str | bytes, max_values: int, *, aliases: bool) -> list[Any]:
    """The documents of a text, as JSON has them. Raises ValueError, which says where and what."""
    try:
        depth = values = 0
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            if isinstance(event, yaml.AliasEvent) and not aliases:
                raise ValueError("aliases are not taken here")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ValueError("exceeded max depth")
            values += isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
            if values > max_values:  # before they are made, which takes longer
                raise _too_many(max_values)
        found = list(yaml.load_all(text, Loader=_Loader))
    # a text that is none of its tag's type is met as any of these
    except (yaml.YAMLError, TypeError, LookupError, AttributeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        told = " ".join(str(getattr(error, "problem", None) or error).split())[:200]
        raise ValueError(f"line {mark.line + 1}: {told}" if mark else told) from None
    check_values(found, max_values)
    return found


def check_values(value: Any, most: int) -> int:
    """How many values there are, those of aliases counted: they make much of little, or a value
    that holds itself. Keys become text, as kubectl has them.

    Raises ValueError for more than ``most``, and for what JSON does not know.
    """
    waiting, seen = [value], 0
    while waiting:
        one = waiting.pop()
        seen += 1
        if seen > most:
            raise _too_many(most)
        if isinstance(one, dict):
            for key in [key for key in one if not isinstance(key, str)]:
                one[_key(key)] = one.pop(key)
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
        elif not isinstance(one, str | int | None) and not (
            isinstance(one, float) and math.isfinite(one)
        ):
            raise ValueError(f"{str(one)[:80]!r} is no value of JSON")
    return seen


def _too_many(most: int) -> ValueError:
    return ValueError(f"more than {most} values, those of aliases counted")


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return str(key).lower()
    if isinstance(key, int):
        return str(key)
    if isinstance(key, float) and math.isfinite(key):
        return f"{key:g}"
    raise ValueError(f"{str(key)[:80]!r} is no key: text is")
