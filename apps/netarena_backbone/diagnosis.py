"""Requirements of the backbone application: capabilities that a machine needs to run
its networks."""

from __future__ import annotations

from netarena_backbone.real import frr
from netarena_network.diagnosis import COMMON, Diagnosis, Need

#: Upper bound on the number of machines in a backbone.
_MOST_MACHINES = 128
_INSTALL_FRR = "apt-get install --yes frr"
NEEDS = (
    *COMMON,
    Need(
        "FRR",
        ("vtysh --help",),
        f"{_INSTALL_FRR}; if FRR runs as a service of this machine: systemctl disable --now frr",
        "world",
        # This also checks that the daemons start in the same kind of sandbox as in an episode.
        test=frr.try_out,
    ),
)
DIAGNOSIS = Diagnosis(__name__, NEEDS, most_machines=_MOST_MACHINES)
