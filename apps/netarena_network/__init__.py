"""Code that route and backbone share: faults, replies, declarations and the live network."""
