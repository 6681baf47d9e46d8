"""The real thing: networks of namespaces, what measures and restores them, what runs a command."""
