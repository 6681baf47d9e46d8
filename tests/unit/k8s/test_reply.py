from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.errors import ReplyRefused
from netarena.task import command_line
from netarena_k8s.agent import attack
from netarena_k8s.agent.guess import blanket
from netarena_k8s.reply import MAX_COMMAND_BYTES, MAX_READ_CHARS, read_reply
from tests.thorough import THOROUGH

DRY = "kubectl patch netpol x -p '{}' \\\n  --dry-run=server"
APPLY = "kubectl apply -f - <<E\nkind: x\nE"
PATCH = 'kubectl patch networkpolicy adservice --type=merge -p \'{"spec":{"ingress":[]}}\''
#: command with a closing tag inside a quoted text
NOTE = "kubectl annotate netpol x note='</think>'"

FOUND = {
    "```\nkubectl get netpol\n```": "kubectl get netpol",
    "I look.\n```bash\nkubectl get pods\n```\nThen\n```\nkubectl x\n```": "kubectl get pods",
    "```kubectl get svc```": "kubectl get svc",
    "```sh\r\nkubectl get svc\r\n```": "kubectl get svc",
    "Action:\n  kubectl describe netpol x  ": "kubectl describe netpol x",
    "$ kubectl get netpol -o yaml": "kubectl get netpol -o yaml",
    "```\ncat <<'E' | kubectl apply -f -\nkind: x\nE\n```": (
        "cat <<'E' | kubectl apply -f -\nkind: x\nE"
    ),
    "kubectl get a\nkubectl get b": "kubectl get a",
    # a bare command that continues on the next line
    f"{DRY}\n": DRY,
    f"{DRY}\nThat is safe.": DRY,
    f"{APPLY}\nkubectl get b": APPLY,
    "kubectl get pods |\n  grep x": "kubectl get pods |\n  grep x",
    "kubectl get pods &&\nkubectl get svc": "kubectl get pods &&\nkubectl get svc",
    "kubectl patch x -p '{\"a\":\n1}'\n": "kubectl patch x -p '{\"a\":\n1}'",
    "kubectl \\\n  get pods": "kubectl \\\n  get pods",
    "kubectl is the tool I would use.\nkubectl get pods": "kubectl get pods",
    # text after a bare command is not part of it
    f"{PATCH}\n---\nThat is all.": PATCH,
    f"{PATCH}\n\n- It shuts it.": PATCH,
    # shell words after the command
    **{
        line: line
        for line in (
            "kubectl get networkpolicy cart || echo not found",
            "kubectl get netpol cart; echo this is done",
            "kubectl get pods | grep not",
            f"{PATCH} 2>&1 | tail -n 1",
            f"{PATCH} && kubectl get netpol adservice -o yaml",
            "kubectl delete pod $(kubectl get pods -o name | grep not)",
            "kubectl delete netpol a --grace-period 0 --force > /dev/null && echo ok",
            "kubectl delete netpol/a netpol/b # both",
            "kubectl -n x scale deploy a --replicas 2",
            "kubectl label pod a b=c d- --overwrite",
            "kubectl set image deploy/x c=i:1",
            "kubectl create secret generic x --from-literal=a=b",
            "kubectl rollout restart deploy x",
            "kubectl apply -f <(echo 'kind: x')",
            'kubectl patch netpol a --type merge -p "$(cat x)"',
            "kubectl apply -f - <<'E' | cat\nthe x: is # it\nE",
            "kubectl get pods -o name | while read p; do kubectl delete $p; done",
        )
    },
    # fences of any form
    '```bash title="x"\nkubectl get pods\n```': "kubectl get pods",
    "```{.bash .numberLines}\nkubectl get pods\n```": "kubectl get pods",
    "```bash,linenos\nkubectl get pods\n```": "kubectl get pods",
    "``` sh  \nkubectl get pods\n```  ": "kubectl get pods",
    "~~~bash `x`\nkubectl get a\nkubectl get b\n~~~": "kubectl get a\nkubectl get b",
    "````sh\nkubectl get pods -l x='```'\n`````": "kubectl get pods -l x='```'",
    "```sh\nkubectl annotate netpol x n='```' a=b\n```": "kubectl annotate netpol x n='```' a=b",
    "````markdown\nSo:\n```bash\nkubectl get pods\n```\n````": "kubectl get pods",
    "~~~\n```bash\nkubectl get pods\n```\n~~~": "kubectl get pods",
    "```kubectl\nkubectl get pods\n```": "kubectl get pods",
    "```bash kubectl get pods```": "kubectl get pods",
    "Run ```` kubectl get pods ```` to see": "kubectl get pods",
    f"```{DRY}\n```": DRY,
    f"```bash {DRY}\n```": DRY,
    "Action: ```\nkubectl get pods```": "kubectl get pods",
    "```\nkubectl get pods -o name``` \nso": "kubectl get pods -o name",
    "> Look:\n> ```bash\n> kubectl get pods\n> ```": "kubectl get pods",
    "1. Look:\n   ```bash\n   kubectl apply -f - <<E\n   kind: x\n   E\n   ```": APPLY,
    "- ```\n  kubectl get pods\n  ```": "kubectl get pods",
    # prompts
    "```\n$ kubectl get pods\n```": "kubectl get pods",
    "```console\nme@host:~$ kubectl get a\n$ kubectl get b\n```": "kubectl get a\nkubectl get b",
    f"```console\n$ {DRY}\n```": DRY,
    "```\nroot@box:~# kubectl get a\n```": "kubectl get a",
    "```\nroot@box:/etc# kubectl get a\nroot@box:/etc# kubectl get b\n```": (
        "kubectl get a\nkubectl get b"
    ),
    "```bash\n[root@box ~]# kubectl get a\n```": "kubectl get a",
    "```\nbash-5.1# kubectl get a\n```": "kubectl get a",
    "```\n/ # kubectl get a\n```": "kubectl get a",
    # a command and its comment, without a prompt
    "```\n./a # kubectl get a\n```": "./a # kubectl get a",
    "```\n(base) me@box:~$ kubectl get a\n```": "kubectl get a",
    "```powershell\nPS C:\\Users\\me> kubectl get a\n```": "kubectl get a",
    "```\n\u276f kubectl get a\n```": "kubectl get a",
    "```console\n$ kubectl patch x \\\n> --dry-run=server\n```": (
        "kubectl patch x \\\n--dry-run=server"
    ),
    "```\n$ kubectl apply -f - <<E\n> kind: x\n> E\n```": APPLY,
    # objects
    '```json\n{"command": "kubectl get pods"}\n```': "kubectl get pods",
    '```\n{"command": "kubectl get pods"}\n```': "kubectl get pods",
    '```json {"command": "kubectl get pods"}```': "kubectl get pods",
    '```json\n{"command": "echo \'</think>\'"}\n```': "echo '</think>'",
    # reasoning
    "<think>```\nkubectl delete netpol a\n```</think>\n```\nkubectl get b\n```": "kubectl get b",
    "Or ```kubectl delete netpol a```? No.</think>kubectl get b": "kubectl get b",
    f"Or ```kubectl delete netpol a```? No.</think>\n```\n{NOTE}\n```": NOTE,
    f"<think>x</think>```\n{NOTE}\n```": NOTE,
    f"```\n{NOTE}\n```": NOTE,
    f"{NOTE}\n": NOTE,
    "kubectl get pods # <think>": "kubectl get pods # <think>",
    "kubectl apply -f - <<E\nn: </think>\nE": "kubectl apply -f - <<E\nn: </think>\nE",
    "```\nkubectl get pods\n```\n<think>```\nkubectl delete x\n```": "kubectl get pods",
    "```\nkubectl delete netpol a\n</think>\n```\nkubectl get b\n```": "kubectl get b",
    "```\nkubectl patch x -p '{\"a</think>\n```sh\nkubectl get -l 'b'\n```": "kubectl get -l 'b'",
    # a command outside a code block always extends to the end of its line
    f"{PATCH} # too risky</think>\nkubectl get b": "kubectl get b",
    "kubectl delete netpol a? Don't!\n</think>\nI'll run\nkubectl get b": "kubectl get b",
    "kubectl delete netpol a won't help</think>I'll look:\nkubectl get b": "kubectl get b",
    'kubectl annotate ns a x="foo\n</think>\nI say "hello"\nkubectl get b': "kubectl get b",
}


@pytest.mark.parametrize("reply", FOUND)
def test_command_is_found_in_replies_of_many_forms(reply):
    assert read_reply(reply) == FOUND[reply]


@pytest.mark.parametrize("reply", [*attack.attacks(), *blanket("shop")])
def test_replies_of_scripted_agents_are_read_unchanged(reply):
    assert read_reply(reply) == reply.removeprefix("```\n").removesuffix("\n```")


REFUSED = {
    "": "no command",
    "Run kubectl yourself.": "no command",
    "```\n\n```": "empty",
    "```\nkubectl \0\n```": "NUL",
    "```\nkubectl \ud800\n```": "Unicode",
    f"```\nkubectl {'x' * MAX_COMMAND_BYTES}\n```": "bytes",
    f"kubectl get {'x' * MAX_COMMAND_BYTES}": "bytes",
    f"kubectl get x {' ' * MAX_COMMAND_BYTES} --dry-run=server": "too long",
    f"{'x' * (MAX_READ_CHARS - 15)}\nkubectl get x -n y": "too long",
    # half a command
    "kubectl patch x \\": "command is incomplete .*backslash",
    "kubectl patch x \\\n\n--dry-run=server": "command is incomplete .*backslash",
    "kubectl get pods |": "command is incomplete",
    "kubectl get pods |\n\nMore": "command is incomplete",
    "kubectl get pods &&": "command is incomplete",
    "kubectl get pods ||\n": "command is incomplete",
    "kubectl get pods | while read p; do\nkubectl get $p\ndone": "command is incomplete",
    "kubectl patch x -p '{": "command is incomplete .*quote",
    'kubectl patch x -p "{': "command is incomplete .*quote",
    "kubectl apply -f - <<E\nkind: x": "command is incomplete .*here-document",
    f"```\n{DRY[:30]}\\\n```": "command is incomplete",
    "```\nkubectl get a\nkubectl patch x -p '{\n```": "command is incomplete",
    "```\nkubectl apply -f - <<E\n```\nE\n```": "command is incomplete",
    "```kubectl patch x \\```": "command is incomplete",
    '```json\n{"command": "kubectl patch x \\\\"}\n```': "command is incomplete",
    f"{PATCH}\n  --dry-run=server": "command is incomplete",
    f"```\n{PATCH}\n  --dry-run=server\n```": "command is incomplete",
    f"{PATCH} \\ \n  --dry-run=server": "command is incomplete .*spaces or tabs",
    f"```\n{PATCH} \\ \n  --dry-run=server\n```": "command is incomplete .*spaces or tabs",
    f"```\n{PATCH} \\\n  # only try\n  --dry-run=server\n```": "command is incomplete .*comment",
    f"{PATCH} ^\n  --dry-run=server": r"command is incomplete .*\^",
    f"```\n{PATCH} ^\n  --dry-run=server\n```": r"command is incomplete .*\^",
    f"{PATCH}\n\n  --dry-run=server": "command is incomplete",
    f"{PATCH}\n  | cat": "command is incomplete",
    f"```\n{PATCH} \u2014dry-run=server\n```": "command is incomplete .*no hyphen",
    "```bash\nkubectl get pods": "no closing backticks",
    "```bash\nkubectl get pods\n``": "no closing backticks",
    "```sh\nkubectl get a\n```sh\nkubectl get b\n```": "inside another code block",
    # prose
    "kubectl is the tool I would use.": "no command",
    "kubectl - the tool": "no command",
    "kubectl delete netpol x is too risky": "no command",
    "kubectl delete netpol everything.": "no command",
    "kubectl patch would help, then\nsee": "no command",
    "kubectl isn't it": "no command",
    f"{PATCH} shuts everything, so no": "a sentence",
    f"{PATCH} breaks adservice": "a sentence",
    "kubectl delete networkpolicy x fixes everything here": "a sentence",
    "kubectl delete networkpolicy x won't, I'd say": "a sentence",
    "kubectl delete networkpolicy x - removes x policy": "a sentence",
    "kubectl delete networkpolicy x -> removes x policy": "a sentence",
    "kubectl delete networkpolicy a then kubectl apply b": "a sentence",
    "kubectl delete networkpolicy x: removes x": "a sentence",
    "kubectl apply changes": "a sentence",
    "kubectl delete networkpolicy x; better leave": "a sentence",
    "kubectl delete networkpolicy x; that would break y": "no command",
    # text that the shell would not run as intended
    "```console\n$ kubectl get pods\nNAME READY\n```": "without a prompt",
    "kubectl patch x \\\n> --dry-run=server": "prompt '>'",
    "```\nkubectl patch x \\\n> --dry-run=server\n```": "prompt '>'",
    "```\n# kubectl get pods\n```": "comment",
    "```\n  # kubectl get pods\n```": "comment",
    "```\nroot@box:~# kubectl get a\nNAME READY\n```": "without a prompt",
    "```cat <<'E' | kubectl apply -f -\nkind: x\nE\n```": "on its own line",
    "```bash -c 'kubectl get pods'\n```": "empty",
    "```bash x.sh```": "on its own line",
    '```json\n{"command": "kubectl", "args": ["get"]}\n```': "neither",
    '```json\n{"command": "kubectl get a", "command": "kubectl get b"}\n```': "neither",
    '```json\n{"command": ["kubectl"]}\n```': "neither",
    "```json\n[" + "[" * 50_000 + "\n```": "neither",
    "```yaml\nkind: NetworkPolicy\n```\n```\nkubectl get x\n```": "neither",
    "```bash\necho\n~~~\nkubectl get b\n~~~\n```": "contains a code block",
    # reasoning
    "<think>\n```\nkubectl delete netpol a\n```": "opened and never closed",
    "Hm. <reasoning>```kubectl delete netpol a```": "opened and never closed",
    "<think>kubectl delete netpol a</think>": "before the end of the reasoning",
    "```\nkubectl delete netpol a\n``` </thinking> Better not.": "before the end of the reasoning",
    "kubectl get pods </think>": "before the end of the reasoning",
    f"Maybe:\n{PATCH} # too risky</think>\nI give up.": "before the end of the reasoning",
    "<think>```\nkubectl delete netpol a\n</think>\n```": "no closing backticks",
}


@pytest.mark.parametrize("reply", REFUSED, ids=lambda reply: f"{reply[:20]}-{reply[-40:]}")
def test_unusable_reply_is_refused_with_a_reason(reply):
    with pytest.raises(ReplyRefused, match=REFUSED[reply]) as refused:
        read_reply(reply)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


pieces = st.sampled_from(
    [
        *("```", "````", "~~~", "`", "bash", "json", 'sh t="x"', "> ", "- ", "\n", "\n", "\n", " "),
        *("kubectl get a", "kubectl delete b", "kubectl is ", "$ ", "\\", "|", "&&", "'", '"', "#"),
        *("<<E\n", "\nE\n", "<think>", "</think>", '{"command": "kubectl c"}', "é"),
    ]
)


@THOROUGH
@given(st.lists(pieces, max_size=14).map("".join))
def test_command_read_from_a_reply_is_complete_and_outside_reasoning(text):
    try:
        command = read_reply(text)
    except ReplyRefused:
        return
    assert command
    assert not command_line.lacks(command)
    # line by line, since prompts and quotation marks are removed
    _, _, rest = text.rpartition("</think>") if "</think>" not in command else ("", "", text)
    assert "<think>" not in rest[: rest.find(command.partition("\n")[0])]
    for line in command.splitlines():
        found = rest.find(line.strip())
        assert found >= 0
        rest = rest[found + len(line.strip()) :]


@THOROUGH
@given(
    command=st.sampled_from([DRY, APPLY, NOTE, "kubectl get a\nkubectl get b"]),
    fence=st.sampled_from(["```", "````", "~~~"]),
    info=st.sampled_from(["", "bash", 'sh title="x"', "{.sh}"]),
    data=st.data(),
)
def test_truncated_reply_gives_the_complete_command_or_an_error(command, fence, info, data):
    reply = f"So:\n{fence}{info}\n{command}\n{fence}\nThat is all."
    assert read_reply(reply) == command
    with suppress(ReplyRefused):
        assert read_reply(reply[: data.draw(st.integers(0, len(reply)))]) == command


@THOROUGH
@given(
    thought=st.lists(pieces.filter(lambda piece: piece != "</think>"), max_size=9).map("".join),
    reply=st.sampled_from([f"```\n{NOTE}\n```", f"Go:\n~~~sh\n{APPLY}\n~~~", DRY]),
)
def test_reasoning_before_a_reply_does_not_change_the_command(thought, reply):
    assert read_reply(f"<think>{thought}</think>{reply}") == read_reply(reply)


HOSTILE = {
    "backticks": "`" * 400_000,
    "glued": "```\n" + "(x```\n" * 45_000,
    "prose": "kubectl get is '\n" * 16_000,
    "quotes": "> " * 200_000 + "```\n" + "> x\n" * 90_000,
    "thoughts": "```\na\n```</think>" * 30_000,
    "opened": "<think></think>x" * 30_000 + "```\n" * 9,
    "markers": "```\n" + "'</think>'" * 20_000 + "\n```",
    "texts": "kubectl get " + "''" * 30_000 + " |\n" * 9,
    "digits": "kubectl delete x y " + "1" * 60_000,
    "comments": "kubectl get (" + "#'\n'</think>'\n" * 4_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_huge_reply_is_refused_in_linear_time(name):
    with pytest.raises(ReplyRefused):
        read_reply(HOSTILE[name])
