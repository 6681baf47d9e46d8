"""What is made of results: summaries, tables, leaderboards."""
