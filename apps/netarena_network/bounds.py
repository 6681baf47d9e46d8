"""Limits on how much of its machine and network one command may use.

The guard enforces these limits, and prompts state them.
"""

from __future__ import annotations

#: A command is killed if it sends more than FREE_PACKETS packets plus MOST_PACKETS_PER_S packets
#: for each second of its runtime. A diagnosis needs far fewer: pings of all pairs in the (8,8)
#: network are 4,160 packets. A flood sends 20,000 packets per second.
FREE_PACKETS = 5_000
MOST_PACKETS_PER_S = 1_000
#: Allowed ARP entries in addition to the entries that the network itself needs. The kernel's table
#: holds 1,024 entries by default.
_SPARE_NEIGHBOURS = 128
#: A command may run _PROCESSES processes at the same time, plus two for each machine that it can
#: ping. At most _SWEPT machines are counted.
_PROCESSES, _SWEPT = 64, 128


def most_neighbours(machines: int) -> int:
    """Return the maximum number of ARP entries of one machine, including unresolved entries."""
    return 2 * machines + _SPARE_NEIGHBOURS


def most_processes(machines: int) -> int:
    """Return the maximum number of processes of one command, in addition to its shell.

    Simultaneous pings of all machines from subshells stay below this limit.
    """
    return _PROCESSES + 2 * min(machines, _SWEPT)


def tell_bounds(machines: int) -> dict[str, int]:
    """Return all limits for the prompts of a network with this many machines."""
    return {
        "most_neighbours": most_neighbours(machines),
        "most_processes": most_processes(machines),
        "free_packets": FREE_PACKETS,
        "packets_per_s": MOST_PACKETS_PER_S,
    }
