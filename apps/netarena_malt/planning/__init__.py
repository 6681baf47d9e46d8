"""Planning tasks (level 5): plans for the network at a size where search decides."""
