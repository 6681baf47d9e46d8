"""``python -m netarena.cli``: the command line if the script is not on the path."""

from __future__ import annotations

import sys

from netarena.cli import main

sys.exit(main())
