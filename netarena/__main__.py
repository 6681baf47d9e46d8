"""``python -m netarena`` is the command ``netarena``."""

import sys

from netarena.cli import main

sys.exit(main())
