"""Stores the content of a command's folder for the next commands of the episode."""

from __future__ import annotations

import base64
import contextlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self


@dataclass
class Keep:
    """In-memory copy of the folder's regular files, with limits on their number and size."""

    most_bytes: int = 4 << 20
    most_files: int = 512
    #: Path in the folder -> content.
    files: dict[str, bytes] = field(default_factory=dict)

    def pack(self) -> dict[str, Any]:
        """Return the limits and contents as a JSON object."""
        return {
            "most_bytes": self.most_bytes,
            "most_files": self.most_files,
            "files": pack(self.files),
        }

    @classmethod
    def unpack(cls, packed: Mapping[str, Any]) -> Self:
        """Return the copy whose JSON object ``pack`` created."""
        return cls(packed["most_bytes"], packed["most_files"], unpack(packed["files"]))

    def fill(self, folder: Path) -> None:
        """Write the files into an empty folder; skip files for which the folder has no room."""
        for name, content in self.files.items():
            # the new folder may have less room than the previous folder
            with contextlib.suppress(OSError):
                path = f"{folder}/{name}"
                os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 -- Path is slower
                with open(path, "wb", 0) as file:  # noqa: PTH123 -- Path is slower
                    file.write(content)

    def collect(self, folder: Path) -> dict[str, bytes]:
        """Return the folder's regular files (path -> content), up to the maximum number and size.

        Files whose names are not UTF-8 are skipped. No other process may change the folder during
        the call.
        """
        found: dict[str, bytes] = {}
        # count file sizes, because disk blocks undercount sparse and hard-linked files
        room = self.most_bytes
        for here, folders, names in os.walk(folder):
            folders.sort()
            for name in sorted(names):
                path = f"{here}/{name}"
                inside = path[len(f"{folder}/") :]
                try:
                    inside.encode()
                    about = os.lstat(path)
                    if len(found) < self.most_files and (
                        stat.S_ISREG(about.st_mode) and about.st_size <= room
                    ):
                        room -= about.st_size
                        with open(path, "rb", 0) as file:  # noqa: PTH123 -- Path is slower
                            found[inside] = file.read()
                except (OSError, UnicodeEncodeError):
                    continue
        return found


def pack(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return contents in a form that JSON can represent (name -> text)."""
    return {name: base64.b64encode(content).decode() for name, content in files.items()}


def unpack(packed: Mapping[str, str]) -> dict[str, bytes]:
    """Return the contents that ``pack`` converted."""
    return {name: base64.b64decode(content) for name, content in packed.items()}
