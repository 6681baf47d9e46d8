"""Faults of policies: methods that cause faults, and combinations in which one fault hides
another."""
