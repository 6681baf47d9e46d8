"""Serve a green agent in a separate process: ``green.py ROOT [SECONDS PER STEP]``.

Prints the URL. The application is the toy. ``NETARENA_SEED`` and ``NETARENA_HEADERS_*`` have their
usual effect.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

# this program is started outside of pytest, which would set these paths
sys.path[:0] = [str(Path(__file__).parents[1] / "toy"), str(Path(__file__).parents[2])]

from netarena_toy import Toy  # noqa: E402 -- needs the paths above

from netarena.a2a.server import serve  # noqa: E402 -- needs the paths above

PAUSE_S = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0


class SlowToy(Toy):
    """The toy with slow grading, which blocks the event loop as a real judge may do."""

    def judge(self, query, initial, before, after):
        time.sleep(PAUSE_S)
        return super().judge(query, initial, before, after)


def announce(url: str) -> None:
    print(url, flush=True)


serve(SlowToy(), port=0, out=Path(sys.argv[1]), data=None, environ=os.environ, ready=announce)
