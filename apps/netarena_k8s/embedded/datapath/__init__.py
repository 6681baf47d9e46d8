"""Data plane: measures pairs with a network namespace per pod, nftables rules and connections.

``rule`` turns policies into a ruleset, ``plane`` is the process with the namespaces, ``wired`` the
cluster that measures with it.
"""
