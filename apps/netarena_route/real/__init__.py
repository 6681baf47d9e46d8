"""Real networks of namespaces: building and measuring networks, and running commands."""
