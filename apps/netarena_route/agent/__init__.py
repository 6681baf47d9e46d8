"""Scripted agents of routing: a checklist, guesses without looking, attacks."""
