"""Sandboxes: the only code of this project that runs what an agent sent."""
