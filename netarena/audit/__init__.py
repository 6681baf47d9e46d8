"""Checks that queries are valid, and that no trace reveals a fault."""
