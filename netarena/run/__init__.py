"""Runs episodes: engine, assessment, journal, results, query store, regrading."""
