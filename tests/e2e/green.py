"""A green agent in a process of its own: ``green.py ROOT [SECONDS PER STEP]``; prints its URL.

The toy application, really served. ``NETARENA_SEED`` and ``NETARENA_HEADERS_*`` count.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

# this program is started outside of pytest, which would set these
sys.path[:0] = [str(Path(__file__).parents[1] / "toy"), str(Path(__file__).parents[2])]

from netarena_toy import Toy  # noqa: E402 -- found by the lines above

from netarena.a2a.server import serve  # noqa: E402 -- the same

PAUSE_S = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0


class SlowToy(Toy):
    """Grading takes its time, on the event loop's back, as a real judge's does."""

    def judge(self, query, initial, before, after):
        time.sleep(PAUSE_S)
        return super().judge(query, initial, before, after)


def announce(url: str) -> None:
    print(url, flush=True)


serve(SlowToy(), port=0, out=Path(sys.argv[1]), data=None, environ=os.environ, ready=announce)
