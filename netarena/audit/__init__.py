"""Proofs that queries are valid, and that no trace gives a fault away."""
