"""Sandboxes for code and commands from agents. No other package runs agents' code or commands."""
