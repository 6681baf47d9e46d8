"""Live networks: namespaces, links, probes, and commands in a sandbox."""
