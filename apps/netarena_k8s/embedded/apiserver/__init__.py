"""Embedded API server with the parts of the Kubernetes 1.34 API that an operator of network
policies uses.

One process next to the service (module ``process``) serves every episode on a separate port. Module
``server`` handles the requests of one episode with the objects in the episode's ``store``.
"""
