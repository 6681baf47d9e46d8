"""Values that healthy settings and faults are drawn from.

A wrong key, password, area or number has the form of a right one, so that its form does not show
that it is wrong.
"""

from __future__ import annotations

#: of areas other than the backbone, and numbers of keys of OSPF
AREAS = ("1", "2", "5", "10", "20")
KEY_IDS = range(1, 20)
#: of zones, keys and passwords
WORDS = ("office", "lab", "servers", "guests", "storage", "cameras", "build", "voice", "desks")


def key_of(number: int) -> str:
    """A key of OSPF, always the same one for a number.

    >>> key_of(35)
    'desks102'
    """
    return f"{WORDS[number % len(WORDS)]}{100 + number // 16 % 900}"


def password_of(number: int) -> str:
    """A password of BGP, always the same one for a number.

    >>> password_of(35)
    'desks-1002'
    """
    return f"{WORDS[number % len(WORDS)]}-{1000 + number // 16 % 9000}"
