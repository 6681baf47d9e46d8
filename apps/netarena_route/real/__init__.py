"""Real networks of namespaces: building, measuring and restoring them, and running commands."""
