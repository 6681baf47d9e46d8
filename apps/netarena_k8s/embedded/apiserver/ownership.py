"""Field ownership in ``metadata.managedFields``, and server-side apply, which depends on it.

A *leaf* is owned as a whole. It is a label, an annotation, or a field of the spec (the lists and
the selector of a network policy are atomic). Leaves are named as in FieldsV1.

Source: ``apimachinery/pkg/util/managedfields`` of Kubernetes 1.34.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from netarena_k8s.embedded.apiserver.status import Refused

Leaf: TypeAlias = tuple[str, ...]
Object: TypeAlias = Mapping[str, Any]
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
APPLY, UPDATE = "Apply", "Update"
_MAPS = ("labels", "annotations")
_OTHERS = ("finalizers", "ownerReferences")
_MAP_LEAVES = (("f:spec",), *(("f:metadata", f"f:{name}") for name in _MAPS))
_UNOWNED = frozenset({"kind", "apiVersion", "metadata", "status"})
#: Maximum number of managedFields entries of an object. A real server stores ten entries of type
#: Update and merges older ones.
_ENTRIES = 32


@dataclass(frozen=True)
class Owner:
    """One entry of managedFields."""

    manager: str
    operation: str
    api_version: str
    time: str
    leaves: frozenset[Leaf]

    def same(self, other: Owner) -> bool:
        return (self.manager, self.operation) == (other.manager, other.operation)


def leaves(one: Object) -> dict[Leaf, Any]:
    """Return a map from each leaf of an object to its value.

    A map of labels or annotations is itself a leaf, without a value, in addition to its entries. A
    field without a value, which the configuration of an apply may contain, is also a leaf.
    """
    found: dict[Leaf, Any] = {}
    metadata = one.get("metadata") or {}
    for name in _MAPS:
        if name in metadata:
            found["f:metadata", f"f:{name}"] = None
            for key, value in (metadata[name] or {}).items():
                found["f:metadata", f"f:{name}", f"f:{key}"] = value
    for name in _OTHERS:
        if metadata.get(name, []) != []:  # Null has an owner; empty lists do not.
            found["f:metadata", f"f:{name}"] = metadata[name]
    for part, value in one.items():
        if part in _UNOWNED:
            continue
        if value and isinstance(value, Mapping):
            found.update({(f"f:{part}", f"f:{key}"): inner for key, inner in value.items()})
        else:
            found[f"f:{part}",] = value
    return found


def read_owners(entries: Any) -> list[Owner]:
    """Return the owners in managedFields, as stored or sent. Raises ValueError if they are
    malformed."""
    found = []
    if not isinstance(entries, list):
        raise ValueError("metadata.managedFields must be a list")  # noqa: TRY004 -- the data is malformed
    for one in entries[:_ENTRIES]:
        if not isinstance(one, Mapping) or not isinstance(one.get("fieldsV1", {}), Mapping):
            raise ValueError("a managed field must be an object")  # noqa: TRY004 -- the data is malformed
        if not one:  # Clients remove all entries by sending one empty entry.
            continue
        if one.get("operation") not in {APPLY, UPDATE}:
            raise ValueError("an entry of metadata.managedFields has no operation")
        words = [str(one.get(key, "")) for key in ("manager", "operation", "apiVersion", "time")]
        fields = one.get("fieldsV1", {})
        found.append(Owner(words[0], words[1], words[2], words[3], frozenset(_read(fields, ()))))
    return found


def _read(node: Object, above: Leaf) -> Iterable[Leaf]:
    depth = 3 if above[:1] == ("f:metadata",) else 2
    for key, below in node.items():
        if key == ".":
            yield above
        elif not isinstance(below, Mapping) or not below or len(above) + 1 >= depth:
            yield (*above, key)
        else:
            yield from _read(below, (*above, key))


def show_owners(owners: Iterable[Owner]) -> list[dict[str, Any]]:
    """Return owners as managedFields: Apply entries first, then Update entries, each sorted by
    time.
    """
    order = sorted(owners, key=lambda one: (one.operation, one.time, one.manager))
    return [
        {
            "manager": one.manager,
            "operation": one.operation,
            "apiVersion": one.api_version,
            "time": one.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": _show(one.leaves),
        }
        for one in order
        if one.leaves
    ]


def _show(owned: Iterable[Leaf]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for leaf in sorted(owned):
        node = found
        for depth, key in enumerate(leaf, start=1):
            known = key in node
            inner = node.setdefault(key, {})
            # The entry ``.`` means that the owner owns the map itself in addition to some of its
            # keys.
            if depth < len(leaf) and known and not inner:
                inner["."] = {}
            node = inner
    return found


def update(owners: Sequence[Owner], before: Object, after: Object, who: Owner) -> list[Owner]:
    """Return the owners after the manager ``who`` has changed ``before`` to ``after``.

    ``who`` becomes the only owner of the changed leaves.
    """
    old, new = leaves(before), leaves(after)
    changed = {leaf for leaf, value in new.items() if leaf not in old or old[leaf] != value}
    return _disown(owners, changed, old.keys() - new.keys(), who)


def _disown(
    owners: Sequence[Owner], changed: set[Leaf], gone: Iterable[Leaf], who: Owner
) -> list[Owner]:
    lost = changed | set(gone)
    found = []
    mine = replace(who, leaves=frozenset(changed))
    for one in owners:
        if one.same(who):
            kept = (one.leaves | changed) - set(gone)
            mine = replace(who if kept != one.leaves else one, leaves=frozenset(kept))
        else:
            found.append(replace(one, leaves=one.leaves - lost))
    return [one for one in [*found, mine] if one.leaves]


@dataclass(frozen=True)
class Applied:
    """The result of an apply: the labels, annotations and spec of an object, and the owners of its
    fields.
    """

    object: dict[str, Any]
    owners: list[Owner]


def apply(
    live: Object, config: Object, owners: Sequence[Owner], who: Owner, *, force: bool
) -> Applied:
    """Return the result of a server-side apply of ``config`` by the manager ``who``. Raises Refused
    (409) for conflicts with other managers."""
    wanted, there = leaves(config), leaves(live)
    # An apply that lists keys of a map does not own the map itself.
    wanted = {leaf: value for leaf, value in wanted.items() if not _is_above(leaf, wanted)}
    earlier = next((one.leaves for one in owners if one.same(who)), frozenset())
    others = [one for one in owners if not one.same(who)]
    differing = {
        leaf for leaf, value in wanted.items() if leaf not in there or there[leaf] != value
    }
    conflicts = [(one, leaf) for one in others for leaf in sorted(one.leaves & differing)]
    if conflicts and not force and not _takes_over(conflicts, who):
        raise _conflict(conflicts)
    held = frozenset[Leaf]().union(*(one.leaves for one in others))
    gone = {leaf for leaf in earlier if leaf in there and leaf not in wanted and leaf not in held}
    result = _without(live, gone)
    for leaf in sorted(wanted):
        _put(result, leaf, wanted[leaf])
    kept = [replace(one, leaves=one.leaves - differing - gone) for one in others]
    mine = replace(who, leaves=frozenset(wanted))
    return Applied(result, [one for one in [*kept, mine] if one.leaves])


def _is_above(leaf: Leaf, others: Iterable[Leaf]) -> bool:
    return any(len(one) > len(leaf) and one[: len(leaf)] == leaf for one in others)


def keep_times(owners: Sequence[Owner], before: Sequence[Owner]) -> list[Owner]:
    """Return ``owners``, with the times of ``before`` in the entries whose fields are unchanged."""
    known = {(one.manager, one.operation): one for one in before}
    found = []
    for one in owners:
        old = known.get((one.manager, one.operation))
        found.append(old if old is not None and old.leaves == one.leaves else one)
    return found


def _takes_over(conflicts: Iterable[tuple[Owner, Leaf]], who: Owner) -> bool:
    """Return whether ``who`` is kubectl and all conflicts are with its client-side apply. The API
    then transfers the fields without an error."""
    return who.manager == "kubectl" and all(
        (one.manager, one.operation) == ("kubectl-client-side-apply", UPDATE)
        for one, _ in conflicts
    )


def _without(one: Object, gone: Iterable[Leaf]) -> dict[str, Any]:
    result: dict[str, Any] = {key: _copied(value) for key, value in one.items()}
    for leaf in sorted(gone, key=len, reverse=True):
        node: Any = result
        for key in leaf[:-1]:
            node = node.get(key.removeprefix("f:"), {})
        # A map of labels or annotations that still has keys is not removed.
        last = leaf[-1].removeprefix("f:")
        if last in _MAPS and leaf[0] == "f:metadata" and node.get(last):
            continue
        node.pop(last, None)
    return result


def _copied(value: Any) -> Any:
    """Return a copy of the maps above the leaves. The copy shares the values of the leaves, because
    leaves are only replaced as a whole."""
    if not isinstance(value, Mapping):
        return value
    return {
        key: dict(inner) if isinstance(inner, Mapping) else inner for key, inner in value.items()
    }


def _put(one: dict[str, Any], leaf: Leaf, value: Any) -> None:
    node = one
    for key in leaf[:-1]:
        node = node.setdefault(key.removeprefix("f:"), {})
    last = leaf[-1].removeprefix("f:")
    if not value and leaf in _MAP_LEAVES:
        node.setdefault(last, {})
    elif value is None:
        node.pop(last, None)
    else:
        node[last] = value


def _conflict(conflicts: Sequence[tuple[Owner, Leaf]]) -> Refused:
    listed: dict[str, list[str]] = {}
    for owner, leaf in conflicts:
        shown = f'"{owner.manager}"'
        if owner.operation == UPDATE:
            shown += f" using {owner.api_version}"
        path = "".join(f".{key.removeprefix('f:')}" for key in leaf)
        listed.setdefault(shown, []).append(path)
    if len(conflicts) == 1:
        ((shown, paths),) = listed.items()
        message = f"Apply failed with 1 conflict: conflict with {shown}: {paths[0]}"
    else:
        lines = [
            line
            for shown, paths in sorted(listed.items())
            for line in (f"conflicts with {shown}:", *(f"- {path}" for path in paths))
        ]
        told = "\n".join(lines)
        message = f"Apply failed with {len(conflicts)} conflicts: {told}"
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {shown}", "field": path}
        for shown, paths in listed.items()
        for path in paths
    ]
    return Refused(409, "Conflict", message, {"causes": causes})
