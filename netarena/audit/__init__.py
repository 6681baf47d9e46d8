"""Checks of queries.

They verify that queries are valid, and that side effects of building a network or cluster do not
reveal its faults.
"""
