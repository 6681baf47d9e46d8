"""What people report of models' replies, a row each: by whom, in short, and what is read.

The situations are public, the texts our own. A row is a reply and what counts of it, or why it is
refused. The next one is one more row.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from netarena.errors import ReplyRefused
from netarena_k8s import reply as k8s
from netarena_malt import reply as malt
from netarena_route import reply as route

MOVE = {"machine": "r0", "command": "ip route"}
JSON = json.dumps(MOVE)
TICKS = {"machine": "h1", "command": "echo '```x```'"}
CODE = "def process_graph(graph_data):\n    return {'type': 'text', 'data': 1}"


class Row(NamedTuple):
    """One situation; ``reads`` is what counts, or None where it is refused."""

    source: str
    #: in short
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
)  # fmt: skip

READERS = {"route": route.read_reply, "k8s": k8s.read_reply, "malt": malt.extract_code}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.source}: {row.what}")
def test_a_reply_is_read_as_people_mean_it(row: Row) -> None:
    read = READERS[row.reader]
    if row.reads is None:
        with pytest.raises(ReplyRefused) as refused:
            read(row.reply)
        assert str(refused.value).strip()
    else:
        found = read(row.reply)
        assert (found.strip() if isinstance(found, str) else found) == row.reads
