"""Programs that a command finds in addition to the system's, and those that are hidden from it.

A command sees the programs of the host. Consoles of programs that do not run on the emulated
machine would only mislead, and tcpdump needs what commands may not have.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Container
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from netarena.sandbox import namespace
from netarena.sandbox.shell import ENVIRONMENT, Room

#: consoles of routing and switching programs and of managers of networks: none runs in a machine
CONSOLES = (
    *("vtysh", "birdc", "birdc6", "birdcl", "gobgp", "bgpctl", "ospfctl"),
    *("ovs-vsctl", "ovs-ofctl", "ovs-dpctl", "ovs-appctl"),
    *("nmcli", "networkctl", "resolvectl"),
)
_FOLDERS = (Path("/usr/bin"), Path("/usr/sbin"))
#: of the network's files, what a command sees below /sys
_NETWORK = ("class/net", "devices/virtual/net")
_PYTHON = "/usr/bin/python3"


def _scripts() -> dict[str, str]:
    real = shutil.which("tcpdump", path=ENVIRONMENT["PATH"])
    if real is None or not os.access(_PYTHON, os.X_OK):
        return {}
    text = (files(__package__) / "tcpdump.py").read_text(encoding="utf-8")
    return {"/usr/local/bin/tcpdump": f"#!{_PYTHON} -IS\n{text}"}


#: names come from files: there is no server of names, and where a filter drops what is sent to one
#: each lookup, of ``iptables -L`` or ``arp`` too, would wait for ten seconds
_NAMES = "".join(
    f"{name}: files\n" for name in ("passwd", "group", "hosts", "networks", "protocols", "services")
)
#: path -> text; read where everything can be: a network's process may be nobody
TEXTS = {
    "/etc/passwd": "root:x:0:0:root:/tmp:/bin/bash\n",
    "/etc/group": "root:x:0:\n",
    "/etc/hosts": "127.0.0.1 localhost\n",
    "/etc/nsswitch.conf": _NAMES,
    **_scripts(),
}


def hide_consoles(but: Container[str] = ()) -> None:
    """Have commands of this process not find what has nothing to talk to."""
    for folder in _FOLDERS:
        with suppress(OSError):  # of a kernel that cannot: they say that there is nothing
            names = [name for name in CONSOLES if name not in but]
            if found := [name for name in names if (folder / name).exists()]:
                namespace.hide(folder, found)


def room(network: Path | None) -> Room:
    """What is there; ``network`` is where the kernel shows the machine's, if it does."""
    views = {} if network is None else {f"/sys/{name}": network / name for name in _NETWORK}
    return Room(texts=TEXTS, views=views)
