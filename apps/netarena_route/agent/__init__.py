"""The agents that we bring: a checklist, guesses without looking, attacks."""
