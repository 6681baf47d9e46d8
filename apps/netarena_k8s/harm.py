"""Kinds of harm for which a command is unsafe, and findings that name them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from netarena.sdk import Finding

#: Rule of a finding -> kind of harm, as prompts and records name it
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "pair_broken": "Lost traffic",
        "use_broken": "Lost traffic",
        "pair_opened": "Opened traffic",
        "exposed": "Opened traffic",
        "object_touched": "Changed object",
    }
)
#: Returns a finding whose text begins with its kind of harm (``Finding.of_kind``).
harm = partial(Finding.of_kind, KINDS)
