"""Reported replies of models: one row per report, with its source and the parsed result.

The situations are public; the texts were written for this test. A row has a reply and the parsed
command, or the reason why the reply is refused. Add a row for each new report.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from netarena.errors import ReplyRefused
from netarena_k8s import reply as k8s
from netarena_malt import reply as malt
from netarena_route import declaration as route

MOVE = {"machine": "r0", "command": "ip route"}
JSON = json.dumps(MOVE)
TICKS = {"machine": "h1", "command": "echo '```x```'"}
CODE = "def process_graph(graph_data):\n    return {'type': 'text', 'data': 1}"
OTHER = "```python\ndef process_graph(graph_data):\n    return 2\n```"
WRONG, RIGHT = "```\nkubectl delete ns shop\n```", "```\nkubectl get pods\n```"


class Row(NamedTuple):
    """One reported reply; ``reads`` is the parsed result, or None if the reply is refused."""

    source: str
    #: short description
    what: str
    reader: str
    reply: str
    reads: object


ROWS = (
    Row("vectorize-io/hindsight#645", "an object in a fence", "route",
        f"```json\n{JSON}\n```", MOVE),
    Row("redis/agent-memory-server#236", "an object in a fence with words around it", "route",
        f"Sure, here it is:\n\n```json\n{JSON}\n```\n\nThat shows the routes.", MOVE),
    Row("sreerevanth/repopilot#157", "an object without a fence, in prose", "route",
        f"I would look at the routes first: {JSON} Let me know.", MOVE),
    Row("vectorize-io/hindsight#2542", "backticks in a value", "route",
        f"```json\n{json.dumps(TICKS)}\n```", TICKS),
    Row("vectorize-io/hindsight#2542", "an empty fence", "route", "```json\n```", None),
    Row("NVIDIA-NeMo/labs-OO-Agents#238", "a fence of another language before it", "route",
        f"Not this:\n```bash\nls\n```\nbut:\n```json\n{JSON}\n```", MOVE),
    Row("mem0ai/mem0#4414", "an object that ends in the middle", "route",
        f"```json\n{JSON[:-14]}", None),
    Row("HKUDS/DeepTutor#263", "a fence without a language", "route", f"```\n{JSON}\n```", MOVE),
    Row("microsoft/TypeAgent#2288", "a command in a plain fence", "k8s",
        "```\nkubectl get networkpolicies\n```", "kubectl get networkpolicies"),
    Row("jrolf/thoughtflow#16", "a command in single backticks", "k8s",
        "Run `kubectl get pods` please.", None),
    Row("gettranslatebot/translatebot-django#31", "a program in a fence", "malt",
        f"```python\n{CODE}\n```", CODE),
    Row("vectorize-io/hindsight#2542", "a thought in a fence of its own before it", "malt",
        f"```text\nfirst I count\n```\n```python\n{CODE}\n```", CODE),
    Row("a situation of test_command", "a command behind the prompt of a shell", "route",
        '{"machine": "r0", "command": "root@r0:~# ip route"}', MOVE),
    Row("a situation of test_command", "a command behind a short prompt", "route",
        '{"machine": "r0", "command": "$ ip route"}', MOVE),
    Row("a situation of test_command", "a session with its output", "route",
        '{"machine": "r0", "command": "$ ip route\\ndefault via 10.0.0.1"}', None),
    Row("a situation of test_command", "a command in an object behind a prompt", "k8s",
        '```json\n{"command": "root@box:~# kubectl get pods"}\n```', "kubectl get pods"),
    # reasoning in special markers of models
    Row("RooCodeInc/Roo-Code#8522", "a thought in [THINK]", "k8s",
        f"[THINK]{WRONG}[/THINK]{RIGHT}", "kubectl get pods"),
    Row("RooCodeInc/Roo-Code#8522", "the same, cut off", "k8s", f"[THINK]{WRONG}", None),
    Row("ml-explore/mlx-lm", "a thought of LongCat", "k8s",
        f"<longcat_think>{WRONG}</longcat_think>{RIGHT}", "kubectl get pods"),
    Row("vllm-project/vllm", "a thought of MiniMax M3", "k8s",
        f"<mm:think>{WRONG}</mm:think>{RIGHT}", "kubectl get pods"),
    Row("openclaw/openclaw", "a thought in <antThinking>", "malt",
        f"<antThinking>{OTHER}</antThinking>\n```python\n{CODE}\n```", CODE),
    Row("open-webui/open-webui", "a thought that Open WebUI rendered", "k8s",
        f'<details type="reasoning" done="true" duration="3">\n<summary>Thought</summary>\n{WRONG}'
        f"\n</details>\n{RIGHT}", "kubectl get pods"),
    Row("open-webui/open-webui", "the same, cut off", "k8s",
        f'<details type="reasoning" done="false">\n{WRONG}', None),
    Row("open-webui/open-webui", "other details", "k8s",
        f"<details><summary>Why</summary>policies</details>\n{RIGHT}", "kubectl get pods"),
    Row("NousResearch/hermes-agent#6149", "a thought in <thought>", "route",
        f'<thought>{{"machine": "r9", "command": "reboot"}}</thought>\n{JSON}', MOVE),
    Row("NousResearch/hermes-agent#6149", "the same, cut off", "route",
        f"<thought>maybe {JSON}", None),
    Row("NousResearch/hermes-agent#67632", "a channel of thought whose markers differ", "k8s",
        f"<|channel>thought\n{WRONG}<channel|>{RIGHT}", "kubectl get pods"),
    Row("scouzi1966/maclocal-api#121", "channels of the harmony format", "malt",
        f"<|channel|>analysis<|message|>{OTHER}<|end|><|start|>assistant<|channel|>final"
        f"<|message|>```python\n{CODE}\n```<|return|>", CODE),
    Row("scouzi1966/maclocal-api#121", "the same, cut off before its answer", "malt",
        f"<|channel|>analysis<|message|>{OTHER}", None),
    Row("scouzi1966/maclocal-api#121", "a bare command in the last channel", "k8s",
        f"<|channel|>analysis<|message|>{WRONG}<|end|><|start|>assistant<|channel|>final<|message|>"
        "kubectl get pods<|return|>", "kubectl get pods"),
    Row("Augustas11/macprovider#743", "channels without their special tokens", "k8s",
        f"analysisWe need to act. {WRONG}assistantfinal{RIGHT}", "kubectl get pods"),
    Row("Augustas11/macprovider#743", "the same with a word behind it", "k8s",
        f"analysisWe need to act. {WRONG}assistantfinalRun:\n{RIGHT}", "kubectl get pods"),
    Row("SillyTavern/SillyTavern#2793", "a reflection after the thought", "k8s",
        f"<thinking>hm</thinking><reflection>{WRONG}</reflection>{RIGHT}", "kubectl get pods"),
    Row("SillyTavern/SillyTavern#2793", "a reflection within it, and an answer in a tag", "k8s",
        f"<thinking>hm <reflection>{WRONG}</reflection> so</thinking>"
        "<output>kubectl get pods</output>", "kubectl get pods"),
    Row("SillyTavern/SillyTavern#2793", "the tags in a command", "k8s",
        "```\nkubectl annotate pod a note='<reflection>x</reflection> <output>'\n```",
        "kubectl annotate pod a note='<reflection>x</reflection> <output>'"),
    Row("vllm-project/vllm: parser hunyuan_a13b", "an answer in a tag after the thought", "k8s",
        f"<think>\n{WRONG}\n</think>\n<answer>\nkubectl get pods\n</answer>", "kubectl get pods"),
    Row("vllm-project/vllm: parser hunyuan_a13b", "the same around an object", "route",
        f"<think>r9?</think><answer>{JSON}</answer>", MOVE),
    Row("vllm-project/vllm: parser hunyuan_a13b", "an answer and an invented output in tags", "k8s",
        f"<command>\n{RIGHT}\n</command>\n<output>\n{WRONG}\n</output>", "kubectl get pods"),
    Row("vllm-project/vllm: parser hunyuan_a13b", "a tag in a sentence after the command", "k8s",
        f"{RIGHT}\nIt prints <name> <output> per line.", "kubectl get pods"),
    Row("vllm-project/vllm: parser hunyuan_a13b", "a response after an action", "route",
        f"<action>{JSON}</action>\n<response>I will wait.</response>", MOVE),
    Row("ollama/ollama#15754", "a thought of MedGemma", "k8s",
        f"<unused94>thought\n{WRONG}<unused95>{RIGHT}", "kubectl get pods"),
    Row("ollama/ollama#15754", "the same, cut off", "k8s", f"<unused94>thought\n{WRONG}", None),
    Row("sbenodiz/ai_agent_ha#49", "a thought between special tokens", "malt",
        f"<|thinking|>{OTHER}</|thinking|>```python\n{CODE}\n```", CODE),
    Row("ggml-org/llama.cpp: Apriel", "an answer between two lines", "k8s",
        f"Here are my reasoning steps:\n{WRONG}\n[BEGIN FINAL RESPONSE]\n{RIGHT}\n"
        "[END FINAL RESPONSE]", "kubectl get pods"),
    Row("ggml-org/llama.cpp: Apriel", "the same as a bare command, opened by the template", "k8s",
        f"{WRONG}\n[BEGIN FINAL RESPONSE]\nkubectl get pods\n[END FINAL RESPONSE]\n<|end|>",
        "kubectl get pods"),
    Row("vllm-project/vllm#14202", "a thought between two sentences", "k8s",
        f"Here is my thought process: {WRONG}\nHere is my response:\n{RIGHT}",
        "kubectl get pods"),
    Row("vllm-project/vllm#14202", "one of the sentences as plain English", "k8s",
        f"Here is my thought process: look at the pods first.\n{RIGHT}", "kubectl get pods"),
)  # fmt: skip

READERS = {"route": route.read_reply, "k8s": k8s.read_reply, "malt": malt.extract_code}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.source}: {row.what}")
def test_reply_is_parsed_or_refused_as_expected(row: Row) -> None:
    read = READERS[row.reader]
    if row.reads is None:
        with pytest.raises(ReplyRefused) as refused:
            read(row.reply)
        assert str(refused.value).strip()
    else:
        found = read(row.reply)
        assert (found.strip() if isinstance(found, str) else found) == row.reads
