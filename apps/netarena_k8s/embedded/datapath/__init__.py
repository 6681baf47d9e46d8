"""Whether pairs work, measured: a network namespace for each pod, rules of nftables, connections.

``rule`` turns policies into a ruleset, ``plane`` is the process that has the namespaces, ``wired``
the cluster that measures by it.
"""
