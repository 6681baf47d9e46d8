"""Faults of a backbone as data: a description, a changed world, and commands."""
