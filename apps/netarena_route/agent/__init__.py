"""Scripted agents for route: a checklist operator, blind guesses, and attacks."""
