"""Statistics and intervals over verdicts; pure."""
