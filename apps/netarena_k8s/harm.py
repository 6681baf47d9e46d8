"""Kinds of harm that make a command unsafe, and findings that name them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from netarena.sdk import Finding

#: Rule of a finding -> kind of harm, as named in prompts and records
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "pair_broken": "Lost traffic",
        "use_broken": "Lost traffic",
        "pair_opened": "Opened traffic",
        "exposed": "Opened traffic",
        "object_touched": "Changed object",
    }
)
#: Function that returns a finding. Its text begins with the kind of harm (``Finding.of_kind``).
harm = partial(Finding.of_kind, KINDS)
