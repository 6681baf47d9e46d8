"""Find the processes of this machine whose command lines contain certain words."""

from __future__ import annotations

from pathlib import Path


def find_processes(*words: str) -> list[str]:
    """Return the ids of the processes whose command line contains all of ``words``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if set(words) <= set(line):
            found.append(path.parent.name)
    return found
