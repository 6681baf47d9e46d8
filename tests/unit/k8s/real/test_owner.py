"""Notes about the owner of an object, and whether that service still runs."""

import json
import os
import subprocess
import sys
import time

import pytest
from k8s_real import NOW, claimed, elsewhere

from netarena_k8s.real import lease, owner
from netarena_k8s.real.owner import (
    HEARD_NOTE,
    OWNER_NOTE,
    SILENT_S,
    is_mine,
    is_ours,
    self_notes,
    why_kept,
)

#: program of a service that prints the notes of its namespaces, and runs until its input ends
SERVICE = """
import json, sys
from netarena_k8s.real.owner import self_notes
print(json.dumps(self_notes(float(sys.argv[1]))), flush=True)
sys.stdin.read()
"""


def test_service_that_ended_in_another_container_no_longer_owns_its_namespaces():
    # a separate process namespace on the host's network, as with docker's --network=host
    apart = ["unshare", "--pid", "--fork", "--kill-child"] if os.geteuid() == 0 else []
    service = subprocess.Popen(
        [*apart, sys.executable, "-c", SERVICE, str(NOW)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with service:
        notes = json.loads(service.stdout.readline())
        # the heartbeat is old, but the process is visible
        assert why_kept(notes, NOW + 9 * SILENT_S) == "its service is running"
        assert (is_ours(notes), is_mine(notes)) == (True, False)
        service.kill()
        service.wait()
        gone = time.monotonic() + 20  # the kernel kills the child of unshare a moment later
        while why_kept(notes, NOW) and time.monotonic() < gone:
            time.sleep(0.01)  # it may not be a direct child, so no event reports its end
        assert why_kept(notes, NOW) == ""


def test_own_process_is_recognized_as_running():
    assert why_kept(self_notes(NOW), NOW) == "its service is running"
    assert is_mine(self_notes(NOW))


@pytest.mark.parametrize("more", [{}, {"boot": "another", "network": "net:[4026531833]"}])
def test_service_on_another_host_is_judged_by_its_last_heartbeat(more):
    notes = elsewhere(self_notes(NOW), **more)
    assert why_kept(notes, NOW + 7) == "the last heartbeat of its service is 7 s old"
    assert why_kept(notes, NOW + SILENT_S + 1) == ""
    # a clock that was set back does not extend the wait
    assert why_kept(notes, NOW - 9 * SILENT_S) == ""


@pytest.mark.parametrize(
    "notes",
    [
        None,
        {},
        {OWNER_NOTE: "x", HEARD_NOTE: "y"},
        {**self_notes(NOW), HEARD_NOTE: "soon"},
        {HEARD_NOTE: "1", OWNER_NOTE: json.dumps({"pid": 1})},
        {HEARD_NOTE: "1", OWNER_NOTE: "[]"},
    ],
)
def test_object_without_valid_owner_notes_is_not_removed(notes):
    assert not is_ours(notes)
    assert why_kept(notes, NOW) == "its annotations do not show that a NetArena service created it"


def test_invalid_socket_name_in_owner_notes_does_not_count_as_a_live_service():
    for name in ("x" * 300, "\ud800", "a\0b"):
        given = {**json.loads(self_notes(NOW)[OWNER_NOTE]), "socket": name}
        notes = {**self_notes(NOW), OWNER_NOTE: json.dumps(given)}
        assert why_kept(notes, NOW + SILENT_S + 1) == ""


def test_heartbeat_is_used_if_the_liveness_socket_is_not_accessible(monkeypatch):
    class Confined:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def connect(self, _):
            raise PermissionError

    notes = self_notes(NOW)
    monkeypatch.setattr(owner.socket, "socket", lambda *_: Confined())
    assert why_kept(notes, NOW + 5) == "the last heartbeat of its service is 5 s old"


def test_malicious_owner_notes_are_ignored():
    deep = "[" * 100_000
    assert not is_ours({OWNER_NOTE: deep, HEARD_NOTE: "1"})
    late = {**elsewhere(self_notes(NOW)), HEARD_NOTE: "9" * 400}
    assert why_kept(late, NOW) == ""
    there = claimed(self_notes(NOW))
    assert lease.Claim.read({**there, "data": {"policies": deep}}).policies == frozenset()
