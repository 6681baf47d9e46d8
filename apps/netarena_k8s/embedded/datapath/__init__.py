"""Data plane that measures pairs with a network namespace per pod, nftables rules and connections.

``rule`` turns policies into a ruleset, ``plane`` is the process with the namespaces, and ``wired``
is the cluster that measures with this process.
"""
