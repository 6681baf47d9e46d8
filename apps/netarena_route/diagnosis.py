"""Requirements of route: the capabilities that a machine needs to run route's networks."""

from __future__ import annotations

from netarena.sdk import JOINT
from netarena_network.diagnosis import COMMON, KERNEL, PAIR, Diagnosis, Need
from netarena_route.config import MAX_HOSTS, RouteConfig
from netarena_route.fault.table import PAPER_KINDS
from netarena_route.world.model import NUM_RESERVE

_NFT = "nft add table {0} t && nft add chain {0} t c '{{ type filter {1} priority 0; }}'"


def _is_extended(config: RouteConfig) -> bool:
    """Return whether faults or locks may be of any kind. Otherwise they are only of the paper's
    kinds."""
    asked = config.error_types or ()
    parts = {part for entry in asked for part in entry.split(JOINT)}
    return config.world == "varied" or not parts <= {*PAPER_KINDS}


NEEDS = (
    *COMMON,
    Need(
        "iptables extensions",
        (
            "iptables -A FORWARD -m conntrack --ctstate NEW,ESTABLISHED,UNTRACKED -j DROP",
            "iptables -A FORWARD -m length --length 84:65535 -j DROP",
            "iptables -A FORWARD -p icmp --icmp-type echo-reply -j DROP",
            "iptables -t raw -A PREROUTING -j NOTRACK",
            "iptables -t nat -A PREROUTING -j DNAT --to-destination 192.0.2.1",
            "iptables -t nat -A PREROUTING -j REDIRECT",
            "iptables -t mangle -A POSTROUTING -j DROP",
            "iptables -t mangle -A PREROUTING -j TTL --ttl-set 1",
        ),
        KERNEL,
        "error_types",
        _is_extended,
    ),
    Need(
        "nft",
        (
            PAIR,
            _NFT.format("inet", "hook forward"),
            "nft add rule inet t c iifname t0 meta l4proto icmp drop",
            *(
                f"nft add chain inet t {hook} '{{ type filter hook {hook} priority 0; }}'"
                for hook in ("input", "output")
            ),
            _NFT.format("netdev", "hook ingress device t0"),
            "nft add rule netdev t c ip protocol icmp drop",
        ),
        "use a kernel with nf_tables",
        "error_types",
        _is_extended,
    ),
    Need(
        "netem",
        (PAIR, "tc qdisc add dev t0 root netem delay 10ms"),
        KERNEL,
        "netem",
        lambda config: config.netem,
    ),
)
DIAGNOSIS = Diagnosis(__name__, NEEDS, most_machines=MAX_HOSTS + NUM_RESERVE + 1, unused=("vtysh",))
