"""The world as data: the machines, their addresses and routes, and the ways packets take."""
