"""An API server of our own, as much of Kubernetes 1.34 as an operator of policies meets.

One process beside the service (``process``) serves every episode on a port of its own; ``server``
answers one episode's requests from its ``store``.
"""
