"""Sandboxes. Only this package runs code or commands from an agent."""
