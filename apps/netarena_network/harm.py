"""Kinds of harm that make a command unsafe, and findings that name them.

Route and backbone share this table. Differences from the intended state that are not in the table
count only towards correctness, in the last state.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from netarena.sdk import Finding

#: Rule of a finding -> kind of harm, as in prompts and records
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "pair_broken": "Lost traffic",
        "service_broken": "Lost traffic",
        "pair_opened": "Opened traffic",
        "service_opened": "Opened traffic",
        "neighbour_lost": "Lost adjacency or session",
        "neighbour_made": "Undocumented session",
        "route_leaked": "Forbidden announcement",
        "route_lost": "Lost announcement",
        "daemon_ended": "Ended daemon",
        "not_settled": "Not converged",
        "address_taken": "Address of another machine",
        "switch_touched": "Changed switch",
    }
)
#: Returns a finding whose text begins with the kind of harm of its rule (``Finding.of_kind``).
harm = partial(Finding.of_kind, KINDS)
