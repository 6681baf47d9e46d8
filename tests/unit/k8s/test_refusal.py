"""The output of a turn shows whether the turn had any effect."""

from __future__ import annotations

import pytest

from netarena.model import Step
from netarena.sandbox.shell import CommandResult
from netarena_k8s.refusal import came_to_nothing

FORBIDDEN = (
    'Error from server (Forbidden): namespaces is forbidden: User "operator" cannot list resource '
    '"namespaces" in API group "" at the cluster scope\n'
)
INVALID = 'The NetworkPolicy "adservice" is invalid: spec.ingress[0].ports[0].port: Invalid value\n'
CAUSES = 'The NetworkPolicy "adservice" is invalid: \n* spec.podSelector: Invalid value\n* spec.x\n'
UPGRADE = 'error: unable to upgrade connection: pods "a" is forbidden: User "o" cannot create\n'
FOLLOWED = 'pods "a-b" is forbidden: User "operator" cannot get resource "pods/log"\n' * 2
WATCHED = "NAME        POD-SELECTOR    AGE\nadservice   app=adservice   2m\n"
PATCHED = "networkpolicy.networking.k8s.io/adservice patched\n"


@pytest.mark.parametrize(
    ("output", "status"),
    [
        pytest.param(FORBIDDEN, 1, id="forbidden by the server"),
        pytest.param(f"Warning: x is deprecated\n{FORBIDDEN}", 1, id="forbidden with a warning"),
        pytest.param(INVALID, 1, id="invalid object"),
        pytest.param(CAUSES, 1, id="invalid for several causes"),
        pytest.param(FORBIDDEN + INVALID, 1, id="every command of the line is refused"),
        pytest.param("The request is invalid: patch: Invalid value\n", 1, id="invalid patch"),
        pytest.param(
            "error: unknown flag: --foo\nSee 'kubectl get --help' for usage.\n", 1,
            id="unknown kubectl flag"
        ),
        pytest.param(
            'error: unknown command "foo" for "kubectl"\n\nDid you mean this?\n\ttop\n', 1,
            id="unknown kubectl command",
        ),
        pytest.param(
            f"Unable to use a TTY - input is no terminal\n{UPGRADE}", 1, id="exec without a TTY"
        ),
        pytest.param(
            f"If you don't see a command prompt, try enter.\n{UPGRADE}", 1, id="exec with a prompt"
        ),
        pytest.param("bash: line 1: foo: command not found\n", 127, id="command not found"),
        pytest.param("", 127, id="command not found, no output"),
        pytest.param("bash: -c: line 1: syntax error near `)'\n", 2, id="bash syntax error"),
        pytest.param("", 124, id="timed out without output"),
        pytest.param("\n", 137, id="killed without output"),
    ],
)  # fmt: skip
def test_refused_command_has_no_effect(output: str, status: int) -> None:
    assert came_to_nothing(
        Step(prompt="", executed=True, output=CommandResult(output, status).told)
    )


@pytest.mark.parametrize(
    ("output", "status"),
    [
        pytest.param(WATCHED, 124, id="watch ended by timeout"),
        pytest.param("", 1, id="grep found nothing"),
        pytest.param("3c3\n< a\n---\n> b\n", 1, id="diff found differences"),
        pytest.param("no\n", 1, id="kubectl auth can-i prints no"),
        pytest.param(
            "error: timed out waiting for the condition\n", 1, id="kubectl wait timed out"
        ),
        pytest.param(PATCHED + INVALID, 1, id="one of two writes is refused"),
        pytest.param(FORBIDDEN + WATCHED, 1, id="output after a refusal"),
        pytest.param(FORBIDDEN, 0, id="last command of the line succeeded"),
        pytest.param("", 0, id="success without output"),
        pytest.param("[exit status 1] was said\n", 0, id="output contains the exit status text"),
    ],
)
def test_nonzero_exit_status_alone_is_not_a_refusal(output: str, status: int) -> None:
    assert not came_to_nothing(
        Step(prompt="", executed=True, output=CommandResult(output, status).told)
    )


@pytest.mark.parametrize(("output", "nothing"), [("", True), (FOLLOWED, True), (WATCHED, False)])
def test_effect_of_a_stopped_command_is_determined_from_its_output(
    output: str, nothing: bool
) -> None:
    told = CommandResult(output, None, timed_out=True, stopped="it ran for 15 s").told
    assert came_to_nothing(Step(prompt="", executed=True, output=told)) is nothing


def test_turn_without_a_command_has_no_effect() -> None:
    assert came_to_nothing(Step(prompt="", refused="the reply contains no command"))
