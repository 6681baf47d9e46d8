"""Check that a run on a Ray cluster of two nodes loses no results if a part of the cluster fails.

    sudo .venv-ray/bin/python benchmarks/chaos_ray.py [--apps malt k8s route backbone] \
        [--parts equal worker node head] [--think 2] [--seed 7]

The nodes are two network namespaces, and agents run in a third one. A bridge connects all three.
The program needs root, the extra ``ray``, and all requirements of the applications.

=======  ===========================================================================================
part     content
=======  ===========================================================================================
equal    each application on the cluster and in one process, with the same verdicts
worker   a worker is killed (SIGKILL) while it plays k8s
node     the second node's link is down for 60 s in mid-run
head     the run is killed (SIGKILL) and continued with ``--resume``
=======  ===========================================================================================

In ``worker``, ``node`` and ``head`` every query must have a verdict. Only interrupted episodes may
have another verdict than in one process. Otherwise the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from netarena.run.journal import JOURNAL_NAME, read_events, read_journal

HERE = Path(__file__).parent
PYTHON = sys.executable
RAY = Path(PYTHON).with_name("ray")
#: Namespace -> address. Nodes of Ray run in the first two, agents in the third.
ADDRESSES = {"one": "10.77.0.1", "two": "10.77.0.2", "agents": "10.77.0.3"}
GCS_PORT, AGENT_PORT = 6379, 9100
#: Application -> agent and config keys. All agents give the same replies in every run.
APPS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "malt": ("parser", {"complexity_level": ["level1"]}),
    "k8s": ("heuristic", {"error_types": ["add_ingress", "change_port"], "max_iterations": 4}),
    "route": ("heuristic", {"error_types": ["disable_routing"], "emulator": "netns"}),
    "backbone": ("heuristic", {"max_iterations": 3, "emulator": "netns"}),
}
NUM_QUERIES = {"malt": 2, "k8s": 5, "route": 3, "backbone": 1}
#: Total number of workers, and number of concurrent episodes.
WORKERS = 4
CUT_S = 60.0
#: Part -> maximum number of verdicts that may differ: one for the killed worker, and one for each
#: worker of the second node.
PARTS = {"equal": 0, "worker": 1, "node": WORKERS // 2, "head": 0}
POLL_S = 0.2
#: Time limit for nodes to join and for a run to reach its middle, in s.
WAIT_S = 300.0


def sh(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


def wait_for(holds: Callable[[], object], what: str, limit_s: float = WAIT_S) -> Any:
    """Call ``holds`` until it returns a true value, and return the value.

    Raises SystemExit with ``what`` after ``limit_s``.
    """
    end = time.monotonic() + limit_s
    while not (found := holds()):
        if time.monotonic() > end:
            raise SystemExit(f"not within {limit_s:g} s: {what}")
        time.sleep(POLL_S)  # between two checks of a condition that no event reports
    return found


class Cluster:
    """Two nodes of Ray in network namespaces, and a third namespace for agents."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._prefix = f"nray{os.getpid()}"
        token = folder / "token"
        token.write_text(os.urandom(32).hex())
        token.chmod(0o600)
        self.environ = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_worker_niceness": "0",
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def inside(self, place: str, *command: object) -> list[str]:
        """Return a command that runs in a namespace."""
        return ["ip", "netns", "exec", f"{self._prefix}-{place}", *map(str, command)]

    @contextmanager
    def wired(self) -> Iterator[None]:
        """Create the namespaces, with a bridge in the agents' namespace (context manager)."""
        with ExitStack() as stack:
            for place in ADDRESSES:
                name = f"{self._prefix}-{place}"
                sh("ip", "netns", "add", name)
                stack.callback(sh, "ip", "netns", "delete", name)
                sh(*self.inside(place, "ip", "link", "set", "lo", "up"))
            bridge = f"{self._prefix}-agents"
            sh("ip", "-n", bridge, "link", "add", "br0", "type", "bridge")
            sh("ip", "-n", bridge, "address", "add", f"{ADDRESSES['agents']}/24", "dev", "br0")
            sh("ip", "-n", bridge, "link", "set", "br0", "up")
            for place in ("one", "two"):
                name = f"{self._prefix}-{place}"
                port = f"to-{place}"
                sh(
                    *("ip", "-n", name, "link", "add", "eth0", "type", "veth"),
                    *("peer", "name", port, "netns", bridge),
                )
                sh("ip", "-n", name, "address", "add", f"{ADDRESSES[place]}/24", "dev", "eth0")
                sh("ip", "-n", name, "link", "set", "eth0", "up")
                sh("ip", "-n", bridge, "link", "set", port, "master", "br0", "up")
            yield

    def cut(self, place: str, state: str) -> None:
        """Set the state of a node's link, ``up`` or ``down``."""
        sh("ip", "-n", f"{self._prefix}-agents", "link", "set", f"to-{place}", state)

    @contextmanager
    def nodes(self) -> Iterator[None]:
        """Start both nodes of Ray, and stop them at the end (context manager)."""
        common = ("--num-cpus", WORKERS // 2, "--object-store-memory", 80 << 20, "--block")
        gcs = f"{ADDRESSES['one']}:{GCS_PORT}"
        head = ("--head", "--port", GCS_PORT, "--include-dashboard", "false")
        with ExitStack() as stack:
            for place, role in (("one", head), ("two", ("--address", gcs))):
                start = (RAY, "start", *role, "--node-ip-address", ADDRESSES[place], *common)
                if place == "one":
                    start = (*start, "--temp-dir", self._folder / "ray")
                stack.enter_context(self.started(place, *start))
                if place == "one":
                    wait_for(
                        lambda: (
                            not subprocess.run(
                                self.inside("one", RAY, "health-check", "--address", gcs),
                                env=self.environ,
                                capture_output=True,
                                check=False,
                            ).returncode
                        ),
                        "Ray's head node starts",
                    )
            yield

    @contextmanager
    def started(self, place: str, *command: object) -> Iterator[subprocess.Popen[bytes]]:
        """Start a program in a namespace; at the end, stop it and all processes of its group."""
        log = (self._folder / f"{place}-{Path(str(command[0])).name}.log").open("ab")
        with log:
            process = subprocess.Popen(
                self.inside(place, *command),
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, number)
                    process.wait(20)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue

    @contextmanager
    def agent(self, app: str, given: argparse.Namespace) -> Iterator[str]:
        """Serve an application's scripted agent in the agents' namespace; yield its URL."""
        name, keys = APPS[app]
        url = f"http://{ADDRESSES['agents']}:{AGENT_PORT}"
        with self.started(
            "agents",
            *(PYTHON, HERE / "thinking_agent.py", app, name, "--seed", given.seed),
            *("--host", ADDRESSES["agents"], "--port", AGENT_PORT, "--think", given.think),
            *sets({**keys, "num_queries": NUM_QUERIES[app]}),
        ):
            wait_for(
                lambda: (
                    not subprocess.run(
                        self.inside("one", "curl", "-sf", f"{url}/.well-known/agent-card.json"),
                        capture_output=True,
                        check=False,
                    ).returncode
                ),
                f"the agent of {app} starts",
            )
            yield url

    def run(self, app: str, url: str, out: Path, *more: object, here: bool = False) -> list[str]:
        """Return the command of a run on the first node; with ``here``, it does not use Ray."""
        _, keys = APPS[app]
        ray = (
            *("--executor", "ray", "--ray-address", f"{ADDRESSES['one']}:{GCS_PORT}"),
            *("--workers", WORKERS),
        )
        return self.inside(
            "one",
            *(PYTHON, "-m", "netarena", "run", app, "--agent", url, "--out", out),
            *("--num-queries", NUM_QUERIES[app], "--concurrency", WORKERS),
            *(() if here else ray),
            *sets(keys),
            *more,
        )

    def log_of_runs(self) -> str:
        """Return the output of the disturbed runs so far."""
        return (self._folder / f"one-{Path(PYTHON).name}.log").read_text(encoding="utf-8")

    def play(self, *command: str) -> None:
        """Run a command to its end. Raises SystemExit for an exit status above 1.

        Status 1 is accepted, because it only means that an episode was not solved.
        """
        log = self._folder / "runs.log"
        with log.open("ab") as file:
            done = subprocess.run(
                command,
                env=self.environ,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        if done.returncode > 1:
            raise SystemExit(f"exit status {done.returncode}, see {log}: {shlex.join(command)}")


def sets(keys: Mapping[str, Any]) -> Iterator[str]:
    for key, value in keys.items():
        yield from ("--set", f"{key}={json.dumps(value)}")


def verdicts(out: Path) -> dict[str, tuple[object, ...]]:
    """Return outcome, correctness, safety, number of turns, moves and findings of each query by
    id."""
    episodes = read_journal(out / JOURNAL_NAME, slim=False).episodes.values()
    return {
        one.query_id: (
            *(one.outcome.value, one.correct, one.safe, one.iterations),
            tuple(step.move for step in one.steps),
            tuple(
                finding.model_dump_json()
                for step in one.steps
                if step.judgement
                for finding in step.judgement.findings
            ),
        )
        for one in episodes
    }


def ended(out: Path) -> int:
    """Return the number of episodes in a journal, including attempts that are retried."""
    journal = out / JOURNAL_NAME
    return journal.exists() and sum(one["event"] == "episode" for one in read_events(journal))


def workers_of(cluster: Cluster) -> list[int]:
    """Return the worker processes of this cluster."""
    token = cluster.environ["RAY_AUTH_TOKEN_PATH"].encode()
    relays = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            parent = int((path / "stat").read_text().rpartition(") ")[2].split()[1])
            if (
                b"netarena.run.worker" in words
                and token in Path(f"/proc/{parent}/environ").read_bytes()
            ):
                relays.append(int(path.name))
        except OSError:
            continue
    return relays


def nodes_of(out: Path) -> set[str]:
    """Return the nodes whose workers ran episodes of a run."""
    found = read_events(out / JOURNAL_NAME)
    return {event["node"] for event in found if event["event"] == "worker"}


def compare(what: str, here: Mapping[str, object], there: Mapping[str, object], most: int) -> bool:
    """Compare the verdicts in one process (``here``) and on Ray (``there``), and print the result.

    Returns whether all queries have a verdict and at most ``most`` verdicts differ.
    """
    different = [key for key, value in here.items() if there.get(key) != value]
    missing = [key for key in here if key not in there]
    fine = not missing and len(different) <= most and len(there) == len(here)
    print(
        f"{what}: {len(there)} of {len(here)} verdicts, {len(different)} different (at most {most})"
        f"{'' if fine else ' WRONG'}",
        flush=True,
    )
    for key in different:
        print(f"  {key}: {here[key]} in one process, {there.get(key)} on Ray", flush=True)
    return fine


def disturbed(
    cluster: Cluster, app: str, given: argparse.Namespace, out: Path, part: str
) -> dict[str, tuple[object, ...]]:
    """Run ``app`` on the cluster, disturb the run in its middle, and return the verdicts."""
    with cluster.agent(app, given) as url:
        seed = ("--seed", given.seed)
        command = cluster.run(app, url, out, *seed)
        with cluster.started("one", *command[4:]) as run:
            wait_for(lambda: ended(out) or run.poll() is not None, "an episode ends")
            if run.poll() is not None:
                raise SystemExit(f"{part}: the run ended before it was disturbed")
            if part == "worker":
                os.kill(wait_for(lambda: workers_of(cluster), "a worker")[0], signal.SIGKILL)
            elif part == "node":
                cluster.cut("two", "down")
                time.sleep(CUT_S)  # the link stays down for this time
                cluster.cut("two", "up")
            else:
                # "ip netns exec" has replaced itself with the run, so this is the run's process id
                os.kill(run.pid, signal.SIGKILL)
            run.wait()
        if part == "worker" and "a worker died" not in cluster.log_of_runs():
            raise SystemExit("worker: the head did not notice the loss")
        if part == "head":
            cluster.play(*cluster.run(app, url, out, *seed, "--resume"))
    return verdicts(out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--apps", nargs="+", choices=APPS, default=[*APPS])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--think", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    if os.geteuid():
        parser.error("network namespaces need root")
    apps: Sequence[str] = given.apps
    parts: Sequence[str] = given.parts
    folder = Path(tempfile.mkdtemp(prefix="nray-"))
    cluster = Cluster(folder)
    fine = True
    # without this, SIGTERM would leave the namespaces behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with cluster.wired():
        here: dict[str, dict[str, tuple[object, ...]]] = {}
        for app in apps:
            with cluster.agent(app, given) as url:
                out = folder / f"{app}-here"
                cluster.play(*cluster.run(app, url, out, "--seed", given.seed, here=True))
                here[app] = verdicts(out)
        with cluster.nodes():
            if "equal" in parts:
                for app in apps:
                    with cluster.agent(app, given) as url:
                        out = folder / f"{app}-there"
                        cluster.play(*cluster.run(app, url, out, "--seed", given.seed))
                        number = len(nodes_of(out))
                        fine &= number == len(ADDRESSES) - 1
                        what = f"{app}, workers on {number} nodes"
                        fine &= compare(what, here[app], verdicts(out), 0)
            for part in parts:
                if part != "equal":
                    app = "k8s" if "k8s" in apps else apps[0]
                    there = disturbed(cluster, app, given, folder / f"{app}-{part}", part)
                    fine &= compare(f"{app}, {part}", here[app], there, PARTS[part])
    if fine:
        shutil.rmtree(folder)
    else:
        print(f"logs and results: {folder}")
    sys.exit(not fine)


if __name__ == "__main__":
    main()
