"""Statistics and intervals of verdicts; pure functions."""
