"""Reader of a user's network from a file: MALT's text format, or networkx's node-link JSON.

Both formats describe nodes by name and the edges between them, which must obey the rules in the
prompt (``structure``). In the text format, entities with the same name are one node, which has the
attributes of all of them. Examples are a chassis, its control point and its packet switch.

An error in a file is reported in one line with the position, the entity and the rule.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx as nx

from netarena.sdk import ConfigError
from netarena_malt.network import Network
from netarena_malt.structure import structure
from netarena_malt.topology import CAPACITY, NODE_KINDS, RK_CONTAINS, RK_CONTROLS, Graph

#: Maximum size of a file in bytes.
MAX_BYTES = 512 << 20
#: Maximum number of nodes of a network from any source, about 180 times the released model's.
MAX_NODES = 1_000_000
#: Permitted form of a node's name. Such names need no escaping in quoted texts, reports and
#: programs.
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:/@+-]{0,62}[A-Za-z0-9])?")
#: Maximum number of levels of nested messages in the text format.
_MAX_DEPTH = 8
_RELATIONS = (RK_CONTAINS, RK_CONTROLS)
#: Set of types of a node with several types -> the node's ``type`` list, in order.
_TYPES: Mapping[frozenset[str], tuple[str, ...]] = {
    frozenset(kind.types): kind.types for kind in NODE_KINDS.values()
}
_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|(?P<word>[A-Za-z_][\w.]*)|(?P<number>[-+]?[\d.][\w.+-]*)"""
    r"""|(?P<text>"[^"\\\n]*"|'[^'\\\n]*')|(?P<mark>[{}:<>;,])|(?P<wrong>.)"""
)
_CLOSED_BY = {"{": "}", "<": ">"}


class _Wrong(Exception):
    """An error in the file. ``offset`` is its position in the text."""

    def __init__(self, problem: str, offset: int) -> None:
        super().__init__(problem)
        self.offset = offset


@dataclass
class _Model:
    """The network in a file, before it is checked. It may break any rule."""

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Offset in the text at which a node first occurs.
    places: dict[str, int] = field(default_factory=dict)
    edges: list[tuple[str, str, str, int]] = field(default_factory=list)

    def add_node(self, name: Any, attributes: dict[str, Any], offset: int) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise _Wrong(
                f"node names: {name!r:.80} is not valid; a name has at most 64 characters "
                "(letters, digits and . _ : / @ + -), the first and last of which are letters or "
                "digits",
                offset,
            )
        if name not in self.nodes:
            self.nodes[name] = {"name": name, "type": []}
            self.places[name] = offset
        node = self.nodes[name]
        for key, value in attributes.items():
            if key == "type":
                node["type"] += value
            elif key in node and node[key] != value:
                raise _Wrong(
                    f"entity {name!r}: {key} has two values, {node[key]!r:.80} and {value!r:.80}",
                    offset,
                )
            else:
                node[key] = value
        if len(self.nodes) > MAX_NODES:
            raise _Wrong(f"the network has more than {MAX_NODES} nodes", offset)


def read_model(path: Path) -> tuple[Graph, str]:
    """Return the network of a model file, and the SHA-256 of the file in hex.

    Values have the same types as in the released model: numbers are floats, and ``type`` is a list.
    Nodes share values, so the graph must not be changed. Raises ConfigError.
    """
    data = read_bytes(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _refuse(path, line, "the file is not UTF-8 text") from None
    digest = hashlib.sha256(data).hexdigest()
    del data
    model = _Model()
    try:
        (_read_json if text.lstrip()[:1] == "{" else _read_text)(text, model)
        return _checked(model), digest
    except _Wrong as error:
        raise _refuse(path, text.count("\n", 0, error.offset) + 1, str(error)) from None


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a model file. Raises ConfigError."""
    try:
        if not path.is_file():
            raise ConfigError("topology", f"{path.name} does not exist or is not a regular file")
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError("topology", f"{path.name} has more than {MAX_BYTES >> 20} MiB")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigError("topology", f"{path.name} cannot be read: {error}") from None


def _refuse(path: Path, line: int, problem: str) -> ConfigError:
    return ConfigError("topology", f"{path.name}, line {line}: {problem}")


# Reader of the text format.


def _read_text(text: str, model: _Model) -> None:
    tokens = _Tokens(text)
    known: dict[str, Callable[[Mapping[str, Any], int], None]] = {
        "entity": lambda message, offset: _add_entity(model, message, offset),
        "relationship": lambda message, offset: _add_relationship(model, message, offset),
    }
    for key, offset in tokens.fields(""):
        if key not in known:
            raise _Wrong(f"unknown field {key!r:.80}; expected entity or relationship", offset)
        if not tokens.opens():
            raise _Wrong(f"{key} must be a message: {key} {{ ... }}", offset)
        known[key](tokens.message(key), offset)
    if not model.nodes:
        raise _Wrong(
            "the file contains no entity; it must be a model in the text format or node-link JSON",
            0,
        )


class _Tokens:
    """Reader of messages from the tokens of a text."""

    def __init__(self, text: str) -> None:
        self._found = (match for match in _TOKEN.finditer(text) if match.lastgroup is not None)
        self._end = len(text)
        self._ahead: re.Match[str] | None = next(self._found, None)

    def fields(self, closed_by: str) -> Iterator[tuple[str, int]]:
        """Yield each field's name and position, up to the token ``closed_by``. The caller reads the
        value before it requests the next field."""
        while (token := self._ahead) is not None:
            if token.lastgroup == "mark" and token.group() in {",", ";"}:
                self._take()
                continue
            if closed_by and token.group() == closed_by:
                self._take()
                return
            if token.lastgroup != "word":
                raise _Wrong(
                    f"expected the name of a field, found {token.group()[:80]!r}", token.start()
                )
            self._take()
            yield token.group(), token.start()
        if closed_by:
            raise _Wrong(f"the file ends within a message: {closed_by} is missing", self._end)

    def opens(self) -> bool:
        """Return whether the next token starts a message."""
        if self._ahead is not None and self._ahead.group() == ":":
            self._take()
        return self._ahead is not None and self._ahead.group() in _CLOSED_BY

    def message(self, name: str, depth: int = 1) -> dict[str, Any]:
        """Return a message as a dict. Numbers become floats, words and quoted texts become strings,
        and messages become dicts."""
        mark = self._take()
        if depth > _MAX_DEPTH:
            raise _Wrong(
                f"{name}: messages are nested more than {_MAX_DEPTH} levels deep", mark.start()
            )
        found: dict[str, Any] = {}
        for key, offset in self.fields(_CLOSED_BY[mark.group()]):
            value = self.message(key, depth + 1) if self.opens() else self._value(key)
            if key in found:
                raise _Wrong(f"{name}: duplicate field {key}", offset)
            found[key] = value
        return found

    def _value(self, key: str) -> str | float:
        token = self._take()
        kind, text = token.lastgroup, token.group()
        if kind == "word":
            return text
        if kind == "text":
            return text[1:-1]
        if kind == "number":
            try:
                return float(text)
            except ValueError:
                pass
        raise _Wrong(f"{key}: expected a value, found {text[:80]!r}", token.start())

    def _take(self) -> re.Match[str]:
        token = self._ahead
        if token is None:
            raise _Wrong("the file ends within a field", self._end)
        if token.lastgroup == "wrong":
            raise _Wrong(f"{token.group()!r} is not valid in the text format", token.start())
        self._ahead = next(self._found, None)
        return token


def _add_entity(model: _Model, message: Mapping[str, Any], offset: int) -> None:
    name, kind = _identify(message.get("id"), "entity: id", offset)
    attributes: dict[str, Any] = {"type": [kind]}
    for key, value in message.items():
        if key == "id":
            continue
        if not key.endswith("_attr") or not isinstance(value, dict):
            raise _Wrong(
                f"entity {name!r}: {key!r:.80} is neither the field id nor a message with "
                "attributes, whose name ends in _attr",
                offset,
            )
        if value.keys() & {"name", "type"}:
            raise _Wrong(f"entity {name!r}: name and type belong in id, not in {key:.80}", offset)
        attributes |= value
    if kind in model.nodes.get(name, {}).get("type", ()):
        raise _Wrong(f"entity {name!r}: duplicate entity of kind {kind}", offset)
    model.add_node(name, attributes, offset)


def _add_relationship(model: _Model, message: Mapping[str, Any], offset: int) -> None:
    if unknown := message.keys() - {"kind", "a", "z"}:
        raise _Wrong(
            f"relationship: unknown field {min(unknown)!r:.80}; known fields: kind, a, z", offset
        )
    kind = message.get("kind")
    ends = [_identify(message.get(end), f"relationship: {end}", offset)[0] for end in "az"]
    _add_edge(model, ends[0], ends[1], kind, offset)


def _identify(message: Any, where: str, offset: int) -> tuple[str, str]:
    """Return the name and kind of an entity, which begins at ``offset`` in the text."""
    if not isinstance(message, dict) or message.keys() != {"kind", "name"}:
        raise _Wrong(f"{where} must have exactly the fields kind and name", offset)
    name, kind = message["name"], message["kind"]
    if not isinstance(kind, str) or not any(kind in types for types in _TYPES):
        known = ", ".join(sorted({kind for types in _TYPES for kind in types}))
        raise _Wrong(f"node kinds: {kind!r:.80} of {name!r:.80} is not one of {known}", offset)
    return name, kind


def _add_edge(model: _Model, source: Any, target: Any, kind: Any, offset: int) -> None:
    if kind not in _RELATIONS:
        raise _Wrong(
            f"edge kinds: {source!r:.80} -> {target!r:.80} is {kind!r:.80}, not one of "
            f"{', '.join(_RELATIONS)}",
            offset,
        )
    for end in (source, target):
        if not isinstance(end, str):
            raise _Wrong(f"edges join nodes: {end!r:.80} is not the name of a node", offset)
    model.edges.append((source, target, kind, offset))


# Reader of node-link JSON.


def _read_json(text: str, model: _Model) -> None:
    try:
        data = json.loads(text, parse_int=float, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise _Wrong(f"not valid JSON: {error.msg}", error.pos) from None
    except (ValueError, RecursionError) as error:
        raise _Wrong(f"not valid JSON: {error}", 0) from None
    places = _Places(text)
    if data.get("directed") is False:
        raise _Wrong("directed is false; it must be true, because a network is a directed graph", 0)
    for entry in _entries(data, "nodes"):
        name = entry.get("id", entry.get("name"))
        offset = places.of(name)
        if isinstance(name, str) and name in model.nodes:
            raise _Wrong(f"entity {name!r:.80} is listed twice", offset)
        attributes = {key: value for key, value in entry.items() if key not in {"id", "name"}}
        if entry.get("name", name) != name:
            raise _Wrong(
                f"node names: id {name!r:.80} and name {entry['name']!r:.80} differ", offset
            )
        types = attributes.get("type")
        attributes["type"] = [types] if isinstance(types, str) else types
        if not isinstance(attributes["type"], list):
            raise _Wrong(f"node kinds: the type of {name!r:.80} must be a list of kinds", offset)
        model.add_node(name, attributes, offset)
    for entry in _entries(data, "edges" if "edges" in data else "links"):
        source, target = entry.get("source"), entry.get("target")
        surplus = entry.keys() - {"source", "target", "key", "type"}
        offset = places.of(target)
        if surplus:
            raise _Wrong(
                f"attributes of an edge: {source!r:.80} -> {target!r:.80} has {min(surplus)!r:.80};"
                " the only attribute of an edge is type",
                offset,
            )
        _add_edge(model, source, target, entry.get("type"), offset)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _entries(data: Mapping[str, Any], key: str) -> Iterator[dict[str, Any]]:
    entries = data.get(key)
    if not isinstance(entries, list):
        raise _Wrong(f"node-link JSON must have a list of {key}", 0)
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise _Wrong(f"{key}[{number}] is not an object", 0)
        yield entry


class _Places:
    """Finder of the first position of each name in a JSON text. Names must be queried in their
    order in the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def of(self, name: Any) -> int:
        """Return the offset of the name.

        If the file writes the name with escapes, return the offset of the previous name.
        """
        if isinstance(name, str):
            found = self._text.find(f'"{name}"', self._at)
            self._at = self._at if found < 0 else found
        return self._at


# Checks of the rules.


def _checked(model: _Model) -> Graph:
    """Return the graph of a model. Raises _Wrong if the model breaks a rule."""
    graph: Graph = nx.DiGraph()
    nodes, rows, columns = graph._node, graph._succ, graph._pred  # noqa: SLF001 -- as in topology.build
    lists = {types: list(ordered) for types, ordered in _TYPES.items()}
    for name, attributes in model.nodes.items():
        types = frozenset(attributes["type"]) if _is_text(attributes["type"]) else frozenset[str]()
        attributes["type"] = lists.get(types, attributes["type"])
        nodes[name], rows[name], columns[name] = attributes, {}, {}
    relations = {kind: {"type": kind} for kind in _RELATIONS}
    for source, target, kind, offset in model.edges:
        for end in (source, target):
            if end not in nodes:
                raise _Wrong(f"edges join nodes: there is no entity {end!r:.80}", offset)
        if rows[source].get(target, relations[kind]) is not relations[kind]:
            raise _Wrong(f"edge kinds: {source!r} -> {target!r} has two kinds", offset)
        # equal names share one string object
        above, below = nodes[source]["name"], nodes[target]["name"]
        rows[above][below] = columns[below][above] = relations[kind]
    model.edges.clear()
    network = Network(graph)
    for name in nodes:
        for finding in structure(network, name):
            raise _Wrong(f"{finding.rule}: {finding.detail}", model.places[name])
        if not all(map(_is_plain, nodes[name].values())):
            raise _Wrong(f"attributes of a kind: {name!r} has a number that is not finite",
                         model.places[name])  # fmt: skip
        if not nodes[name].get(CAPACITY, 0.0).is_integer():
            raise _Wrong(f"port capacities: {name!r} has {nodes[name][CAPACITY]} bps; use a whole "
                "number, so that sums are exact", model.places[name])  # fmt: skip
    return graph


def _is_text(types: list[Any]) -> bool:
    return all(isinstance(kind, str) for kind in types) and len(set(types)) == len(types)


def _is_plain(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
