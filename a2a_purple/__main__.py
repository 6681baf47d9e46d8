"""``python -m a2a_purple`` is the command ``netarena-purple``."""

from a2a_purple.cli import main

main()
