"""``python -m netarena.cli`` runs the command line without the script ``netarena``."""

from __future__ import annotations

import sys

from netarena.cli import main

sys.exit(main())
