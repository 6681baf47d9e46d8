"""Route application: an agent repairs a broken network with one shell command per turn."""
