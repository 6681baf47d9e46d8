"""The intended access in a large world, in terms of teams and roles instead of pairs of
applications.

A grant permits a group of applications, or a guest from another namespace, to reach a group or an
outside address. Groups are identified by pod labels. A grant without a port refers to the pod port
behind the first port of each target's service. Tests of pairs use the same port.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from typing import NamedTuple

from netarena.sdk import Record
from netarena_k8s.world.policy import Protocol


class Group(Record):
    """A group of applications: all applications whose pods have all of ``labels``."""

    labels: dict[str, str]

    def has(self, labels: Mapping[str, str]) -> bool:
        """Return whether pods with these labels belong to the group."""
        return self.labels.items() <= labels.items()


class Guest(Record):
    """Pods of another namespace that use an application of this world's namespace."""

    name: str
    labels: dict[str, str]
    space: str
    #: labels of the namespace, without its name
    space_labels: dict[str, str]

    @property
    def address(self) -> str:
        """The guest's name in ``Net.strangers``: ``NAMESPACE/NAME``."""
        return f"{self.space}/{self.name}"


class Partner(Record):
    """A block of addresses outside the cluster that applications use."""

    name: str
    cidr: str

    @property
    def address(self) -> str:
        """The first address of the block."""
        return str(ip_network(self.cidr)[0])


class Grant(Record):
    """A permission for ``source`` to connect to ``target``. Each end is a group, or the name of a
    guest or partner."""

    source: Group | str
    target: Group | str
    #: port of the target; None: the pod port behind the first port of each target's service
    port: int | None = None
    protocol: Protocol = "TCP"


class Use(NamedTuple):
    """One connection from ``source`` to ``port`` of ``target``. Both ends are named as in
    ``Net``."""

    source: str
    target: str
    port: int
    protocol: Protocol

    def __str__(self) -> str:
        return f"{self.source} -> {self.target} on {self.port}/{self.protocol}"


class Plan(Record):
    """All grants of a large world. Connections without a grant must not work."""

    #: label keys of the team and the role of pods
    team_key: str
    role_key: str
    grants: tuple[Grant, ...]
    guests: tuple[Guest, ...] = ()
    partners: tuple[Partner, ...] = ()
