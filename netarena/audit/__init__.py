"""Checks that queries are valid, and that worlds do not reveal their faults by side effects."""
