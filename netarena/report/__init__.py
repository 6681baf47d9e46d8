"""Presentation of results: summaries, tables, leaderboards."""
