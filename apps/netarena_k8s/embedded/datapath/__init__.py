"""Data plane that tests pairs with real connections between network namespaces, one per pod.

Module ``rule`` turns policies into an nftables ruleset, ``plane`` is the process with the
namespaces, and ``wired`` is the cluster that tests pairs through this process.
"""
