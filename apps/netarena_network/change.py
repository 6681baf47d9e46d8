"""Distinguishes commands that change a machine's configuration from commands that only read it.

``judging: paper`` uses this module. Changes by inline programs (``python3 -c``) are not recognised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from netarena.sdk import SimpleCommand, read_commands

#: Verbs of iproute2 that change the configuration. Verbs may be abbreviated. An abbreviation that
#: also matches a verb of ``_READING`` counts as reading, as in iproute2. The only exception is
#: "link s", which is "link set" if arguments follow.
_CHANGING: tuple[str, ...] = (
    "add",
    "append",
    "change",
    "chg",
    "create",
    "delete",
    "deleteall",
    "flush",
    "prepend",
)
_CHANGING += ("replace", "restore", "set", "insert", "update", "destroy", "attach")
_READING: tuple[str, ...] = (
    "show",
    "list",
    "lst",
    "ls",
    "get",
    "help",
    "monitor",
    "identify",
    "pids",
    "save",
)
_READING += ("test", "exec", "count")
_IP_VALUES = ("-n", "-netns", "-f", "-family", "-l", "-loops", "-rc", "-rcvbuf")
_TABLES = re.compile(r"(?:ip6?|arp|eb)tables(?:-legacy|-nft)?(-restore)?")
_TABLES_OPTION = re.compile(
    r"-[nvxw46]*[ADIRFXNPZE]|--(?:append|delete|insert|replace|flush|policy|new-chain|"
    r"delete-chain|zero|rename-chain)"
)
_NFT = re.compile(r"\s*(?:add|create|insert|delete|destroy|flush|replace|rename|reset|import)\b")
_VTYSH = re.compile(r"^\s*(?:con\w*|cle\w*|wr\w*|copy)\b", re.MULTILINE)
_SERVICE = re.compile(r"(?:re|try-re|force-re)?(?:start|load)|stop|kill|enable|disable|mask|unmask")
_ETHTOOL = re.compile(r"-[srfpEWACGKLNUXF]|--(?:set|change|reset|config|features|offload|pause).*")
_CONNTRACK = re.compile(r"-[DFUI]|--(?:delete|flush|update|create)")
_OVS = re.compile(r"(?:add|del|set|mod|replace)(?:-.*)?|clear|remove|destroy|create|emer-reset")
#: Start of paths in folders that contain only configuration.
_CONFIGURATION = re.compile(r"/(?:proc/sys|sys|etc)/")


def changes(text: str) -> bool:
    """Return whether a command line contains a command that may change the configuration."""
    return any(map(_changes, read_commands(text)))


def _changes(command: SimpleCommand) -> bool:
    if any(map(_CONFIGURATION.match, command.written)):
        return True
    tables = _TABLES.fullmatch(command.program)
    if tables:
        return bool(tables[1]) or any(map(_TABLES_OPTION.fullmatch, command.arguments))
    judge = _PROGRAMS.get(command.program)
    return judge is not None and judge(command)


def _iproute(command: SimpleCommand) -> bool:
    if {"-b", "-batch"} & {*command.arguments}:
        return True
    thing, *rest = [*command.positional(_IP_VALUES), ""]
    if thing and "xfrm".startswith(thing):
        rest = rest[1:]
    verb, *rest = [*rest, ""]
    if verb == "exec" and command.program == "ip":
        after = command.arguments.index("exec") + 2
        inner = command.arguments[after:]
        return bool(inner) and _changes(command._replace(program=inner[0], arguments=inner[1:]))
    if verb == "s" and thing and "link".startswith(thing):
        return len(rest) > 1
    return bool(verb) and _is_prefix(verb, _CHANGING) and not _is_prefix(verb, _READING)


def _is_prefix(verb: str, words: Sequence[str]) -> bool:
    return any(word.startswith(verb) for word in words)


def _nft(command: SimpleCommand) -> bool:
    options = [one for one in command.arguments if one.startswith("-")]
    if {"-c", "--check"} & {*options}:
        return False
    if any(re.fullmatch(r"-[a-z]*[fi]|--file|--interactive", one) for one in options):
        return True
    return any(map(_NFT.match, " ".join(command.positional()).split(";")))


def _vtysh(command: SimpleCommand) -> bool:
    words = command.arguments
    if {"-b", "--boot", "-f", "--inputfile"} & {*words}:
        return True
    given = [one for option, one in pairwise(words) if option in _VTYSH_TEXT]
    given += [one.split("=", 1)[1] for one in words if one.startswith("--command=")]
    return any(map(_VTYSH.search, given or command.fed))


_VTYSH_TEXT = ("-c", "--command")


def _sysctl(command: SimpleCommand) -> bool:
    loads = re.compile(r"-[abdenNqxXo]*[pf].*|--load.*|--system")
    return any("=" in one for one in command.positional(("-r", "--pattern"))) or any(
        map(loads.fullmatch, command.arguments)
    )


def _copies(command: SimpleCommand) -> bool:
    return any(map(_CONFIGURATION.match, command.positional()[-1:]))


def _touches(command: SimpleCommand) -> bool:
    return any(_CONFIGURATION.match(one.removeprefix("of=")) for one in command.positional())


def _edits(command: SimpleCommand) -> bool:
    in_place = any(re.match(r"-[nErsz]*i|--in-place", one) for one in command.arguments)
    return in_place and _touches(command)


def _first(*verbs: str) -> Callable[[SimpleCommand], bool]:
    return lambda command: any(one in verbs for one in command.positional(("-A",))[:1])


def _any(pattern: re.Pattern[str]) -> Callable[[SimpleCommand], bool]:
    return lambda command: any(map(pattern.fullmatch, command.arguments))


def _always(command: SimpleCommand) -> bool:
    del command
    return True


_PROGRAMS: dict[str, Callable[[SimpleCommand], bool]] = {
    **dict.fromkeys(("ip", "bridge", "tc"), _iproute),
    "nft": _nft,
    "vtysh": _vtysh,
    "sysctl": _sysctl,
    "route": _first("add", "del", "delete", "flush"),
    "ipset": _first("add", "del", "create", "destroy", "flush", "swap", "rename", "restore"),
    "ifconfig": lambda command: len(command.positional()) > 1,
    "arp": _any(re.compile(r"-[sdf]|--(?:set|delete|file)")),
    "ethtool": _any(_ETHTOOL),
    "conntrack": _any(_CONNTRACK),
    **dict.fromkeys(("ovs-vsctl", "ovs-ofctl"), _any(_OVS)),
    "brctl": lambda command: not command.positional()[:1] or command.positional()[0][:4] != "show",
    **dict.fromkeys(("systemctl", "service", "rc-service"), _any(_SERVICE)),
    "frr-reload.py": lambda command: "--test" not in command.arguments,
    **dict.fromkeys(("ifup", "ifdown", "dhclient", "kill", "pkill", "killall"), _always),
    **dict.fromkeys(("cp", "install"), _copies),
    **dict.fromkeys(("tee", "mv", "rm", "ln", "truncate", "dd"), _touches),
    **dict.fromkeys(("sed", "perl"), _edits),
}
