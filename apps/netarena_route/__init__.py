"""Routing: an agent repairs a broken network, one shell command per turn."""
