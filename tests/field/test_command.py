"""Reported command lines and outputs: one row per report, with its source and result.

The situations are public; the lines were written for this test. A row of ``LINES`` has a command as
it was written, and the missing part if it is incomplete (empty if it is complete). A row of
``OUTPUTS`` has kubectl's output, its exit status, and whether the turn had no effect. Add a row for
each new report.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from netarena.model import Step
from netarena.sandbox.shell import CommandResult
from netarena.task.command_line import lacks
from netarena_k8s.refusal import came_to_nothing


class Line(NamedTuple):
    """One reported command line."""

    source: str
    #: short description
    what: str
    command: str
    #: expected description of the missing part
    lacks: str = ""


class Output(NamedTuple):
    """One reported output."""

    source: str
    #: short description
    what: str
    printed: str
    status: int
    nothing: bool


PATCH = "kubectl patch netpol db --type=json -p"
LINES = (
    Line("DerDanilo/proxmox-stuff#3", "a here-document whose end is indented",
         "kubectl apply -f - <<EOF\nkind: NetworkPolicy\n  EOF", "here-document"),
    Line("confluentinc/cp-demo#117", "an end with a bracket on its line",
         "x=$(cat <<EOF\na\nEOF)", "not closed"),
    Line("ldayton/Parable#180", "an end that only begins as it should",
         "cat <<EO\nhello\nEOF", "here-document"),
    Line("chrisbra/vim-zsh#51", "an end that is indented by tabs, which was asked for",
         "cat <<-EOF\n\ta\n\tEOF"),
    Line("chrisbra/vim-zsh#51", "an end in quotes", "cat <<'EOF'\n$x `\nEOF"),
    Line("google/kf#1047", "a text that is no patch is whole to the shell",
         f"{PATCH}=\"[{{'op': 'replace', 'value': true]\""),
    Line("zlab-jp/kubernetes-resource#13", "a substitution within a text within a text",
         "kubectl patch deployment a -p \"{\\\"at\\\":\\\"`date +'%s'`\\\"}\""),
    Line("TsuyoshiUshio/KubernetesTask#36", "a text from a file",
         'kubectl patch deploy/a --patch "$(cat patch.json)"'),
    Line("TsuyoshiUshio/KubernetesTask#36", "the same, cut off", 'kubectl patch a --patch "$(cat',
         "not closed"),
    Line("steebchen/kubectl#12", "one bracket too many within a text",
         "kubectl patch deployment app -p '{\"spec\":{}}}'"),
    Line("kubernetes/website#9899", "quotes that are escaped for another shell",
         "kubectl patch sa default -p '{\\\"imagePullSecrets\\\": []}'"),
    Line("cilium/cilium#3627", "commands in brackets, which the shell takes for words",
         "kubectl exec -n kube-system cilium -- [cilium service list]"),
)  # fmt: skip

REFUSED = "The connection to the server localhost:8080 was refused - did you specify the right host"
LOG = "E0401 16:47:34.292876   22219 memcache.go:265] couldn't get current server API group list"
NO_MATCH = (
    'resource mapping not found for name: "a" namespace: "" from "STDIN": no matches for kind '
    '"NetworkPolicy" in version "networking.k8s.io/v1beta1"\nensure CRDs are installed first\n'
)
MISSING = (
    "Warning: resource networkpolicies/a is missing the kubectl.kubernetes.io/last-applied-"
    "configuration annotation which is required by kubectl apply.\n"
)
NO_PROGRAM = (
    'OCI runtime exec failed: exec failed: unable to start container process: exec: "curl": '
    "executable file not found in $PATH: unknown\ncommand terminated with exit code 126\n"
)
OUTPUTS = (
    Output("kubernetes/website#45748", "no server, said in the log and at the end",
           f"{LOG}\n{LOG}\n{REFUSED} or port?\n", 1, True),
    Output("kubernetes/kubectl#1339", "the same in other words",
           f"{LOG}\nUnable to connect to the server: EOF\n", 1, True),
    Output("k8snetworkplumbingwg/multus-cni#112", "a kind that there is not",
           'error: the server doesn\'t have a resource type "network"\n', 1, True),
    Output("karmada-io/karmada#6162", "a version that there is not",
           f"error: {NO_MATCH}", 1, True),
    Output("polycube-network/polycube#423", "the same for two objects, without the word",
           NO_MATCH * 2, 1, True),
    Output("polycube-network/polycube#423", "beside objects that were taken",
           f"configmap/a unchanged\n{NO_MATCH}", 1, False),
    Output("rook/rook#13556", "a warning beside what was done",
           f"{MISSING}networkpolicy.networking.k8s.io/a configured\n", 0, False),
    Output("jetstack/tarmak#255", "no editor", 'error: unable to launch the editor "vi"\n', 1,
           True),
    Output("zlab-jp/kubernetes-resource#58", "a patch that is none",
           'error: unable to parse "[{op:": yaml: line 1: did not find expected node content\n', 1,
           True),
    Output("kvaps/kubectl-node-shell#22", "the same of a JSON patch", "error: Invalid JSON Patch\n",
           1, True),
    Output("kubernetes/kubernetes#84817", "a patch that the server does not take",
           "The request is invalid\n", 1, True),
    Output("kubernetes/website#9899", "the same in other words",
           "Error from server (BadRequest): invalid character '\\\\' looking for beginning\n", 1,
           True),
    Output("Yolean/kubernetes-kafka#269", "a file that is no object, beside those that are",
           'networkpolicy.networking.k8s.io/a created\nerror: error validating "k.yaml": error '
           "validating data: [apiVersion not set, kind not set]\n", 1, False),
    Output("fluxcd/flux#761", "nothing to apply", "error: no objects passed to apply\n", 1, True),
    Output("kubernetes/kubectl#821", "nothing found, which is an answer",
           "No resources found in kube-system namespace.\n", 0, False),
    Output("joeferner/redis-commander#516", "no such program in the pod", NO_PROGRAM, 126, True),
    Output("istio/tools#552", "the same of the pod's shell",
           "bash: /etc/get.sh: No such file or directory\ncommand terminated with exit code 127\n",
           127, True),
    Output("nigelpoulton/TheK8sBook#30", "the same, told by the server",
           "error: Internal error occurred: error executing command in container: failed to exec\n",
           1, True),
    Output("docker/for-linux#246", "a program in the pod that failed has told something",
           "curl: (7) Failed to connect to db port 80\ncommand terminated with exit code 7\n", 7,
           False),
)  # fmt: skip


@pytest.mark.parametrize("row", LINES, ids=lambda row: f"{row.source}: {row.what}")
def test_incomplete_command_is_recognised(row: Line) -> None:
    found = lacks(row.command)
    assert row.lacks in found
    assert bool(found) is bool(row.lacks)


@pytest.mark.parametrize("row", OUTPUTS, ids=lambda row: f"{row.source}: {row.what}")
def test_turn_without_effect_or_output_is_recognised(row: Output) -> None:
    step = Step(prompt="", executed=True, output=CommandResult(row.printed, row.status).told)
    assert came_to_nothing(step) is row.nothing
