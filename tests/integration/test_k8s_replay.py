"""Compare the embedded API server's responses to kubectl with those of real API servers.

The responses of one real server were recorded. A second real server, which KUBECONFIG names, gets
the same commands from the same kubectl as the embedded one. In that comparison, a newer kubectl's
changes of wording do not count as differences.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from netarena.sandbox.caller import Caller
from netarena_k8s.embedded.cluster import Embedded
from netarena_k8s.kubectl import program
from netarena_k8s.world.boutique import boutique
from tests.conftest import ROOT, SHARED_DATA

#: kubectl of the recording's version (1.34) causes fewer differences
KUBECTL = Path(os.environ.get("NETARENA_KUBECTL") or program())
DATA = SHARED_DATA / "k8s"
#: patterns for placeholders of the recording and for values that differ between any two clusters
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
    # must precede the pattern for pod names, because a random number may look like the end of such
    # a name. Patterns for names with random letters must precede the pattern for ages, because
    # "5h28s" may be either.
    (r'"?/tmp/\S*kubectl-edit-\d+\.yaml"|~/edit\.yaml"', "EDITED"),
    (r"-[bcdfghjklmnpqrstvwxz2456789]{8,10}(-[bcdfghjklmnpqrstvwxz2456789]{5})?\b", "-HASH"),
    (r"(emailservice|kube-api-access)-\w{5}\b", r"\1-HASH"),
    (r"\b(\d+[smh]){1,2}\b", "~"),
    (r"realcluster-control-plane|netarena-control-plane", "NODE"),
    (r"\brealcluster/standin|netarena/standin", "IMAGE"),
    (r"\b(realcluster|netarena)\b", "CLUSTER"),
    (r"pod-template-hash[:=] ?\w+", "HASH"),
    (r'Invalid value: "\{.*\}": ', "Invalid value: OBJECT: "),
    (r"[ \t]+", " "),
    (r" (?=\n)", ""),
]


#: reason for differences, as in docs/kubectl.md -> numbers of the recorded commands
DIFFERENCES = {
    "The kubectl of the Python package is newer than that of the recording (1.34.2) and words some "
    "answers differently.": (
        47,
        51,
        64,
        65,
        66,
        83,
        122,
    ),
    "`kubectl explain` describes fields in NetArena's own words.": (54, 55),
}
NEWER, WORDS = map(set, DIFFERENCES.values())
KNOWN = WORDS if "NETARENA_KUBECTL" in os.environ else NEWER | WORDS
#: commands for the real cluster in addition to the recorded ones: the whole policy, and metadata of
#: another kind
EXPLAINED = (
    "kubectl explain netpol --recursive",
    "kubectl explain netpol.metadata",
    "kubectl explain netpol.spec.policyTypes",
    "kubectl explain netpol.spec.egress.ports.protocol",
    "kubectl explain netpol.spec.egress.ports.port",
    "kubectl explain deployments.metadata --recursive",
)
#: commands that make the deployed objects look as if a client had applied them
AS_APPLIED = (
    "kubectl apply set-last-applied --create-annotation -f shop.yaml",
    "kubectl delete networkpolicies --all",
    "kubectl apply -f policies.yaml",
)
#: commands that replace the stand-ins on a real cluster with the objects of the recorded cluster
AS_RECORDED = (
    "kubectl delete deployments,services,networkpolicies --all --cascade=foreground",
    "kubectl wait pods --all --for=delete --timeout=120s",
    "kubectl apply -f shop.yaml",
    "kubectl apply -f policies.yaml",
    "kubectl wait deployments --all --for=condition=Available --timeout=180s",
)
#: commands that restore the policy after a command has changed it
RENEWED = ("kubectl delete networkpolicy adservice", "kubectl apply -f adservice.yaml")
#: version of the recorded cluster, which the embedded cluster reports too
VERSION = "v1.34.2"
#: parts of an answer that are compared; "spec" is the policy's spec after the command
ANSWER = ("exit", "stdout", "stderr", "spec")
#: port that the recorded KUBE_EDITOR replaces
PORT = "9555"
#: number of recorded commands, and number of commands in one test
ALL, CHUNK = 158, 20


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


async def prepare(folder, *commands):
    for command in commands:
        status, _, errors = await kubectl(folder, {"as": "admin", "command": command})
        assert status == 0, (command, errors)


def give(folder, role, kubeconfig):
    """Write a kubeconfig with the names of the recording's kubeconfig."""
    text = kubeconfig.replace(f'"{role}"', '"admin"').replace("netarena", "realcluster")
    (folder / role).write_text(text)


class Ours:
    """Source of deployments on the embedded cluster: a new deployment for each command that
    writes."""

    def __init__(self, cluster, folder, heard):
        self._cluster = cluster
        self._folder = folder
        self._heard = heard
        self._shop = None

    async def renew(self, *, writes):
        """Deploy an application whose objects were applied by a client, like the recorded
        objects."""
        self._shop = await self._cluster.deploy(boutique())
        await self._heard.enter_async_context(self._shop.admit(Caller(os.getpid())))
        give(self._folder, "operator", self._shop.access.kubeconfig)
        give(self._folder, "admin", self._shop.admin_access.kubeconfig)
        await prepare(
            self._folder, *(["kubectl apply -f adservice.yaml"] if writes else AS_APPLIED)
        )

    async def spec(self):
        policies = {each.name: each.spec for each in (await self._shop.look()).policies}
        return policies["adservice"]


class Theirs:
    """A deployment on a real cluster, in which the recorded objects replace the stand-ins."""

    def __init__(self, cluster, folder, shop):
        self._cluster = cluster
        self._folder = folder
        self._space = shop.access.namespace
        give(folder, "operator", shop.access.kubeconfig)

    async def renew(self, *, writes):
        await prepare(self._folder, *(RENEWED if writes else AS_RECORDED))

    async def spec(self):
        found = await self._cluster.api.find("NetworkPolicy", self._space)
        return next(one["spec"] for one in found if one["metadata"]["name"] == "adservice")


def desk(folder, image="realcluster/standin:1"):
    """Make the working directory of the commands: kubectl, and the files that the commands name."""
    folder.mkdir(exist_ok=True)
    for path in DATA.glob("*.yaml"):
        shutil.copy(path, folder)
    text = (DATA / "boutique.yaml").read_text().replace("realcluster/standin:1", image)
    documents = list(yaml.safe_load_all(text))
    for one in documents:
        one["metadata"]["annotations"] = {}  # kubectl apply records objects with this empty field
    for name, policies in (("policies.yaml", True), ("shop.yaml", False)):
        chosen = [one for one in documents if (one["kind"] == "NetworkPolicy") == policies]
        (folder / name).write_text(yaml.safe_dump_all(chosen))
    (folder / "bin").mkdir()
    (folder / "bin" / "kubectl").symlink_to(KUBECTL)
    return folder


def typed(command, space):
    """Return a recorded command as an operator enters it in another namespace."""
    command = re.sub(r"\bdefault\b", space, command)
    if command == "kubectl get netpol -A -o name":  # other namespaces have policies too
        command += f" --field-selector=metadata.namespace={space}"
    return command


async def kept_by_the_server(folder):
    """Return the numbers in a policy that the server assigns."""
    line = "kubectl get netpol adservice -o jsonpath={.metadata.uid}/{.metadata.resourceVersion}"
    status, told, errors = await kubectl(folder, {"as": "operator", "command": line})
    assert status == 0, errors
    return told


async def replay(folder, numbers, shop, space="default"):
    """Run the recorded commands with these numbers; return the ANSWER of each by its number."""
    records, found = recorded(), {}
    for number in numbers:
        one = records[number]
        writes = "spec_after" in one
        if not found or writes:
            await shop.renew(writes=writes)
            # the recorded editor replaces each occurrence of the port; in a uid or version this
            # would cause a conflict
            while PORT in await kept_by_the_server(folder):
                await shop.renew(writes=True)
        if "label netpol" in one["command"]:
            await prepare(folder, "kubectl label netpol adservice a=b")
        # the recorded cluster already had this policy
        if "bad.yaml --validate=ignore" in one["command"]:
            await prepare(folder, one["command"])
        if space != "default":
            one["command"] = typed(one["command"], space)
        found[number] = (*await kubectl(folder, one), await shop.spec())
    return found


def differs(theirs, ours):
    """Return the parts of answers that differ: number -> part -> both values."""
    wrong = {}
    for number, answer in ours.items():
        pairs = dict(zip(ANSWER, zip(theirs[number], answer, strict=True), strict=True))
        for key in ("stdout", "stderr"):
            pairs[key] = tuple(normal(text) for text in pairs[key])
        if found := {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}:
            wrong[number] = found
    return wrong


def fields(explanation):
    """Return the lines of an explanation that describe fields, types, values and requirements."""
    told = r"[A-Z]+:.*| +\S+\t<.*| +enum: .*| +Possible enum values:$| +- `\S+`"
    return re.findall(f"^(?:{told})", explanation, re.MULTILINE)


def compare(theirs, ours, known):
    """Assert that both answers are equal except for the known differences."""
    wrong = differs(theirs, ours)
    assert {number: wrong[number] for number in wrong.keys() - known} == {}
    # a difference that no longer occurs must be removed from the table
    assert known & ours.keys() == wrong.keys()


@pytest.mark.slow
@pytest.mark.requires("shared")
@pytest.mark.parametrize("start", range(0, ALL, CHUNK))
def test_kubectl_output_differs_from_a_real_api_server_only_as_documented(start, tmp_path):
    folder = desk(tmp_path)

    async def scene():
        async with (
            Embedded(namespace="default") as cluster,
            contextlib.AsyncExitStack() as heard,
        ):
            numbers = range(start, min(start + CHUNK, ALL))
            return await replay(folder, numbers, Ours(cluster, folder, heard))

    ours = asyncio.run(scene())
    theirs = {
        number: (one["exit"], one["stdout"], one["stderr"], one.get("spec_after", ours[number][3]))
        for number, one in enumerate(recorded())
        if number in ours
    }
    compare(theirs, ours, KNOWN)


@contextlib.asynccontextmanager
async def shop_on(context):
    """Yield a real cluster, and a new deployment on it."""
    from netarena_k8s.real.cluster import RealCluster

    cluster = RealCluster(context)
    await cluster.start()
    try:
        shop = await cluster.deploy(boutique())
        try:
            yield cluster, shop
        finally:
            await shop.close()
    finally:
        await cluster.stop()


def asked(context, *arguments):
    """Return the response to the cluster's own administrator, parsed from JSON."""
    command = [KUBECTL, "--context", context, *arguments]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def admin_of(context, space):
    """Return the kubeconfig of the cluster's own administrator, for a namespace."""
    config = asked(context, "config", "view", "--raw", "--flatten", "--minify", "-o", "json")
    config["contexts"][0]["context"]["namespace"] = space
    return json.dumps(config)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.requires("cluster", "shared")
def test_kubectl_output_differs_from_a_real_cluster_only_as_documented(cluster, tmp_path):
    from netarena_k8s.real.cluster import IMAGE

    version = asked(cluster, "get", "--raw", "/version")["gitVersion"]
    if version != VERSION:
        pytest.skip(f"the embedded cluster answers as {VERSION}, this one is {version}")

    async def scene():
        async with shop_on(cluster) as (real, shop):
            space = shop.access.namespace
            there, here = desk(tmp_path / "there", IMAGE), desk(tmp_path / "here")
            (there / "admin").write_text(admin_of(cluster, space))
            async with (
                Embedded(namespace=space) as embedded,
                contextlib.AsyncExitStack() as heard,
                shop.admit(Caller(os.getpid())),
            ):
                answers = await asyncio.gather(
                    replay(there, range(ALL), Theirs(real, there, shop), space),
                    replay(here, range(ALL), Ours(embedded, here, heard), space),
                )
                return *answers, *[
                    [await kubectl(folder, {"as": "operator", "command": one}) for one in EXPLAINED]
                    for folder in (there, here)
                ]

    theirs, ours, told_there, told_here = asyncio.run(scene())
    # the exit statuses match the recording, so no command failed for lack of a cluster
    assert [answer[0] for answer in theirs.values()] == [one["exit"] for one in recorded()]
    compare(theirs, ours, WORDS)
    for number in WORDS:  # the recording has only the first lines of these answers
        assert fields(ours[number][1]) == fields(theirs[number][1]) != []
    for command, there, here in zip(EXPLAINED, told_there, told_here, strict=True):
        assert (here[0], fields(here[1])) == (0, fields(there[1])), command


@pytest.mark.requires("shared")
def test_kubectl_page_lists_every_difference():
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
