"""Everything that answers a prompt in this process: the interface and programs behind it."""
