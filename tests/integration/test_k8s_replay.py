"""What a real API server answered to kubectl, and what ours answers to the same commands."""

import asyncio
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from netarena_k8s.boutique import boutique
from netarena_k8s.embedded import Embedded
from netarena_k8s.kubectl import program
from tests.conftest import ROOT, SHARED_DATA

#: a kubectl of the recording's version (1.34) leaves fewer differences
KUBECTL = Path(os.environ.get("NETARENA_KUBECTL") or program())
DATA = SHARED_DATA / "k8s"
#: placeholders of the recording and what differs between any two clusters
NORMAL = [
    (r"[EIW]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ", "<klog> "),
    (r"<server>|\b127\.0\.0\.1:\d{2,}", "SERVER"),
    (r'[\\\\"]*<(time|rv|uid|age|tmp)>[\\\\"]*', "~"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "~"),
    (r'"~"', "~"),
    (r'"?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"?', "~"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \+0000 UTC", "~"),
    (r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d \+0000", "~"),
    (r'(resourceVersion"?: ?)"?\d+"?', r"\1~"),
    (r"\b(10|172)\.\d+\.\d+\.\d+\b", "IP"),
    (r"\b[0-9a-f]{64}\b", "HASH"),
    (r'(?<="serverAddress":")[^"]*', "SERVER"),
    (r'("(?:gitCommit|goVersion)": ).*', r"\1VERSION"),
    (r"(?<=80:)3\d{4}\b", "NODE-PORT"),
    # before the names of pods: a random number may look like the end of one
    (r'"?/tmp/\S*kubectl-edit-\d+\.yaml"|~/edit\.yaml"', "EDITED"),
    (r"-[bcdfghjklmnpqrstvwxz2456789]{8,10}(-[bcdfghjklmnpqrstvwxz2456789]{5})?\b", "-HASH"),
    (r"\b(\d+[smh]){1,2}\b", "~"),
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
    "kubectl is a newer one (the recording's: 1.34.2), with other words for the same answers.": (
        47,
        51,
        64,
        65,
        66,
        83,
        122,
    ),
    "The words that explain fields are our own.": (54, 55),
}
NEWER, WORDS = map(set, DIFFERENCES.values())
KNOWN = WORDS if "NETARENA_KUBECTL" in os.environ else NEWER | WORDS
#: makes a shop's objects what they are when a client has applied them
AS_APPLIED = (
    "kubectl apply set-last-applied --create-annotation -f shop.yaml",
    "kubectl delete networkpolicies --all",
    "kubectl apply -f policies.yaml",
)
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
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        },
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output = await process.communicate(one.get("stdin", "").encode())
    return process.returncode, *(part.decode() for part in output)


async def prepare(folder, shop, *commands):
    """A new shop whose objects were applied by a client, as the recorded ones were."""
    for role, access in (("operator", shop.access), ("admin", shop.admin_access)):
        # the recording's kubeconfig has other names
        text = access.kubeconfig.replace(f'"{role}"', '"admin"').replace("netarena", "realcluster")
        (folder / role).write_text(text)
    for command in commands:
        status, _, _ = await kubectl(folder, {"as": "admin", "command": command})
        assert status == 0


async def replay(folder, numbers):
    """(number, record, exit, stdout, stderr, the policy's spec afterwards) of each."""
    records, found = recorded(), []
    documents = list(yaml.safe_load_all((DATA / "boutique.yaml").read_text()))
    for one in documents:
        one["metadata"]["annotations"] = {}  # kubectl apply notes it so
    for name, policies in (("policies.yaml", True), ("shop.yaml", False)):
        chosen = [one for one in documents if (one["kind"] == "NetworkPolicy") == policies]
        (folder / name).write_text(yaml.safe_dump_all(chosen))
    (folder / "bin").mkdir()
    (folder / "bin" / "kubectl").symlink_to(KUBECTL)
    async with Embedded(namespace="default") as cluster:
        shop = None
        for number in numbers:
            one = records[number]
            writes = "spec_after" in one
            if shop is None or writes:
                shop = await cluster.deploy(boutique())
                commands = ["kubectl apply -f adservice.yaml"] if writes else AS_APPLIED
                await prepare(folder, shop, *commands)
            if "label netpol" in one["command"]:
                await prepare(folder, shop, "kubectl label netpol adservice a=b")
            if "bad.yaml --validate=ignore" in one["command"]:  # it had been there before
                await prepare(folder, shop, one["command"])
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
