"""Network as data: the machines, their addresses and routes, and the paths of packets."""
