"""Run a benchmark and put the tables that it prints into a page of evidence.

    python benchmarks/into_page.py docs/evidence/malt.md "draw malt" benchmarks/bench_generate.py

The script's arguments follow its name. The page has the lines ``<!-- draw malt -->`` and
``<!-- /draw malt -->``; the command, the machine's load, and the tables are written between these
lines. A page without the lines is refused before the run. A failed run does not change the page.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from netarena.report.markdown import replace_section


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("section")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    try:
        replace_section(options.page.read_text(encoding="utf-8"), options.section, ())
    except ValueError as error:
        parser.error(f"{options.page}: {error}")
    command = [str(options.script), *options.arguments]
    loads = [os.getloadavg()[0]]
    lines = []
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, encoding="utf-8"
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(line.rstrip("\n"))
    loads.append(os.getloadavg()[0])
    rows = [line for line in lines if line.startswith("|")]
    if run.returncode or not rows:
        sys.stderr.write(f"{options.script}: status {run.returncode}, {len(rows)} rows\n")
        return run.returncode or 1
    low, high = sorted(loads)
    about = f"`python {shlex.join(command)}`, {os.cpu_count()} processors, load {low:.0f}"
    if round(high) > round(low):
        about += f" to {high:.0f}"
    # read the page again, because another process may have written another section meanwhile
    page = options.page.read_text(encoding="utf-8")
    page = replace_section(page, options.section, [f"{about}:", "", *rows])
    options.page.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
