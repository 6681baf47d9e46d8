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
        pytest.param(FORBIDDEN, 1, id="the server refuses"),
        pytest.param(f"Warning: x is deprecated\n{FORBIDDEN}", 1, id="and warns"),
        pytest.param(INVALID, 1, id="the server finds it invalid"),
        pytest.param(CAUSES, 1, id="for several causes"),
        pytest.param(FORBIDDEN + INVALID, 1, id="each of a line is refused"),
        pytest.param("The request is invalid: patch: Invalid value\n", 1, id="the patch is none"),
        pytest.param(
            "error: unknown flag: --foo\nSee 'kubectl get --help' for usage.\n", 1, id="kubectl"
        ),
        pytest.param(
            'error: unknown command "foo" for "kubectl"\n\nDid you mean this?\n\ttop\n', 1,
            id="kubectl has a proposal",
        ),
        pytest.param(f"Unable to use a TTY - input is no terminal\n{UPGRADE}", 1, id="no shell"),
        pytest.param(f"If you don't see a command prompt, try enter.\n{UPGRADE}", 1, id="nor that"),
        pytest.param("bash: line 1: foo: command not found\n", 127, id="no program"),
        pytest.param("", 127, id="no program, unheard"),
        pytest.param("bash: -c: line 1: syntax error near `)'\n", 2, id="no line of bash"),
        pytest.param("", 124, id="ended before it printed"),
        pytest.param("\n", 137, id="killed before it printed"),
    ],
)  # fmt: skip
def test_refused_command_has_no_effect(output: str, status: int) -> None:
    assert came_to_nothing(
        Step(prompt="", executed=True, output=CommandResult(output, status).told)
    )


@pytest.mark.parametrize(
    ("output", "status"),
    [
        pytest.param(WATCHED, 124, id="a watch that timeout ended"),
        pytest.param("", 1, id="grep found nothing"),
        pytest.param("3c3\n< a\n---\n> b\n", 1, id="diff found differences"),
        pytest.param("no\n", 1, id="may not"),
        pytest.param("error: timed out waiting for the condition\n", 1, id="waited in vain"),
        pytest.param(PATCHED + INVALID, 1, id="one of two writes is refused"),
        pytest.param(FORBIDDEN + WATCHED, 1, id="it goes on after a refusal"),
        pytest.param(FORBIDDEN, 0, id="the line's last command worked"),
        pytest.param("", 0, id="nothing to print"),
        pytest.param("[exit status 1] was said\n", 0, id="the output says so itself"),
    ],
)
def test_nonzero_exit_status_alone_is_not_a_refusal(output: str, status: int) -> None:
    assert not came_to_nothing(
        Step(prompt="", executed=True, output=CommandResult(output, status).told)
    )


@pytest.mark.parametrize(("output", "nothing"), [("", True), (FOLLOWED, True), (WATCHED, False)])
def test_stopped_command_is_judged_by_its_output(output: str, nothing: bool) -> None:
    told = CommandResult(output, None, timed_out=True, stopped="it ran for 15 s").told
    assert came_to_nothing(Step(prompt="", executed=True, output=told)) is nothing


def test_turn_without_a_command_has_no_effect() -> None:
    assert came_to_nothing(Step(prompt="", refused="the reply contains no command"))
