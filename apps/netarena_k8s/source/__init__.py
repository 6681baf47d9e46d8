"""Sources of worlds: generators, and checkouts of users."""
