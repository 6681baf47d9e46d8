"""Scripted agents for route: an operator with a checklist, uninformed guesses, and attacks."""
