"""A small handwritten backbone: two routers, one router of another AS, and a host at each."""

from __future__ import annotations

from netarena_backbone.world.lab_spec import Ask, Cable, End, Recipe, Setup

LOOPBACKS = {"r0": "10.0.0.1", "r1": "10.0.0.2"}


def setup() -> Setup:
    """Return a setup: r0 and r1 run OSPF and iBGP over eth0; r1 and x0, of another AS, run eBGP."""
    return Setup(
        cables=(
            cable("r0", "eth0", "r1", "eth0", 1),
            cable("r1", "eth1", "x0", "eth0", 2),
            cable("r0", "eth1", "h0", "eth0", 3),
            cable("r1", "eth2", "h1", "eth0", 4),
        ),
        recipes=(
            router("r0", ("10.1.0.1/30", "10.2.0.1/24"), "10.0.0.2"),
            router("r1", ("10.1.0.2/30", "192.0.2.1/30", "10.3.0.1/24"), "10.0.0.1"),
            Recipe(
                machine="x0",
                commands=("ip addr add 192.0.2.2/30 dev eth0", FORWARD),
                frr=OTHER,
                login=False,
            ),
            host("h0", "10.2.0"),
            host("h1", "10.3.0", "dns udp 10.3.0.2 53", zone=("h0.example 10.2.0.2",)),
        ),
        endpoints=(
            ("h0", "10.2.0.2"),
            ("h1", "10.3.0.2"),
            *LOOPBACKS.items(),
        ),
        asks=(
            Ask(source="h1", server="h0", target="h0.example", protocol="tcp", port=80),
            Ask(source="h0", server="h1", target="10.3.0.2", protocol="udp", port=514),
            Ask(source="h0", server="h1", target="10.3.0.2", protocol="tcp", port=81),
        ),
        ways=((0, 1), (1, 2)),
        ears=("x0",),
    )


FORWARD = "sysctl -q -w net.ipv4.ip_forward=1"
OTHER = """hostname x0
ip route 203.0.113.0/24 blackhole
router bgp 65001
 no bgp ebgp-requires-policy
 timers bgp 1 3
 coalesce-time 0
 neighbor 192.0.2.1 remote-as 65000
 neighbor 192.0.2.1 timers connect 1
 address-family ipv4 unicast
  network 203.0.113.0/24
 exit-address-family
exit
"""


def cable(one: str, port: str, other: str, other_port: str, number: int) -> Cable:
    return Cable(
        ends=(
            End(machine=one, interface=port, mac=f"02:4e:00:00:{number:02x}:01"),
            End(machine=other, interface=other_port, mac=f"02:4e:00:00:{number:02x}:02"),
        )
    )


def host(name: str, network: str, *services: str, zone: tuple[str, ...] = ()) -> Recipe:
    return Recipe(
        machine=name,
        commands=(
            f"ip addr add {network}.2/24 dev eth0",
            f"ip route add default via {network}.1",
        ),
        services=(f"web tcp {network}.2 80", f"log udp {network}.2 514", *services),
        zone=zone,
        resolver="10.3.0.2",
    )


def router(name: str, addresses: tuple[str, ...], peer: str) -> Recipe:
    ports = "".join(
        f"interface eth{number}\n ip ospf area 0\n ip ospf dead-interval 3\n"
        f" ip ospf hello-interval 1\n ip ospf network point-to-point\n"
        + ("" if number == 0 else " ip ospf passive\n")
        + "exit\n"
        for number, address in enumerate(addresses)
        if address.startswith("10.")
    )
    outside = name == "r1"
    bgp = (
        "router bgp 65000\n timers bgp 1 3\n coalesce-time 0\n no bgp ebgp-requires-policy\n"
        f" neighbor {peer} remote-as 65000\n neighbor {peer} timers connect 1\n"
        f" neighbor {peer} update-source lo\n"
        + (
            " neighbor 192.0.2.2 remote-as 65001\n neighbor 192.0.2.2 timers connect 1\n"
            if outside
            else ""
        )
        + " address-family ipv4 unicast\n"
        + ("  network 10.0.0.0/8\n" if outside else "")
        + f"  neighbor {peer} next-hop-self\n exit-address-family\nexit\n"
    )
    statics = "ip route 10.0.0.0/8 blackhole\n" if outside else ""
    return Recipe(
        machine=name,
        commands=(
            f"ip addr add {LOOPBACKS[name]}/32 dev lo",
            *(f"ip addr add {one} dev eth{number}" for number, one in enumerate(addresses)),
            FORWARD,
        ),
        frr=f"hostname {name}\n{statics}{ports}interface lo\n ip ospf area 0\nexit\n"
        f"router ospf\n ospf router-id {LOOPBACKS[name]}\n timers throttle spf 0 50 200\n"
        f" timers throttle lsa all 0\n timers lsa min-arrival 0\nexit\n"
        f"bgp route-map delay-timer 1\n{bgp}",
    )
