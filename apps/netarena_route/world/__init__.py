"""Networks as data: machines with addresses and routes, and the paths of packets."""
