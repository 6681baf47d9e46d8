"""netarena.sdk: its lists of names agree, and names are loaded on first use."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from netarena import sdk


def test_names_for_type_checkers_equal_the_names_at_run_time():
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


def test_import_of_a_sandbox_name_from_the_sdk_does_not_load_the_record_models():
    code = "import sys; from netarena.sdk import entered; print('netarena.model' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
