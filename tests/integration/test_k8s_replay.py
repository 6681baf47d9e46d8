"""What a real API server answered to kubectl, and what ours answers to the same commands."""

import asyncio
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from netarena_k8s.boutique import boutique
from netarena_k8s.embedded import NAMESPACE, Embedded
from tests.conftest import ROOT, SHARED_DATA

BIN = Path(sys.executable).parent
DATA = SHARED_DATA / "k8s"
#: placeholders of the recording and what differs between any two clusters
NORMAL = [
    (r'[\\\\"]*<(time|rv|uid|age|tmp|server)>[\\\\"]*', "~"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "~"),
    (r'"~"', "~"),
    (r'"?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"?', "~"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \+0000 UTC", "~"),
    (r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d \+0000", "~"),
    (r'(resourceVersion"?: )"?\d+"?', r"\1~"),
    (r"\b(10|172)\.\d+\.\d+\.\d+\b", "IP"),
    (r"\b[0-9a-f]{64}\b", "HASH"),
    (r"-[bcdfghjklmnpqrstvwxz2456789]{8,10}(-[bcdfghjklmnpqrstvwxz2456789]{5})?\b", "-HASH"),
    (r"\b(\d+[smh]){1,2}\b", "~"),
    (r'"?/tmp/\S*kubectl-edit-\d+\.yaml"|~/edit\.yaml"', "EDITED"),
    (rf"\b{NAMESPACE}\b", "default"),
    (r"realcluster-control-plane|netarena-control-plane", "NODE"),
    (r"\brealcluster/standin|netarena/standin", "IMAGE"),
    (r"\b(realcluster|netarena)\b", "CLUSTER"),
    (r"pod-template-hash[:=] ?\w+", "HASH"),
    (r"(emailservice|kube-api-access)-\w{5}\b", r"\1-HASH"),
    (r'Invalid value: "\{.*\}": ', "Invalid value: OBJECT: "),
    (r"[ \t]+", " "),
    (r" (?=\n)", ""),
]


#: numbers of recorded commands -> what differs, as docs/kubectl.md has it
DIFFERENCES = {
    "Pods of the shop have no readiness probe, and their image is pulled IfNotPresent.": (
        23,
        29,
        47,
    ),
    "The shop has a namespace of its own: no service `kubernetes`, no `frontend-external`.": (
        24,
        30,
        31,
    ),
    "Services, deployments carry no last-applied annotation, nor do policies before the first "
    "client-side apply: it would show the healthy ones.": (2, 3, 5, 25),
    "The server says of which build it is.": (38,),
    "The namespace is `shop`; in `default`, which the path names, the operator has no rights.": (
        39,
    ),
    "Addresses, user and cluster are this episode's.": (40, 53),
    "kubectl is a newer one (the recording's: 1.34.2).": (51, 66, 83, 122),
    "The words that explain fields are our own.": (54, 55),
    "A refused `exec` is told by the newer kubectl as an upgrade that fails, with the same "
    "403 text.": (64, 65),
    "There is no OpenAPI v2, which kubectl asks for a version that the server does not have: "
    "another refusal.": (132,),
    "The recorded cluster had the object from before.": (152,),
}
KNOWN = {number for numbers in DIFFERENCES.values() for number in numbers}
#: commands of one test
CHUNK = 20


def normal(text):
    for pattern, word in NORMAL:
        text = re.sub(pattern, word, text)
    return text.strip()


def recorded():
    with (DATA / "kubectl-real.jsonl").open() as lines:
        return [json.loads(line) for line in lines]


async def kubectl(folder, one):
    process = await asyncio.create_subprocess_exec(
        shutil.which("bash"), "-c", one["command"],
        cwd=folder,
        env={
            "KUBECONFIG": str(folder / one["as"]),
            "KUBECACHEDIR": str(folder / "cache"),
            "KUBE_EDITOR": one.get("KUBE_EDITOR", "true"),
            "HOME": str(folder),
            "PATH": f"{BIN}:{os.environ['PATH']}",
        },
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output = await process.communicate(one.get("stdin", "").encode())
    return process.returncode, *(part.decode() for part in output)


async def prepare(folder, shop, *commands):
    """A new shop whose policies were once applied by clients, as the recorded ones."""
    (folder / "operator").write_text(shop.access.kubeconfig)
    (folder / "admin").write_text(shop.admin_access.kubeconfig)
    for command in commands:
        status, _, _ = await kubectl(folder, {"as": "admin", "command": command})
        assert status == 0


async def replay(folder, numbers):
    """(number, record, exit, stdout, stderr, the policy's spec afterwards) of each."""
    records, found = recorded(), []
    async with Embedded() as cluster:
        shop = None
        for number in numbers:
            one = records[number]
            writes = "spec_after" in one
            if shop is None or writes:
                shop = await cluster.deploy(boutique())
            labels = ["kubectl label netpol adservice a=b"] * ("label netpol" in one["command"])
            applies = ["kubectl apply -f adservice.yaml"] * writes
            await prepare(folder, shop, *applies, *labels)
            answer = await kubectl(folder, one)
            policies = {each.name: each.spec for each in (await shop.look()).policies}
            found.append((number, one, *answer, policies["adservice"]))
    return found


def differs(one, status, output, errors, spec):
    """What of a recorded answer ours is not."""
    pairs = {
        "exit": (one["exit"], status),
        "stdout": (normal(one["stdout"]), normal(output)),
        "stderr": (normal(one["stderr"]), normal(errors)),
        "spec": (one.get("spec_after", spec), spec),
    }
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


@pytest.mark.slow
@pytest.mark.requires("shared")
@pytest.mark.parametrize("start", range(0, 158, CHUNK))
def test_kubectl_is_answered_as_by_a_real_api_server(start, tmp_path):
    for path in DATA.glob("*.yaml"):
        shutil.copy(path, tmp_path)
    numbers = range(start, min(start + CHUNK, 158))
    wrong = {
        number: found
        for number, *answer in asyncio.run(replay(tmp_path, numbers))
        if (found := differs(*answer))
    }
    assert {number: wrong[number] for number in wrong.keys() - KNOWN} == {}
    # a difference that is gone leaves the table
    assert KNOWN & set(numbers) == wrong.keys()


@pytest.mark.requires("shared")
def test_the_page_lists_every_difference():
    records = recorded()
    rows = [
        f"| {'<br>'.join(f'`{_shown(records[number])}`' for number in numbers)} | {why} |"
        for why, numbers in DIFFERENCES.items()
    ]
    page = (ROOT / "docs" / "kubectl.md").read_text()
    assert "\n".join(rows) in page


def _shown(record):
    word = record["command"] + (" (version v1beta9)" if record["command"].endswith("-f -") else "")
    return word.replace("|", "\\|")
