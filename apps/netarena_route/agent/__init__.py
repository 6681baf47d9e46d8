"""Scripted agents for route: an operator with a checklist, agents that guess, and attacks."""
