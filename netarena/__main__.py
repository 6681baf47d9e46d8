"""``python -m netarena`` runs the command ``netarena``."""

import sys

from netarena.cli import main

sys.exit(main())
