"""``python -m a2a_purple`` is the command ``netarena-purple``."""

import sys

from a2a_purple.cli import main

sys.exit(main())
