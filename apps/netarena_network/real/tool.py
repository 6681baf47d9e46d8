"""Programs that are added for commands, and programs of the host that are hidden from commands.

Commands can use the host's programs. Consoles of daemons that do not run on the emulated machines
would only confuse agents. The host's tcpdump needs privileges that commands must not have.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Container
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from netarena.sdk import SHELL_ENVIRONMENT, Room, namespace

#: Consoles of routing daemons, switches and network managers that do not run on the machines.
CONSOLES = (
    *("vtysh", "birdc", "birdc6", "birdcl", "gobgp", "bgpctl", "ospfctl"),
    *("ovs-vsctl", "ovs-ofctl", "ovs-dpctl", "ovs-appctl"),
    *("nmcli", "networkctl", "resolvectl"),
)
_FOLDERS = (Path("/usr/bin"), Path("/usr/sbin"))
#: Network folders of /sys that commands can read.
_NETWORK = ("class/net", "devices/virtual/net")
_PYTHON = "/usr/bin/python3"


def _scripts() -> dict[str, str]:
    real = shutil.which("tcpdump", path=SHELL_ENVIRONMENT["PATH"])
    if real is None or not os.access(_PYTHON, os.X_OK):
        return {}
    text = (files(__package__) / "tcpdump.py").read_text(encoding="utf-8")
    return {"/usr/local/bin/tcpdump": f"#!{_PYTHON} -IS\n{text}"}


#: Names are looked up only in files. Otherwise each lookup would wait for ten seconds if a filter
#: drops DNS queries, for example in ``iptables -L`` or ``arp``.
_NAMES = "".join(
    f"{name}: files\n" for name in ("passwd", "group", "hosts", "networks", "protocols", "services")
)
#: Path -> text of an added file. The texts are read at import, because a network's process may run
#: as user nobody later.
TEXTS = {
    "/etc/passwd": "root:x:0:0:root:/tmp:/bin/bash\n",
    "/etc/group": "root:x:0:\n",
    "/etc/hosts": "127.0.0.1 localhost\n",
    "/etc/nsswitch.conf": _NAMES,
    **_scripts(),
}


def hide_consoles(but: Container[str] = ()) -> None:
    """Hide the consoles in ``CONSOLES``, except ``but``, from commands that this process runs."""
    for folder in _FOLDERS:
        # If the kernel does not support the overlay, the consoles stay visible. If an agent starts
        # a console, it reports that no daemon runs.
        with suppress(OSError):
            names = [name for name in CONSOLES if name not in but]
            if found := [name for name in names if (folder / name).exists()]:
                namespace.hide(folder, found)


def room(network: Path | None) -> Room:
    """Return the files that are added for a command.

    ``network`` is the machine's part of /sys, if available.
    """
    views = {} if network is None else {f"/sys/{name}": network / name for name in _NETWORK}
    return Room(texts=TEXTS, views=views)
