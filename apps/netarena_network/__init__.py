"""Code shared by route and backbone: faults, replies, declarations and the real network."""
