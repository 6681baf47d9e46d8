"""Distinguishes commands that change the cluster from commands that only read it, for ``judging:
paper``.
"""

from __future__ import annotations

from netarena.sdk import SimpleCommand, read_commands

_CHANGING = frozenset({"patch", "apply", "edit", "replace", "delete", "create", "set", "label"})
_CHANGING |= {"annotate", "scale", "expose", "run", "autoscale", "taint", "cordon", "uncordon"}
_CHANGING |= {"drain", "evict"}
_SECOND = {"rollout": {"undo", "restart", "pause", "resume"}, "auth": {"reconcile"}}
#: Options that may precede the verb and take a value.
_WITH_VALUES: tuple[str, ...] = (
    "-n",
    "--namespace",
    "-s",
    "--server",
    "--context",
    "--cluster",
    "--user",
    "-v",
)
_WITH_VALUES += ("--kubeconfig", "--token", "--as", "--as-group", "--request-timeout")


def changes(text: str) -> bool:
    """Return whether a command line contains a command that may change the cluster."""
    return any(map(_changes, read_commands(text)))


def _changes(command: SimpleCommand) -> bool:
    if command.program != "kubectl":
        return False
    if any(one.startswith("--dry-run") and one != "--dry-run=none" for one in command.arguments):
        return False
    verb, second, *_ = [*command.positional(_WITH_VALUES), "", ""]
    if verb == "label" and "--list" in command.arguments:
        return False
    return verb in _CHANGING or second in _SECOND.get(verb, ())
