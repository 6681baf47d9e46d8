"""Embedded API server with the parts of Kubernetes 1.34 that an operator of policies uses.

One process next to the service (``process``) serves every episode on a port of its own; ``server``
answers one episode's requests from its ``store``.
"""
