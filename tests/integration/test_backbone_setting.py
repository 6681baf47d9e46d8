"""Settings of a machine: commands that set or remove any setting are detected."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from netarena.sandbox.namespace import current_network, leave_network
from netarena_backbone.real.frr import Terminals
from netarena_backbone.real.setting import Setting, Settings
from netarena_network.real.baseline import run_shell
from netarena_network.real.netlink import Netlink

pytestmark = [pytest.mark.requires("root"), pytest.mark.requires("netns")]

BEGUN = (
    "ip link set lo up; ip link add t0 type veth peer name t1; ip link set t0 up; "
    "ip link set t1 up; ip addr add 192.0.2.1/24 dev t0; iptables -A INPUT -p icmp -j ACCEPT; "
    # new network namespaces may inherit other values from the machine
    "sysctl -qw net.ipv4.ip_forward=0; sysctl -qw net.ipv4.conf.t0.rp_filter=0"
)
#: a command, and the command that undoes it
SET = {
    "address": ("ip addr add 192.0.2.7/24 dev t0", "ip addr del 192.0.2.7/24 dev t0"),
    "mask": (
        "ip addr del 192.0.2.1/24 dev t0; ip addr add 192.0.2.1/25 dev t0",
        "ip addr del 192.0.2.1/25 dev t0; ip addr add 192.0.2.1/24 dev t0",
    ),
    "route": ("ip route add 198.51.100.0/24 via 192.0.2.9", "ip route del 198.51.100.0/24"),
    "metric": (
        "ip route add 198.51.100.0/24 via 192.0.2.9 metric 7",
        "ip route del 198.51.100.0/24 metric 7",
    ),
    "rule": ("ip rule add prohibit pref 7", "ip rule del pref 7"),
    "link": ("ip link set t1 down", "ip link set t1 up"),
    "mtu": ("ip link set t0 mtu 1400", "ip link set t0 mtu 1500"),
    "queue": (
        "tc qdisc add dev t0 root pfifo limit 1",
        "tc qdisc del dev t0 root",
    ),
    "neighbour": (
        "ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev t0",
        "ip neigh del 192.0.2.9 dev t0",
    ),
    "filter": ("iptables -A INPUT -p tcp -j DROP", "iptables -D INPUT -p tcp -j DROP"),
    "policy": ("iptables -P FORWARD DROP", "iptables -P FORWARD ACCEPT"),
    "sysctl": ("sysctl -qw net.ipv4.ip_forward=1", "sysctl -qw net.ipv4.ip_forward=0"),
    "interface's sysctl": (
        "sysctl -qw net.ipv4.conf.t0.rp_filter=1",
        "sysctl -qw net.ipv4.conf.t0.rp_filter=0",
    ),
}
#: commands that change no setting
NOTHING = {
    "a ping": "ping -c 1 192.0.2.1; ping -c 1 -W 1 192.0.2.9 || true",
    "what a daemon routes": "ip route add 203.0.113.0/24 via 192.0.2.9 proto bgp",
    "a look": "iptables -L -n; nft list ruleset; ip addr; ip route",
}


@pytest.fixture(name="apart", scope="module")
def _apart(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Callable[..., None]], None]:
    folder = tmp_path_factory.mktemp("serve")

    def do(what: Callable[..., None]) -> None:
        """Run a function in a thread that has its own network namespace."""
        raised: list[BaseException] = []

        def run() -> None:
            try:
                leave_network()
                run_shell(BEGUN)
                space = current_network()
                with Netlink() as netlink:
                    settings = Settings(
                        Terminals(), {}, {"m": space}, {"m": netlink}, {"m": folder}
                    )
                    what(lambda: settings.of("m"), folder)
                os.close(space)
            except BaseException as error:  # noqa: BLE001 -- raised again in the test
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        for error in raised:
            raise error

    return do


def test_setting_is_visible_until_it_is_undone(
    apart: Callable[[Callable[..., None]], None],
) -> None:
    def check(look: Callable[[], Setting], folder: Path) -> None:
        first = look()
        for name, (command, undo) in SET.items():
            run_shell(command)
            assert look() != first, name
            run_shell(undo)
            assert look() == first, name
        for name, command in NOTHING.items():
            run_shell(command)
            assert look() == first, name
        (folder / "services").write_text("web tcp 192.0.2.1 80\n")
        assert look() != first
        (folder / "services").unlink()
        assert look() == first

    apart(check)


#: a command with a temporary setting -> a command that makes it permanent or removes it
FLEETING = {
    "ip addr change 192.0.2.1/24 dev t0 valid_lft 60 preferred_lft 60": (
        "ip addr change 192.0.2.1/24 dev t0 valid_lft forever preferred_lft forever"
    ),
    "nft 'add table ip t; add set ip t s { type ipv4_addr; flags timeout; };"
    " add element ip t s { 192.0.2.9 timeout 1h }'": "nft delete table ip t",
    "nft 'add table ip t; add chain ip t c; add rule ip t c meta hour > \"12:00\" drop'": (
        "nft delete table ip t"
    ),
    "nft 'add table ip t; add chain ip t c; add rule ip t c quota over 9 mbytes drop'": (
        "nft delete table ip t"
    ),
}


def test_setting_that_ends_by_itself_is_reported_as_temporary(
    apart: Callable[[Callable[..., None]], None],
) -> None:
    def check(look: Callable[[], Setting], folder: Path) -> None:
        del folder
        assert not look().fleeting
        for command, undo in FLEETING.items():
            run_shell(command)
            assert look().fleeting, command
            run_shell(undo)
            assert not look().fleeting, undo

    apart(check)
