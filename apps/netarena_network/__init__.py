"""What route and backbone share: faults, replies, declarations and the real network."""
