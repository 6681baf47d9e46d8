"""``python -m netarena`` is the command ``netarena``."""

from netarena.cli import main

main()
