"""Planning tasks (level 5): optimisation problems that are large enough to require a search."""
