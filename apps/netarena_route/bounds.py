"""Limits of one command on its machine and network, for the guard and the prompt."""

from __future__ import annotations

#: A diagnosis sends far less: a ping of each pair at (8,8) is 4,160. A flood sends 20,000 a second.
FREE_PACKETS = 5_000
MOST_PACKETS_PER_S = 1_000
#: beyond what the network itself needs; the kernel's table holds 1,024 unless it was raised
_SPARE_NEIGHBOURS = 128
#: processes at once: so many, and two for each machine that it may ping, of which so many count
_PROCESSES, _SWEPT = 64, 128


def most_neighbours(machines: int) -> int:
    """How many neighbours, answering or not, one machine of so many may have in the kernel's
    table."""
    return 2 * machines + _SPARE_NEIGHBOURS


def most_processes(machines: int) -> int:
    """How many processes of one command may run at once in a network of so many machines, beside
    the shell itself: a ping of each at once, from subshells."""
    return _PROCESSES + 2 * min(machines, _SWEPT)


def tell_bounds(machines: int) -> dict[str, int]:
    """All of them, for the texts of a network of so many machines."""
    return {
        "most_neighbours": most_neighbours(machines),
        "most_processes": most_processes(machines),
        "free_packets": FREE_PACKETS,
        "packets_per_s": MOST_PACKETS_PER_S,
    }
