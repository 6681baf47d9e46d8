"""What is intended in a large shop, as its people say it: teams and roles instead of pairs.

A grant lets a group of applications, or a guest of another namespace, reach a group, or an address
outside. Groups are told by labels of pods; a grant on no port of its own is about the first port of
the targets' services, which is what pairs are tested by.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from typing import NamedTuple

from netarena.model import Record
from netarena_k8s.world.policy import Protocol


class Group(Record):
    """Applications whose pods have ``labels``, all of them."""

    labels: dict[str, str]

    def has(self, labels: Mapping[str, str]) -> bool:
        """Whether pods with these labels belong to it."""
        return self.labels.items() <= labels.items()


class Guest(Record):
    """Pods of another namespace that use something here."""

    name: str
    labels: dict[str, str]
    space: str
    #: of the namespace, beside its name
    space_labels: dict[str, str]

    @property
    def address(self) -> str:
        """What it is called among strangers."""
        return f"{self.space}/{self.name}"


class Partner(Record):
    """Addresses outside that are used."""

    name: str
    cidr: str

    @property
    def address(self) -> str:
        """One of them."""
        return str(ip_network(self.cidr)[0])


class Grant(Record):
    """``source`` may reach ``target``: applications, or a guest or a partner by name."""

    source: Group | str
    target: Group | str
    #: none: the first of each target's service
    port: int | None = None
    protocol: Protocol = "TCP"


class Use(NamedTuple):
    """One connection that is intended beside the pairs that are tested: from whom, to whom, as
    ``Net`` names them."""

    source: str
    target: str
    port: int
    protocol: Protocol

    def __str__(self) -> str:
        return f"{self.source} -> {self.target} on {self.port}/{self.protocol}"


class Plan(Record):
    """All grants of a shop; what none of them says must not work."""

    #: labels that tell the team and the role of pods
    team_key: str
    role_key: str
    grants: tuple[Grant, ...]
    guests: tuple[Guest, ...] = ()
    partners: tuple[Partner, ...] = ()
