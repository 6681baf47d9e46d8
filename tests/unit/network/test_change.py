"""netarena_network.change distinguishes commands that change settings from read-only ones."""

from __future__ import annotations

import pytest

from netarena_network.change import changes

_READS = r"""
ip addr show; ping -c 1 192.168.1.1
ip route get 192.168.1.1
ip r s default
ip -br l sh
ip netns exec r0 ip route
iptables -S; iptables -L -n
iptables -nvL FORWARD | grep DROP
sysctl net.ipv4.ip_forward
sysctl -a --pattern x
sysctl -a --pattern=x
ifconfig eth0
ifconfig eth0 | grep inet
ifconfig eth0 2>&1
ifconfig -a 2>/dev/null
vtysh -c 'show ip route' && cat /etc/frr/frr.conf
vtysh -c 'show running-config' | grep conf
nft list set ip filter set
nft -c -f /tmp/rules
conntrack -L
brctl show
cp /etc/frr/frr.conf /tmp/x
sed -n 1,5p /etc/frr/frr.conf
cat /proc/sys/net/ipv4/ip_forward > /tmp/x
systemctl status frr
echo ip route add default
# ip route add default via 10.0.0.1
""".strip().splitlines()

_CHANGES = r"""
ip link set p1_r0-eth1 up
ip l s p1_r0-eth1 up
ip -4 addr add 192.168.1.1/24 dev x
ip r d default
ip r a default via 10.0.0.1
ip -n r0 route replace default via 10.0.0.1
ip netns exec r0 ip route del default
ip xfrm policy deleteall
iptables -t filter -D FORWARD -j DROP
iptables -P FORWARD ACCEPT
iptables-restore /tmp/rules
sysctl -w net.ipv4.ip_forward=1
sysctl -p
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 | tee /proc/sys/net/ipv4/ip_forward
tc qdisc del dev x root
ifconfig eth0 192.168.1.1 up
route add default gw 10.0.0.1
brctl addif br0 eth0
conntrack -D -s 10.0.0.1
conntrack -F
nft -f /tmp/rules
nft 'delete table ip x'
pkill ospfd
systemctl restart frr
echo 'a 1' >> /etc/serve/zone
sed -i s/a/b/ /etc/serve/services
vtysh -c 'conf t' -c 'router ospf'
vtysh -c 'clear ip bgp *'
echo 'conf t' | vtysh
sudo ip route add default via 10.0.0.1
timeout 5 ip route flush cache
bash -c 'ip link set x up'
echo 'ip link set x up' | sh
for i in 1 2; do ip link set eth$i up; done
X=$(ip route add default via 10.0.0.1)
if true; then /sbin/ip route add default via 10.0.0.1; fi
""".strip().splitlines()


@pytest.mark.parametrize("command", _READS)
def test_read_only_commands_change_nothing(command: str) -> None:
    assert not changes(command)


@pytest.mark.parametrize("command", _CHANGES)
def test_commands_that_change_the_configuration_are_recognised(command: str) -> None:
    assert changes(command)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("ip route \\\n add default via 10.0.0.1", True),
        ("ip addr\nip link set x up", True),
        ("vtysh <<EOF\nconf t\nrouter ospf\nEOF\nip addr", True),
        ("vtysh <<'EOF'\nshow ip route\nEOF", False),
        ("cat <<EOF\nit's\nip route add default via 10.0.0.1\nEOF", False),
        ("# don't\nip route add default via 10.0.0.1", True),
        ("ip addr # then\nip link set x up", True),
        ("ip addr; echo 'no end; ip link set x up", False),
    ],
)
def test_lines_and_quoted_text_and_heredocs_are_parsed_like_in_a_shell(
    command: str, expected: bool
) -> None:
    assert changes(command) is expected
