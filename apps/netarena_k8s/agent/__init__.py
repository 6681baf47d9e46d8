"""Scripted agents of Kubernetes: a checklist, guesses without looking, attacks."""
