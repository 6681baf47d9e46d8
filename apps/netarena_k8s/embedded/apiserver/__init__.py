"""Embedded API server with the parts of Kubernetes 1.34 that an operator of policies uses.

One process next to the service (``process``) serves every episode on a separate port. ``server``
handles the requests of one episode with the objects in the episode's ``store``.
"""
