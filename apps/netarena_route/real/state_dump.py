"""Complete dump of a machine's settings. It shows remaining parts of faults, and changes that
commands made.

In addition to the entries of a snapshot, the dump contains queues, permanent ARP entries, links,
sysctls and filter tables. Filter tables are included even if the intended machine has no filters.
Tickets use the dump, because all pings may succeed after an incomplete repair.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from netarena.sdk import entered
from netarena_network.real.baseline import run_shell
from netarena_network.real.netlink import Netlink, links
from netarena_network.real.reading import effective, unfold
from netarena_route.real.form import sysctls
from netarena_route.real.snapshot import Entry

#: Prefix of a line that states the kind of the following entries, as in ``_PROGRAMS``.
_MARK = "== "
#: Kind of entries -> command that prints the entries
_PROGRAMS: Mapping[str, str] = {
    "filter": "iptables-save",
    "nft": "nft --stateless list ruleset",
    "queue": "tc qdisc show",
    # ip prints externally learnt entries for every state, so grep removes them
    "neighbour": "ip -4 neigh show nud permanent | grep PERMANENT",
}
_LISTING = "\n".join(f"echo '{_MARK}{kind}'; {text}" for kind, text in _PROGRAMS.items())
#: Pattern of the handle of a queue, which the kernel chooses.
_HANDLE = re.compile(r"^(qdisc \S+) \S+")
#: Sysctls with this part in their names list the kernel's capabilities and are left out.
_AVAILABLE = "available"
#: Maximum number of reported rows, and of characters per row. Both are limited, because in a false
#: alarm, the rows come from an agent's commands.
_MAX_ROWS, _MAX_CHARS = 200, 300
_UP, _NOARP, _MTU, _NAME = 0x1, 0x80, 4, 3


class Trace:
    """Earlier states of machines, with which later states are compared.

    ``look`` reads a machine. ``faults`` has two sets of entries for each machine with faults:
    without and with the faults. If ``faults`` is empty, all changes by commands are reported.
    """

    def __init__(
        self,
        look: Callable[[str], frozenset[Entry]],
        faults: Mapping[str, tuple[frozenset[Entry], frozenset[Entry]]],
    ) -> None:
        self._look = look
        self._quiet = not faults
        self._before: dict[str, frozenset[Entry]] = {name: one for name, (one, _) in faults.items()}
        #: Entries of each machine with its faults. They are valid until a command runs on the
        #: machine.
        self._untouched = {name: now for name, (_, now) in faults.items()}
        self._touched: set[str] = set()
        #: Entries that faults added to a machine, and entries that faults removed.
        self._marked = {name: (now - one, one - now) for name, (one, now) in faults.items()}

    def touch(self, machine: str) -> None:
        """Record a machine's state before its first command. Later calls have no effect."""
        if machine not in self._touched:
            self._touched.add(machine)
            now = self._look(machine)
            if self._quiet:
                self._before[machine] = now

    def left(self) -> list[list[str]]:
        """Return rows (machine, kind, text) of the faults' changes that still exist.

        If the query has no faults, every change by commands is reported. The text of a missing
        entry begins with a minus sign. If the rows exceed the limit, the last row has the number of
        omitted rows.
        """
        found = []
        # Machines on which commands have run are always read, so that the duration does not reveal
        # whether faults exist.
        touched = {machine: self._look(machine) for machine in sorted(self._touched)}
        for machine, before in self._before.items():
            now = touched[machine] if machine in touched else self._untouched[machine]
            added, gone = self._marked.get(machine, (now - before, before - now))
            found += [[machine, what, text] for what, text in sorted(added & now)]
            replaced = {(what, text.partition("=")[0]) for what, text in added}
            found += [
                [machine, what, f"- {text}"]
                for what, text in sorted(gone - now)
                if (what, text.partition("=")[0]) not in replaced
            ]
        if (more := len(found) - _MAX_ROWS) > 0:
            found[_MAX_ROWS:] = [[found[_MAX_ROWS][0], "and", f"{more} more"]]
        return [[machine, what, text[:_MAX_CHARS]] for machine, what, text in found]


def state(space: int, netlink: Netlink, held: Iterable[Entry]) -> frozenset[Entry]:
    """Return the current entries of a machine. The arguments are its namespace and a socket in the
    namespace.

    ``held`` are the entries of a snapshot.
    """
    return frozenset(_read(space, netlink, held))


def _read(space: int, netlink: Netlink, held: Iterable[Entry]) -> Iterator[Entry]:
    yield from (one for one in held if one[0] not in {"filter", "sysctl"})
    for link in links(netlink):
        name = link.attributes.get(_NAME, b"").rstrip(b"\0").decode("utf-8", "replace")
        mtu = int.from_bytes(link.attributes.get(_MTU, b""), "little")
        yield (
            "link",
            f"{name}={'up' if link.flags & _UP else 'down'} mtu {mtu}"
            + (" noarp" if link.flags & _NOARP and name != "lo" else ""),
        )
    with entered(space):
        yield from _list(run_shell(f"{{ {_LISTING}\n}} 2>/dev/null || true").stdout)
        for name, value in sysctls().items():
            if _AVAILABLE not in name:
                yield "sysctl", f"net.ipv4.{name.replace('/', '.')}={value}"


def _list(printed: str) -> Iterator[Entry]:
    """Yield the entries that the programs printed. Entries that exist by default are left out."""
    what = table = ""
    rules: list[str] = []
    for text in printed.splitlines():
        line = text.strip()
        if line.startswith(_MARK):
            what = line.removeprefix(_MARK)
        elif what == "nft":
            rules.append(text)
        elif what != "filter":
            if line and not line.startswith("qdisc noqueue "):
                yield what, _HANDLE.sub(r"\1", line) if what == "queue" else line
        elif line.startswith("*"):
            table = line[1:]
        elif line.startswith(":") and line.split()[1] != "ACCEPT":
            yield what, f"-t {table} -P {' '.join(line[1:].split()[:2])}"
        elif line.startswith("-"):
            yield what, f"-t {table} {line}"
    for text in unfold("", effective("\n".join(rules))):
        if not text.endswith("}"):
            yield "nft", text.removeprefix(": ")
