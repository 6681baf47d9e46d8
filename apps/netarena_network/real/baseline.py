"""Settings of new namespaces, and shell commands of this program that run in them."""

from __future__ import annotations

import contextlib
import os
import subprocess

_NET = "/proc/sys/net"
#: Environment variables for this program's own commands.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


#: Values for settings below /proc/sys/net that a new namespace might inherit from the host.
#: Settings that the kernel does not have are skipped.
BASELINE = {
    "ipv6/conf/all/disable_ipv6": "1",  # the networks do not use IPv6
    "ipv6/conf/default/disable_ipv6": "1",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/conf/all/arp_ignore": "0",
    "ipv4/conf/default/arp_ignore": "0",
    "ipv4/ip_forward": "0",
    "ipv4/icmp_echo_ignore_all": "0",
    # Bridges join the multicast group 224.0.0.106 (RFC 4286) and report this at random times.
    # Packet counters would include these reports.
    "ipv4/igmp_link_local_mcast_reports": "0",
    # With the value 1, bridged packets would traverse the filters of the switches' namespace.
    "bridge/bridge-nf-call-iptables": "0",
    "bridge/bridge-nf-call-arptables": "0",
    "bridge/bridge-nf-call-ip6tables": "0",
}


def set_baseline() -> None:
    """Reset the settings that the new namespace of the calling thread might have inherited."""
    for name, value in BASELINE.items():
        with contextlib.suppress(FileNotFoundError):
            file = os.open(f"{_NET}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(file, value.encode("ascii"))
            finally:
                os.close(file)


def number_settings(folder: str = _NET) -> None:
    """Make the kernel assign inode numbers to all network settings of the thread, in a fixed order.

    The kernel assigns the inode number of a setting when its folder is first listed or its path is
    first looked up. Without this call, the order of the numbers would reveal which settings this
    program writes or reads later.
    """
    with os.scandir(folder) as entries:
        folders = [one.path for one in entries if one.is_dir(follow_symlinks=False)]
    for one in folders:
        number_settings(one)


def run_shell(text: str) -> subprocess.CompletedProcess[str]:
    """Run one of this program's own commands in the calling thread's namespaces.

    Raises subprocess.CalledProcessError if the command fails.
    """
    return subprocess.run(  # a shell is necessary, because the commands may contain shell syntax
        ["/bin/sh", "-c", text],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=ENVIRONMENT,
        text=True,
        errors="replace",
        timeout=60,
        check=True,
    )
