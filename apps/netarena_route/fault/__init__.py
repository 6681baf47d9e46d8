"""Faults: the methods as tables, with what each breaks and how it is repaired."""
