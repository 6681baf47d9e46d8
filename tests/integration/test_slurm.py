"""scripts/cluster/slurm-array on a real Slurm of one node, which this test starts and ends."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netarena.agent.process import free_port

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "cluster" / "slurm-array"
#: time limit for each wait, in seconds
PATIENCE_S = 120.0


def call(*command: str, environ: dict[str, str], check: bool = True) -> str:
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert not check or done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout + done.stderr


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Start munge and Slurm in a separate folder; return the environment of its commands."""
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    here = tmp_path / "slurm"
    for name in ("state", "spool", "munge", "log"):
        (here / name).mkdir(parents=True)
    user = pwd.getpwnam("munge")
    key = here / "munge" / "key"
    key.write_bytes(os.urandom(128))
    for path in (here / "munge", key):
        os.chown(path, user.pw_uid, user.pw_gid)
    (here / "munge").chmod(0o755)
    key.chmod(0o400)
    node, controller, daemon = socket.gethostname().partition(".")[0], free_port(), free_port()
    conf = here / "slurm.conf"
    conf.write_text(
        f"ClusterName=test\nSlurmctldHost={node}(127.0.0.1)\nSlurmctldPort={controller}\n"
        f"SlurmdPort={daemon}\nSlurmUser=root\nAuthType=auth/munge\nCredType=cred/munge\n"
        f"AuthInfo=socket={here}/munge/socket\nMpiDefault=none\n"
        "ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nSelectType=select/cons_tres\n"
        "JobAcctGatherType=jobacct_gather/none\nSwitchType=switch/none\nReturnToService=2\n"
        f"StateSaveLocation={here}/state\nSlurmdSpoolDir={here}/spool\n"
        f"SlurmctldPidFile={here}/ctld.pid\nSlurmdPidFile={here}/d.pid\n"
        f"SlurmctldLogFile={here}/log/ctld\nSlurmdLogFile={here}/log/d\n"
        f"NodeName={node} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN\n"
        f"PartitionName=all Nodes={node} Default=YES MaxTime=INFINITE State=UP\n"
    )
    environ = {**os.environ, "SLURM_CONF": str(conf)}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    munged = subprocess.Popen(
        [
            "setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "--foreground",
            "--force", f"--key-file={key}", f"--socket={here}/munge/socket",
            f"--pid-file={here}/munge/pid", f"--log-file={here}/munge/log",
            f"--seed-file={here}/munge/seed",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    daemons = [munged]
    try:
        wait_for((here / "munge" / "socket").exists)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        daemons.append(subprocess.Popen(["slurmctld", "-D"], env=environ, **quiet))
        daemons.append(subprocess.Popen(["slurmd", "-D"], env=environ, **quiet))
        wait_for(lambda: "idle" in call("sinfo", "-h", "-o", "%t", environ=environ, check=False))
        yield environ
    finally:
        for each in reversed(daemons):
            each.terminate()
        for each in daemons:
            each.wait(PATIENCE_S)


def wait_for(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not happens():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.2)


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("slurmctld", "slurmd", "sbatch", "munged"))),
    reason="there is no Slurm, or no root: apt-get install slurm-wlm munge",
)
def test_incomplete_array_of_shards_is_continued_and_merged(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    options = ["malt", "--seed", "7", "--agent", "oracle", "--set", "complexity_level=level1"]

    def submit(tasks: str) -> None:
        words = ["sbatch", f"--array={tasks}", f"--output={tmp_path}/%A-%a.log"]
        call(*words, "--cpus-per-task=1", str(SCRIPT), "3", str(runs), *options, environ=slurm)
        wait_for(lambda: not call("squeue", "--noheader", environ=slurm))

    # one of three tasks is not submitted
    submit("0,2")
    merge = ["netarena", "merge", str(tmp_path / "whole"), *(f"{runs}/shard-{n}" for n in (0, 2))]
    told = call(*merge, environ=slurm, check=False)
    assert "shard 1/3" in told
    assert "1 of 3 shards are incomplete" in told
    # a resubmitted task continues its shard and repeats no request
    before = (runs / "shard-0" / "journal.jsonl").read_text().count('"event": "start"')
    submit("0-1")
    journal = (runs / "shard-0" / "journal.jsonl").read_text()
    assert journal.count('"event": "start"') == before
    call(*merge, f"{runs}/shard-1", environ=slurm)
    results = json.loads((tmp_path / "whole" / "results.json").read_text())["results"]
    assert len(results) - 1 == results[-1]["outcomes"]["solved"] == 6
