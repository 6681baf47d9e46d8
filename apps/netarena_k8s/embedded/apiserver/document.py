"""Reader of untrusted YAML. It allows only safe types, and limits the nesting depth and the size
after alias expansion.
"""

from __future__ import annotations

import math
from typing import Any

import yaml

#: maximum number of nesting levels; deeper input could overflow the parser's stack
MAX_DEPTH = 200


class _Loader(yaml.CSafeLoader):
    """A YAML loader that returns only values that JSON supports.

    Times and a bare ``=`` are read as text. Tags without a type in JSON are ignored.
    """

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # Unlike JSON, YAML allows a collection as a key, as in ``{{ .Values.name }}``.
        # A scalar with the line number replaces such a key.
        node.value = [
            (key if isinstance(key, yaml.ScalarNode) else _stand_for(key), value)
            for key, value in node.value
        ]
        super().flatten_mapping(node)


_COLLECTION = "!netarena-collection"
_YAML = "tag:yaml.org,2002:"
_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] not in {f"{_YAML}timestamp", f"{_YAML}value"}]
    for first, pairs in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def _stand_for(collection: yaml.Node) -> yaml.ScalarNode:
    return yaml.ScalarNode(_COLLECTION, str(collection.start_mark.line + 1))


def _make_plain(loader: _Loader, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    assert isinstance(node, yaml.ScalarNode)
    return loader.construct_scalar(node)


for _tag in (None, *(f"{_YAML}{name}" for name in ("timestamp", "binary", "set", "omap", "pairs"))):
    _Loader.add_constructor(_tag, _make_plain)
_Loader.add_constructor(_COLLECTION, lambda _, node: (node.value,))


def read_documents(text: str | bytes, max_values: int, *, aliases: bool) -> list[Any]:
    """Return the documents of a text as JSON values. Raises ValueError with the position and the
    problem.
    """
    found, _, odd = parse_documents(text, max_values, aliases=aliases)
    if odd:
        raise ValueError(odd)
    return found


def parse_documents(
    text: str | bytes, max_values: int, *, aliases: bool
) -> tuple[list[Any], int, str]:
    """Return the documents of a text, the number of values after alias expansion, and a message
    about the first value that JSON does not support. The message is "" if JSON supports all values.
    Raises ValueError."""
    try:
        depth = values = 0
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            if isinstance(event, yaml.AliasEvent) and not aliases:
                raise ValueError("YAML aliases are not supported here")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ValueError("exceeded max depth")
            values += isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
            if values > max_values:  # Counting is faster than constructing the values.
                raise _too_many(max_values)
        found = list(yaml.load_all(text, Loader=_Loader))
    # A value that does not match its YAML tag may raise any of these errors.
    except (yaml.YAMLError, TypeError, LookupError, AttributeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        told = " ".join(str(getattr(error, "problem", None) or error).split())[:200]
        raise ValueError(f"line {mark.line + 1}: {told}" if mark else told) from None
    return found, *count_values(found, max_values)


def count_values(value: Any, most: int) -> tuple[int, str]:
    """Return the number of values after alias expansion, and a message about the first value that
    JSON does not support ("" if JSON supports all values).

    Aliases can expand to many values, or to a value that contains itself. Keys of ``value`` that
    are not strings are replaced with strings, as in kubectl. Raises ValueError if there are more
    than ``most`` values.
    """
    waiting, seen, odd = [value], 0, ""
    while waiting:
        one = waiting.pop()
        seen += 1
        if seen > most:
            raise _too_many(most)
        if isinstance(one, dict):
            for key in [key for key in one if not isinstance(key, str)]:
                if (name := _key(key)) is None:
                    odd = odd or f"{_tell(key)} is not a key; keys must be strings"
                else:
                    one[name] = one.pop(key)
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
        elif not isinstance(one, str | int | None) and not (
            isinstance(one, float) and math.isfinite(one)
        ):
            odd = odd or f"{_tell(one)} is not a JSON value"
    return seen, odd


def _too_many(most: int) -> ValueError:
    return ValueError(f"more than {most} values, counting the values that aliases expand to")


def _tell(value: Any) -> str:
    if isinstance(value, tuple):
        return f"the collection in line {value[0]}"
    return repr(str(value)[:80])


def _key(key: Any) -> str | None:
    if isinstance(key, bool):
        return str(key).lower()
    if isinstance(key, int):
        return str(key)
    if isinstance(key, float) and math.isfinite(key):
        return f"{key:g}"
    return None
