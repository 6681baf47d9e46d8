"""After the same commands, the embedded API server and a real one have the same policies.

The test draws sequences of commands as operators type them: patches of all types, applies,
replaces, edits, labels, and typical mistakes. NETARENA_SEQUENCES=500 runs that many sequences
instead of a few. NETARENA_SEED_OF_COMMANDS sets another seed.
"""

import asyncio
import json
import os
import random
import re
import shlex
import sys
from pathlib import Path

import pytest

from netarena.sandbox.caller import Caller
from netarena_k8s.embedded.apiserver.bound import POLICY_CHARS, POLICY_ENTRIES
from netarena_k8s.embedded.cluster import Embedded
from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.model import render_policy

pytestmark = [pytest.mark.requires("cluster"), pytest.mark.slow]

SEQUENCES = int(os.environ.get("NETARENA_SEQUENCES", "4"))
SEED = int(os.environ.get("NETARENA_SEED_OF_COMMANDS", "1"))
LENGTH = 4
KUBECTL = Path(sys.executable).with_name("kubectl")
#: values that each cluster generates or that depend on the time, and their placeholders
DRAWN = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(Z| \+0000 UTC)", "TIME"),
    (r'(resourceVersion\\*"?: ?\\*)"\d+\\*"', r"\1VERSION"),
    (r"\b(\d+[dhms])+$", "AGE"),
    (r"kubectl(_replace_|-edit-)\d+", "FILE"),
    (r"https://[\d.]+:\d+", "SERVER"),
)


class Typist:
    """Draws commands that change the policies of an application."""

    def __init__(self, rng, world):
        self._rng = rng
        self._world = world

    def type(self):
        return self._rng.choice((
            self._json_patch, self._json_patch, self._merge_patch, self._merge_patch,
            self._strategic_patch, self._apply, self._apply, self._server_apply, self._replace,
            self._edit, self._label, self._annotate, self._set_last_applied, self._read,
            self._mistake,
        ))()  # fmt: skip

    def _policy(self):
        return self._rng.choice(self._world.policies)

    def _app(self):
        return self._rng.choice([app for app in self._world.apps if app.service])

    def _peer(self):
        app = self._app()
        return self._rng.choice([
            {"podSelector": {"matchLabels": dict(app.labels)}},
            {"podSelector": {"matchExpressions": [
                {"key": "app", "operator": "In", "values": [app.name]}
            ]}},
            {"namespaceSelector": {}},
            {"namespaceSelector": {}, "podSelector": {"matchLabels": dict(app.labels)}},
            {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
            {"ipBlock": {"cidr": self._block()}},
            {"ipBlock": {"cidr": self._block(), "except": [self._block()]}},
            {"podSelector": {"matchLabels": {"app": "not a label!"}}},
            {},
        ])  # fmt: skip

    def _block(self):
        return self._rng.choice([
            "10.0.0.0/33", "010.244.0.0/16", "10.244.0.7/016", "::ffff:10.244.0.0/112", "::/0",
            "2001:DB8::/32", "2001:db8::9/64", "10.1.1.0/+24", "0.0.0.0/0", "10.1.2.0", "", 8,
        ])  # fmt: skip

    def _port(self):
        return self._rng.choice([
            {"port": self._app().ports[0].number},
            {"port": self._app().ports[0].number, "protocol": "TCP"},
            {"port": 53, "protocol": "UDP"},
            {"port": "http"},
            {"port": 8000, "endPort": 9000},
            {"port": 9000, "endPort": 8000},
            {"port": 70000},
            {"port": "Not_A_Name"},
            {"protocol": "ICMP"},
            {"port": "8080"},
            {},
        ])  # fmt: skip

    def _rule(self, key="from"):
        return {
            **({key: [self._peer()]} if self._rng.random() < 0.8 else {}),
            **({"ports": [self._port()]} if self._rng.random() < 0.6 else {}),
        }

    def _spec(self):
        return self._rng.choice([
            {"ingress": [self._rule()]},
            {"ingress": [self._rule(), self._rule()]},
            {"ingress": []},
            {"ingress": None},
            {"ingress": [{}]},
            {"egress": [self._rule("to")]},
            {"egress": None},
            {"egress": [{}]},
            {"policyTypes": ["Ingress"]},
            {"policyTypes": []},
            {"policyTypes": None},
            {"policyTypes": ["ingress"]},
            {"podSelector": {"matchLabels": dict(self._app().labels)}},
            {"podSelector": {"matchLabels": {"app": None}}},
            {"podSelector": {}},
            {"podSelector": None},
            {"ingress": [{"form": [self._peer()]}]},
            {"ingress": {"from": []}},
            {"ingress": "all"},
        ])  # fmt: skip

    def _patch(self, kind, patch):
        return (
            f"patch networkpolicy {self._policy().name} --type={kind} "
            f"-p {shlex.quote(json.dumps(patch))}"
        )

    def _json_patch(self):
        path, value = self._rng.choice([
            ("/spec/ingress", [self._rule()]),
            ("/spec/ingress/0", self._rule()),
            ("/spec/ingress/-", self._rule()),
            ("/spec/ingress/0/from/-", self._peer()),
            ("/spec/ingress/0/from/0", self._peer()),
            ("/spec/ingress/0/ports/0/port", 8080),
            ("/spec/ingress/0/ports/0/port", "8080"),
            ("/spec/ingress/0/ports/0/protocol", "UDP"),
            ("/spec/ingress/0/ports/-", self._port()),
            ("/spec/ingress/7", {}),
            ("/spec/ingress/-1", self._rule()),
            ("/spec/ingress/-2", self._rule()),
            ("/spec/ingress/00", self._rule()),
            ("/spec/ingress/+0/ports/-1", self._port()),
            ("spec/ingress", [self._rule()]),
            ("", {}),
            ("/spec/egress", [self._rule("to")]),
            ("/spec/policyTypes", ["Ingress"]),
            ("/spec/podSelector/matchLabels/app", self._app().name),
            ("/spec/podSelector/matchLabels/a~1b", "c"),
            ("/metadata/labels", {"team": "a"}),
            ("/metadata/name", "another"),
            ("/spec/nothing/there", 1),
        ])  # fmt: skip
        op = self._rng.choice(
            ["add", "replace", "remove", "add", "replace", "test", "move", "copy", "Add"]
        )
        one = {"op": op, "path": path}
        if op == "test" or (op in {"add", "replace"} and self._rng.random() < 0.9):
            one["value"] = value
        if op in {"move", "copy"}:
            one["from"] = self._rng.choice(
                ["/spec/egress", "/spec/egress", "/spec/ingress/-1", "/spec/nothing"]
            )
        return self._patch("json", [one])

    def _metadata(self):
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1", "controller": True}
        return self._rng.choice([
            {"labels": {"team": "b"}},
            {"labels": {"team": 1}},
            {"labels": None},
            {"finalizers": ["kept"]},
            {"finalizers": ["example.org/kept"]},
            {"finalizers": None},
            {"deletionTimestamp": "2020-01-01T00:00:00Z"},
            {"deletionGracePeriodSeconds": 3},
            {"creationTimestamp": None},
            {"generation": 5},
            {"ownerReferences": [{**owner, "uid": ""}]},
            {"ownerReferences": [owner, {**owner, "uid": "2"}]},
            {"managedFields": []},
        ])  # fmt: skip

    def _merge_patch(self):
        return self._patch("merge", self._rng.choice([
            {"spec": self._spec()},
            {"spec": self._spec()},
            {"spec": self._spec(), "metadata": self._metadata()},
            {"metadata": self._metadata()},
        ]))  # fmt: skip

    def _strategic_patch(self):
        return self._patch("strategic", self._rng.choice([
            {"spec": self._spec()},
            {"spec": self._spec()},
            {"spec": self._spec(), "metadata": self._metadata()},
            {"spec": {"ingress": [{"$patch": "replace"}, self._rule()]}},
            {"spec": {"podSelector": {"$patch": "replace", "matchLabels": {"app": "x"}}}},
            None,
        ]))  # fmt: skip

    def _manifest(self):
        policy = self._policy()
        manifest = render_policy(policy, "shop")
        del manifest["metadata"]["namespace"]
        manifest["spec"] = {**policy.spec, **self._spec()}
        if self._rng.random() < 0.2:
            manifest["metadata"]["labels"] = {"by": "hand"}
        if self._rng.random() < 0.1:
            manifest["spec"]["unknown"] = True
        if self._rng.random() < 0.1:
            manifest["metadata"]["name"] = "brand-new"
        if self._rng.random() < 0.05:
            manifest["kind"] = "NetworkPolicies"
        return manifest

    def _given(self, verb, *flags):
        document = json.dumps(self._manifest(), indent=1)
        return f"{verb} {' '.join(flags)} -f - <<'END'\n{document}\nEND"

    def _apply(self):
        return self._given(
            "apply", self._rng.choice(["", "", "--dry-run=server", "--validate=false"])
        )

    def _server_apply(self):
        return self._given("apply", "--server-side", self._rng.choice(["", "--force-conflicts"]))

    def _replace(self):
        return self._given("replace", self._rng.choice(["", "", "--force"]))

    def _edit(self):
        name = self._policy().name
        word = self._rng.choice(
            ["s/protocol: TCP/protocol: UDP/", "s/app: /app: x/", "s/Egress/Nonsense/", "s/q/q/"]
        )
        return f"edit netpol {name}", f"sed -i '{word}'"

    def _label(self):
        what = self._rng.choice(["team=a", "team=b --overwrite", "team-", "bad/label/x=1", "x=a b"])
        return f"label netpol {self._policy().name} {what}"

    def _annotate(self):
        return (
            f"annotate netpol {self._policy().name} note={self._rng.choice(['x', 'y'])} --overwrite"
        )

    def _set_last_applied(self):
        return self._given("apply", "set-last-applied")

    def _read(self):
        return self._rng.choice([
            f"get netpol {self._policy().name} -o yaml",
            f"get netpol {self._policy().name} -o jsonpath='{{.spec.ingress}}'",
            "get netpol",
            "get netpol -l team=a -o name",
            f"describe netpol {self._policy().name}",
            "get netpol -o custom-columns=N:.metadata.name,T:.spec.policyTypes",
        ])  # fmt: skip

    def _mistake(self):
        name = self._policy().name
        return self._rng.choice([
            f"patch netpol {name} -p '{{spec: '",
            f"patch netpol {name}",
            f"patch netpoll {name} -p '{{}}'",
            "patch netpol nosuch -p '{\"spec\":{}}'",
            f"delete netpol {name}",
            f"patch netpol {name} --type=yaml -p '{{}}'",
            f"patch netpol {name} -n default -p '{{\"spec\":{{}}}}'",
            "create -f - <<'END'\nkind: NetworkPolicy\nEND",
            "apply -f - <<'END'\n\tnot: yaml\nEND",
            f"get netpol {name} --output=xml",
        ])  # fmt: skip


async def kubectl(command, kubeconfig, folder):
    """Return exit status and output."""
    line, editor = command if isinstance(command, tuple) else (command, "false")
    running = await asyncio.create_subprocess_shell(
        f"{shlex.quote(str(KUBECTL))} {line}",
        env={
            "KUBECONFIG": str(kubeconfig),
            "KUBECACHEDIR": str(folder),
            "HOME": str(folder),
            "PATH": os.environ["PATH"],
            "KUBE_EDITOR": editor,
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await running.communicate()
    return running.returncode, output.decode()


def plain(text):
    """Return the text without the parts that differ between clusters."""
    for pattern, word in DRAWN:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return text


async def held(kubeconfig, folder):
    """Return the policies, limited to the fields that operators write."""
    _, text = await kubectl("get netpol -o json", kubeconfig, folder)
    return {
        one["metadata"]["name"]: (
            one["spec"],
            one["metadata"].get("labels"),
            one["metadata"].get("annotations"),
            one["metadata"]["generation"],
        )
        for one in json.loads(text)["items"]
    }


def compare(cluster, tmp_path, sequences):
    """Run each named sequence on both clusters, until policies or exit statuses differ.

    Returns the sequences with different results, and the outputs that differ.
    """
    from netarena_k8s.real.cluster import RealCluster
    from netarena_k8s.real.manifest import policy_manifests

    world = boutique()
    wrong, unlike = [], []

    async def scene():
        one = RealCluster(cluster)
        await one.start()
        real = await one.deploy(world)
        try:
            space = real.access.namespace
            async with Embedded(namespace=space) as embedded, real.admit(Caller(os.getpid())):
                for name, commands in sequences:
                    await real.shop.put(policy_manifests(world, space))
                    ours = await embedded.deploy(world)
                    async with ours.admit(Caller(os.getpid())):
                        await run(real, ours, name, commands)
                    await ours.close()
        finally:
            await real.close()
            await one.stop()

    async def run(real, ours, name, commands):
        both = []
        for side, access in (("real", real.access), ("embedded", ours.access)):
            folder = tmp_path / side
            folder.mkdir(exist_ok=True)
            (folder / "config").write_text(access.kubeconfig)
            both.append((folder / "config", folder / "cache"))
        typed = []
        for command in commands:
            typed.append(command)
            said = await asyncio.gather(*(kubectl(command, *where) for where in both))
            said = [(status, plain(text)) for status, text in said]
            if said[0] != said[1]:
                unlike.append((name, command, *said))
            kept = await asyncio.gather(*(held(*where) for where in both))
            if kept[0] != kept[1] or said[0][0] != said[1][0]:
                names = kept[0].keys() | kept[1].keys()
                changed = {
                    name: (kept[0].get(name), kept[1].get(name))
                    for name in names
                    if kept[0].get(name) != kept[1].get(name)
                }
                wrong.append((name, typed, said, changed))
                break

    asyncio.run(scene())
    for name, command, theirs, ours in unlike:
        print(f"--- {name}: {command}\nreal: {theirs}\nembedded: {ours}")
    for name, typed, said, changed in wrong:
        print(f"=== {name}: {typed}\n{said}\nreal, embedded: {changed}")
    return wrong, unlike


@pytest.mark.timeout(120 + 30 * SEQUENCES)
def test_random_commands_leave_the_same_policies_on_both_servers(cluster, tmp_path):
    def typed(seed):
        typist = Typist(random.Random(seed), boutique())
        return [typist.type() for _ in range(LENGTH)]

    seeds = (SEED * 100_000 + number for number in range(SEQUENCES))
    wrong, unlike = compare(cluster, tmp_path, ((seed, typed(seed)) for seed in seeds))
    print(f"{SEQUENCES} sequences: {len(wrong)} end differently, {len(unlike)} answers are unlike")
    assert wrong == []


def test_policy_size_limits_are_the_same_on_both_servers(cluster, tmp_path):
    def merged(patch):
        return f"patch netpol adservice --type=merge -p {shlex.quote(json.dumps(patch))}"

    def ruled(number):
        return merged({"spec": {"ingress": [{}] * number, "policyTypes": ["Ingress"]}})

    def noted(name, length):
        return merged({"metadata": {"annotations": {name: "<" * length}}})

    one_more = '[{"op": "add", "path": "/spec/ingress/-", "value": {}}]'
    # an egress entry and the policy type count in addition to the rules
    at_most = POLICY_ENTRIES - 2
    sequences = {
        "at once": [ruled(at_most + 1), ruled(at_most), "get netpol adservice -o yaml"],
        "tried": [f"{ruled(number)} --dry-run=server" for number in (at_most, at_most + 1)],
        "rule by rule": [
            ruled(at_most),
            f"patch netpol adservice --type=json -p {shlex.quote(one_more)}",
        ],
        "notes": [noted("a", POLICY_CHARS // 2), noted("b", POLICY_CHARS // 2), noted("b", 99)],
        "both": [merged({"metadata": {"labels": {"a": "b"}}, "spec": {"ingress": [{}] * 2000}})],
    }
    assert compare(cluster, tmp_path, sequences.items()) == ([], [])
    refused = "is forbidden: a policy may have at most"
    said = [asyncio.run(embedded_answers(tmp_path, commands)) for commands in sequences.values()]
    assert [[refused in text for text in texts] for texts in said] == [
        [True, False, False],
        [False, True],
        [False, True],
        [False, True, False],
        [True],
    ]


async def embedded_answers(folder, commands):
    """Return the embedded cluster's outputs of the commands, run one after the other."""
    async with Embedded() as embedded:
        deployed = await embedded.deploy(boutique())
        (folder / "config").write_text(deployed.access.kubeconfig)
        async with deployed.admit(Caller(os.getpid())):
            answers = [await kubectl(command, folder / "config", folder) for command in commands]
        await deployed.close()
    return [text for _, text in answers]
