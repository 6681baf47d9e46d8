"""Faults of policies: the methods that cause them, and combinations in which one fault hides
another."""
