"""netarena.sdk: its lists of names agree, and names are loaded on first use."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from netarena import sdk


def test_type_checkers_read_the_same_names_from_the_same_modules():
    tree = ast.parse(Path(sdk.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {
        one.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for one in node.names
    }
    assert typed == sdk._HOMES
    assert all(hasattr(sdk, name) for name in sdk.__all__)


def test_importing_a_part_of_the_sandbox_loads_no_records():
    code = "import sys; from netarena.sdk import entered; print('netarena.model' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
