from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.errors import ReplyRefused
from netarena_k8s.reply import MAX_COMMAND_BYTES, read_reply


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("```\nkubectl get netpol\n```", "kubectl get netpol"),
        ("I look.\n```bash\nkubectl get pods\n```\nThen\n```\nkubectl x\n```", "kubectl get pods"),
        ("```kubectl get svc```", "kubectl get svc"),
        ("```sh\r\nkubectl get svc\r\n```", "kubectl get svc"),
        ("Action:\n  kubectl describe netpol x  ", "kubectl describe netpol x"),
        ("$ kubectl get netpol -o yaml", "kubectl get netpol -o yaml"),
        (
            "```\ncat <<'E' | kubectl apply -f -\nkind: x\nE\n```",
            "cat <<'E' | kubectl apply -f -\nkind: x\nE",
        ),
        ("kubectl get a\nkubectl get b", "kubectl get a"),
    ],
)
def test_commands_are_found(reply, command):
    assert read_reply(reply) == command


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("", "no command"),
        ("Run kubectl yourself.", "no command"),
        ("```\n\n```", "empty"),
        ("```\nkubectl \0\n```", "NUL"),
        ("```\nkubectl \ud800\n```", "Unicode"),
        (f"```\nkubectl {'x' * MAX_COMMAND_BYTES}\n```", "bytes"),
    ],
)
def test_what_cannot_be_used_says_why(reply, why):
    with pytest.raises(ReplyRefused, match=why):
        read_reply(reply)


@given(st.text(alphabet="`kubectl \n$xé", max_size=60))
def test_any_text_is_read_or_refused(text):
    try:
        command = read_reply(text)
    except ReplyRefused:
        return
    assert command
    assert command in text
