"""Limits of one command on its machine and network, for the guard and for prompts."""

from __future__ import annotations

#: A diagnosis sends far fewer: a ping of each pair in the (8,8) network is 4,160 packets. A flood
#: sends 20,000 per second.
FREE_PACKETS = 5_000
MOST_PACKETS_PER_S = 1_000
#: Entries in addition to those that the network itself needs. The kernel's table holds 1,024 by
#: default.
_SPARE_NEIGHBOURS = 128
#: Processes that may run at once, plus two for each machine that can be pinged, up to _SWEPT
#: machines.
_PROCESSES, _SWEPT = 64, 128


def most_neighbours(machines: int) -> int:
    """Return how many ARP entries, resolved or not, one machine of a network may have."""
    return 2 * machines + _SPARE_NEIGHBOURS


def most_processes(machines: int) -> int:
    """Return how many processes of one command may run at once, in addition to the shell.

    A ping of each machine at once, from subshells, stays below this limit.
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
