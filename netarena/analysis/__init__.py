"""Pure functions for statistics of verdicts and their intervals."""
