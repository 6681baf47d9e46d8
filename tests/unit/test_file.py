"""Files as different editors write them."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from netarena.file import read_lines, read_text


def test_byte_order_mark_is_not_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(codecs.BOM_UTF8 + b"a\n" + codecs.BOM_UTF8 + b"b")
    assert read_text(path) == "a\n\ufeffb"
    assert list(read_lines(path)) == [b"a\n", codecs.BOM_UTF8 + b"b"]
    path.write_bytes(codecs.BOM_UTF8)
    assert read_text(path) == ""
    assert list(read_lines(path)) == []


def test_oversized_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345\n1")
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_text(path, 4)
    with pytest.raises(OSError, match="a line has more than 4 bytes"):
        list(read_lines(path, 4))
