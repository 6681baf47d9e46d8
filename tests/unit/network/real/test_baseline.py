"""Order in which the kernel numbers the network settings of new namespaces."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from netarena.sandbox.namespace import leave_network
from netarena_network.real.baseline import number_settings

_NET = Path("/proc/sys/net")


def _order_of_numbers(first: str) -> list[str]:
    """Return the settings of a new namespace by inode; ``first`` is read after their numbering."""
    found: list[str] = []

    def read() -> None:
        # the kernel gives each processor a range of numbers
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        leave_network()
        number_settings()
        (_NET / first).read_bytes()
        paths = [Path(folder, name) for folder, _, names in os.walk(_NET) for name in names]
        found.extend(str(path) for path in sorted(paths, key=lambda path: path.stat().st_ino))

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    return found


@pytest.mark.requires("root")
def test_inode_order_of_settings_does_not_depend_on_the_setting_read_first():
    _order_of_numbers("ipv4/ip_forward")  # this call numbers the settings that all namespaces share
    one = _order_of_numbers("ipv4/tcp_syncookies")
    other = _order_of_numbers("ipv4/conf/default/accept_local")

    assert len(one) > 100
    assert one == other
