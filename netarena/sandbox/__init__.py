"""Sandboxes for code and commands from agents; no other package runs them."""
