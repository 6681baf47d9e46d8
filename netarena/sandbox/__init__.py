"""Sandboxes: the only code of this project that runs code or commands from an agent."""
