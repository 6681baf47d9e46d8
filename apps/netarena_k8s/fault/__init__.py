"""Faults: the methods as a table, and which fault hides which."""
