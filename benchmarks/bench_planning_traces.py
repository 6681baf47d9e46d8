"""How well each single feature of MALT's planning tasks separates the reference from other choices.

    netarena audit malt --traces --num-queries 500 --seed 33 --set 'complexity_level=["level5"]' \\
        --out evidence.jsonl
    python benchmarks/bench_planning_traces.py evidence.jsonl [--all]

Prints a line per kind of task, role and feature: the AUC of "is part of the reference", its
standard error over tasks, z, and the number of tasks. With few tasks, z is too large. Only choices
of one task and one group are compared, as in the audit. Without ``--all``, prints only features
with a z value beyond 3.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from netarena.audit.leakage import _aucs, _matrix
from netarena.task.evidence import Candidate, Evidence, Kind

#: Kind of task, role, feature.
Key = tuple[str, str, str]


def areas(evidence: Iterable[Evidence]) -> dict[Key, list[float]]:
    """Return the AUC of each feature in each task, as means over the task's groups."""
    found: dict[Key, list[float]] = defaultdict(list)
    for one in evidence:
        kind = one.label.rpartition("plan-")[2]
        mine: dict[Key, list[float]] = defaultdict(list)
        for role, group in _groups(one.candidates):
            is_target = np.array([each.target for each in group])
            names, values = _matrix([each.features(Kind.TRACE) for each in group])
            for name, area in zip(names, _aucs(values, is_target), strict=True):
                if "~" not in name:
                    mine[kind, role.partition(":")[0], name].append(float(area))
        for key, values_of in mine.items():
            found[key].append(float(np.mean(values_of)))
    return found


def _groups(candidates: Iterable[Candidate]) -> Iterator[tuple[str, list[Candidate]]]:
    """Yield the candidates of each role that has both targets and others."""
    roles: dict[str, list[Candidate]] = defaultdict(list)
    for one in candidates:
        roles[one.role].append(one)
    for role, group in roles.items():
        if len({one.target for one in group}) == 2:
            yield role, group


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("evidence", type=Path, help="file written by `netarena audit --out`")
    parser.add_argument("--all", action="store_true", help="print all features")
    args = parser.parse_args()
    lines = args.evidence.read_text(encoding="utf-8").splitlines()
    found = areas(Evidence.model_validate_json(line) for line in lines)
    shown = 0
    for (kind, role, name), values in sorted(found.items()):
        if len(values) < 3:
            continue
        error = max(1e-3, float(np.std(values, ddof=1)) / math.sqrt(len(values)))
        area = float(np.mean(values))
        z = (area - 0.5) / error
        if args.all or abs(z) > 3:
            shown += 1
            number = f"n {len(values)}"
            print(f"{kind:12} {role:8} {name:34} {area:.3f} ± {error:.3f}  z {z:5.1f}  {number}")
    print(f"{shown} of {len(found)} features shown")


if __name__ == "__main__":
    main()
