"""Workers in separate processes, without Ray: equal verdicts, lost workers, cancellation."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from netarena_toy import Toy, Waterworks

from netarena.agent.backoff import Backoff
from netarena.agent.interface import Agent
from netarena.config import Briefing, Config
from netarena.errors import AgentFailed, AgentSilent, AssessmentFailed, ConfigError, FailureReason
from netarena.model import AgentInfo, Check, Episode, Outcome, Reply
from netarena.run import remote
from netarena.run.assessment import conduct
from netarena.run.channel import Decoder, encode, read_played
from netarena.run.executor import Hooks, Party, Try
from netarena.run.journal import JOURNAL_NAME, read_events, read_journal
from netarena.run.play import CLOSE_TIMEOUT_S, clock
from netarena.run.relay import Relay
from netarena.run.remote import LinkLostError, Remote, RemotePlayer, RemoteStage, _Loss
from netarena.sandbox.shell import END_S
from netarena.task.application import Application

ROLE = "toy_operator"


class TestLink:
    """A link to a worker process on this machine, which counts as a worker on ``node``."""

    __test__ = False

    def __init__(self, relay: Relay, node: str, pool: Processes) -> None:
        self.relay, self.node, self.pool = relay, node, pool
        self.numbers = count()
        self.pid = relay._process.pid
        self.sends: set[asyncio.Task[None]] = set()

    def send(self, data: bytes) -> None:
        task = asyncio.create_task(self.relay.send(next(self.numbers), data))
        self.sends.add(task)
        task.add_done_callback(self.sends.discard)

    async def receive(self) -> bytes:
        data, ended = await self.relay.receive()
        if ended:
            raise LinkLostError(ended, node_gone=self.node in self.pool.gone)
        return data

    async def examine(self) -> None:
        """Do nothing: the worker's machine always answers."""

    async def close(self) -> None:
        await self.relay.stop()


class Processes:
    """A pool of worker processes on this machine."""

    def __init__(self, size: int, nodes: int = 1) -> None:
        self.size, self.nodes = size, nodes
        self.links: list[TestLink] = []
        self.gone: set[str] = set()

    async def hire(self) -> TestLink:
        relay = Relay()
        await relay.start()
        link = TestLink(relay, f"node-{len(self.links) % self.nodes}", self)
        self.links.append(link)
        return link


@dataclass(frozen=True)
class Way:
    """Source of an agent that opens valves; ``kills`` is the moment when it kills its worker."""

    turns: int = 5
    kills: str = ""
    marker: str = ""
    #: Index of a query whose world kills its worker.
    deadly: int | None = None
    #: Time that each reply takes.
    pause_s: float = 0.0
    #: Marker file: only the worker that creates it gets an agent.
    only: str = ""

    def make(self, application: Application, config: Config, role: str, backoff: Backoff) -> Agent:
        """Return the agent; this runs on a worker."""
        if self.only and not first(self.only):
            raise ConfigError("agent", "lacks the program")
        if self.deadly is not None:
            opens, deadly = Waterworks.open, self.deadly

            async def fall(world: Waterworks) -> Any:
                if world.query.index == deadly:
                    os.kill(os.getpid(), signal.SIGKILL)
                return await opens(world)

            # replaced for the whole worker process, which the test ends
            Waterworks.open = fall  # type: ignore[method-assign]
        return Valves(self)


class Valves:
    """Opens one valve after the other, up to ``turns``; then repeats the last one."""

    info = AgentInfo(name="valves")

    def __init__(self, way: Way) -> None:
        self.way = way
        self.turns: dict[str, int] = {}

    async def open(self, *, timeout_s: float) -> None:
        pass

    async def aclose(self) -> None:
        pass

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        turn = self.turns[context_id] = self.turns.get(context_id, 0) + 1
        way = self.way
        await asyncio.sleep(way.pause_s)
        if way.kills == "pauses" and first(way.marker):
            await asyncio.sleep(5)
        if way.kills == "silent":
            raise AgentFailed(FailureReason.ENDPOINT, "refused")
        if way.kills == "forever":
            first(way.marker)
            await asyncio.Event().wait()
        if way.kills == "together" and turn == 2:
            await asyncio.to_thread(kill_both, Path(way.marker))
        moment = {"asked": 1, "executed": 2, "always": 1, "always executed": 2}.get(way.kills)
        if way.kills == "stops" and turn == 2 and first(way.marker):
            os.kill(os.getpid(), signal.SIGSTOP)
        if turn == moment and ("always" in way.kills or first(way.marker)):
            os.kill(os.getpid(), signal.SIGKILL)
        return Reply(text=f"open v{min(turn, way.turns)}")


def kill_both(marker: Path) -> None:
    """Wait until two workers call this; then kill both, once."""
    marker.with_name(f"pid-{os.getpid()}").touch()
    end = time.monotonic() + 20
    while len(found := [*marker.parent.glob("pid-*")]) < 2 and time.monotonic() < end:
        time.sleep(0.01)  # the other worker is not a child, so there is no event to wait for
    if first(str(marker)):
        pids = {int(one.name.removeprefix("pid-")) for one in found}
        for pid in (*(pids - {os.getpid()}), os.getpid()):
            os.kill(pid, signal.SIGKILL)


def first(marker: str) -> bool:
    """Return whether this is the first call with ``marker``, in any process."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def examine(
    out: Path,
    way: Way,
    pool: Processes | None = None,
    tell: Callable[[str], None] = lambda text: None,
    **values: Any,
) -> tuple[dict[str, Any], dict[str, Episode]]:
    """Examine the agent, on workers if there is a pool; return the summary and the episodes."""

    async def run() -> dict[str, Any]:
        toy = Toy()
        keys = {"num_queries": 4, "concurrency": 4, "max_iterations": 5, "seed": 11, **values}
        config = Toy.config_type.parse(keys)
        agents = {ROLE: Valves(way)}
        if pool is None:
            async with toy:
                return (await conduct(toy, config, agents, out=out))[ROLE]
        async with Remote(pool, {ROLE: lambda: way}, tell) as executor:
            return (await conduct(toy, config, agents, out=out, executor=executor))[ROLE]

    summary = asyncio.run(run())
    return summary, {
        one.query_id: one for one in read_journal(out / JOURNAL_NAME).episodes.values()
    }


@pytest.fixture(autouse=True)
def _imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers import this module, from which their agents come."""
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(Way, "__module__", "test_remote")
    monkeypatch.setitem(sys.modules, "test_remote", sys.modules[__name__])


TIMES = dict.fromkeys(("agent_time_s", "execution_time_s", "own_time_s", "world_s", "queue_s"), 0.0)


def timeless(episode: Episode) -> Episode:
    steps = tuple(
        step.model_copy(update={"agent_s": 0.0, "execution_s": 0.0, "own_s": 0.0, "queue_s": 0.0})
        for step in episode.steps
    )
    return episode.model_copy(update={**TIMES, "steps": steps})


def test_episodes_on_workers_equal_those_in_this_process(tmp_path: Path) -> None:
    _, here = examine(tmp_path / "here", Way(), num_queries=6)
    pool = Processes(2)
    _, there = examine(tmp_path / "there", Way(), pool, num_queries=6)
    assert {key: timeless(one) for key, one in there.items()} == {
        key: timeless(one) for key, one in here.items()
    }
    assert {one.outcome for one in here.values()} == {Outcome.SOLVED, Outcome.UNSOLVED}
    events = read_events(tmp_path / "there" / JOURNAL_NAME)
    workers = [event for event in events if event["event"] == "worker"]
    # workers are recorded before the start, so also in runs that are killed later
    kinds = [event["event"] for event in read_events(tmp_path / "there" / JOURNAL_NAME)]
    assert kinds.index("worker") < kinds.index("start")
    assert len(workers) == 2
    assert all(event["kernel"] == os.uname().release for event in workers)
    # all worker processes have ended
    assert all(link.relay._process.poll() is not None for link in pool.links)


def test_worker_killed_before_the_first_command_is_replaced_and_its_episodes_are_repeated(
    tmp_path: Path,
) -> None:
    pool = Processes(2)
    way = Way(kills="asked", marker=str(tmp_path / "marker"))
    _, there = examine(tmp_path / "there", way, pool)
    _, here = examine(tmp_path / "here", Way())
    assert len(pool.links) == 3
    assert {key: one.outcome for key, one in there.items()} == {
        key: one.outcome for key, one in here.items()
    }
    retried = [one for one in there.values() if one.attempt == 1]
    assert retried
    assert "signal 9" in str([one.evidence for one in retried])


def test_worker_killed_after_the_first_command_leaves_an_unsolved_episode(tmp_path: Path) -> None:
    pool = Processes(2)
    way = Way(kills="executed", marker=str(tmp_path / "marker"), turns=8)
    _, there = examine(tmp_path / "there", way, pool, max_iterations=8, concurrency=1)
    broken = [one for one in there.values() if one.reason == "world_broken"]
    assert [one.outcome for one in broken] == [Outcome.UNSOLVED]
    assert "signal 9" in broken[0].detail
    assert broken[0].iterations == 8
    others = [one.outcome for one in there.values() if one is not broken[0]]
    assert others == [Outcome.SOLVED] * 11


def test_agent_that_kills_each_worker_in_its_first_command_gains_nothing(tmp_path: Path) -> None:
    way = Way(kills="always executed")
    _, there = examine(tmp_path, way, Processes(1), num_queries=1, concurrency=1)
    assert [one.outcome for one in there.values()] == [Outcome.UNSOLVED] * 3
    assert [one.attempt for one in there.values()] == [0] * 3


def test_agent_that_kills_each_worker_before_its_first_command_gains_nothing(
    tmp_path: Path,
) -> None:
    way = Way(kills="always")
    with pytest.raises(AgentSilent, match=r"in any episode \(3 played\)"):
        examine(tmp_path, way, Processes(1), num_queries=1, concurrency=1)
    episodes = [*read_journal(tmp_path / JOURNAL_NAME).episodes.values()]
    assert [one.outcome for one in episodes] == [Outcome.UNSOLVED] * 3
    assert [one.attempt for one in episodes] == [1] * 3


def test_episodes_on_a_node_that_has_left_the_cluster_are_repeated_on_other_nodes(
    tmp_path: Path,
) -> None:
    pool = Processes(2, nodes=2)
    pool.gone.add("node-0")
    way = Way(kills="executed", marker=str(tmp_path / "marker"), turns=8)
    _, there = examine(tmp_path / "there", way, pool, max_iterations=8, concurrency=1)
    assert [one.outcome for one in there.values()] == [Outcome.SOLVED] * 12
    assert "the node node-0 has left the cluster" in str([one.evidence for one in there.values()])


def test_resumed_run_counts_answers_from_before_the_workers_died(tmp_path: Path) -> None:
    way = Way(kills="always executed")
    examine(tmp_path, way, Processes(1), num_queries=1, concurrency=1)
    _, there = examine(tmp_path, way, Processes(1), num_queries=1, concurrency=1, resume=True)
    assert [one.answered for one in there.values()] == [True] * 3


def test_episode_of_a_lost_worker_counts_with_the_turn_limit_of_its_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "fair_turns", lambda self, query: 40 + query.index)
    values = {"num_queries": 1, "concurrency": 1, "max_iterations": None}
    _, there = examine(tmp_path, Way(kills="always executed"), Processes(1), **values)
    assert [one.iterations for one in there.values()] == [40 + one.index for one in there.values()]


def test_ticket_of_a_lost_worker_counts_as_not_declared() -> None:
    party: Any = SimpleNamespace(role=ROLE, config=SimpleNamespace(briefing=Briefing.TICKET))
    head: Any = SimpleNamespace(note_end=lambda: None)
    worker: Any = SimpleNamespace(stages={}, roles={})
    stage = RemoteStage(head, party, worker, 1, b"", 1)
    told: dict[str, Any] = {}
    # replaced, to see the values instead of a record
    stage._verdict = lambda this, **values: told.update(values)  # type: ignore[method-assign, assignment, func-returns-value]
    stage._lose(Try(0, 0, None, last=True), _Loss("signal 9"), answered=True, executed=True)
    assert (told["claimed"], told["turns_healthy"]) == (False, 0)


def test_query_whose_world_kills_its_workers_is_invalid_and_other_queries_are_played(
    tmp_path: Path,
) -> None:
    pool = Processes(1)
    _, there = examine(tmp_path, Way(deadly=1), pool, num_queries=1, concurrency=1)
    invalid = [one for one in there.values() if one.outcome is Outcome.INVALID]
    assert [one.index for one in invalid] == [1]
    assert "2 workers died before the agent was asked: " in invalid[0].detail
    assert {one.outcome for one in there.values() if one not in invalid} == {Outcome.SOLVED}
    # one more if the world was built while another episode ran
    assert len(pool.links) in {5, 6}


def test_agent_that_kills_all_workers_at_the_same_time_leaves_unsolved_episodes(
    tmp_path: Path,
) -> None:
    way = Way(kills="together", marker=str(tmp_path / "marker"))
    _, there = examine(tmp_path / "there", way, Processes(2), num_queries=1, concurrency=2)
    broken = [one for one in there.values() if one.reason == "world_broken"]
    assert len(broken) == 2
    assert [one.attempt for one in broken] == [0, 0]


@pytest.mark.timeout(300)
def test_stopped_worker_is_killed_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "BEAT_S", 0.5)
    pool = Processes(2)
    way = Way(kills="stops", marker=str(tmp_path / "marker"), turns=8)
    _, there = examine(tmp_path / "there", way, pool, max_iterations=8, concurrency=1)
    broken = [one for one in there.values() if one.reason == "world_broken"]
    assert [one.outcome for one in broken] == [Outcome.UNSOLVED]
    assert "it did not answer for 6 s" in broken[0].detail
    assert len(pool.links) == 3
    assert all(link.relay._process.poll() is not None for link in pool.links)


TIME_BUDGET = FailureReason.TIME_BUDGET


def test_overtime_is_long_enough_to_end_a_command_and_to_close_its_world() -> None:
    assert remote.OVERTIME_S >= END_S + CLOSE_TIMEOUT_S


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ([], None),
        (["started"], (Outcome.AGENT_FAILED, TIME_BUDGET, False)),
        (["started", "answered"], (Outcome.AGENT_FAILED, TIME_BUDGET, True)),
        (["started", "executing"], (Outcome.UNSOLVED, TIME_BUDGET, True)),
        (["started", "executing", "answered"], (Outcome.UNSOLVED, TIME_BUDGET, True)),
    ],
    ids=["not asked", "asked", "answered", "executing", "executed"],
)
def test_episode_that_has_not_ended_long_after_the_deadline_is_abandoned(
    said: list[str],
    verdict: tuple[Outcome, str, bool] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "OVERTIME_S", 0.1)
    toy = Toy()
    config = Toy.config_type.parse({"num_queries": 1, "seed": 11})
    query = next(iter(toy.generate(config, 11)))
    sent: list[bytes] = []
    link: Any = SimpleNamespace(send=sent.append)
    worker = remote._Worker(0, link)
    head: Any = SimpleNamespace(note_free=lambda: None)

    async def go_on() -> None:
        pass

    async def play() -> Any:
        party = Party(toy, config, ROLE, Valves(Way()))
        stage = RemoteStage(head, party, worker, 1, query.model_dump_json().encode(), 1)
        for what in said:
            (message,) = Decoder().feed(encode(what, id=1, failure=None))
            worker.stages[1].put_nowait(message)
        hooks = Hooks(go_on, lambda failure: None, go_on)
        async with asyncio.timeout(20):
            return await stage.play(Try(0, 0, clock() + 0.1, last=False), hooks)

    played = asyncio.run(play())
    told = played.verdict
    assert (played.failed, played.asked) == (None, verdict is not None)
    assert (told and (told.outcome, told.outline.reason, told.answered)) == verdict
    go = ["go" for what in said if what != "answered"]
    messages = [message.what for data in sent for message in Decoder().feed(data)]
    assert messages == ["play", *go, "cancel"]
    assert not worker.stages


def test_worker_in_a_long_operation_is_not_treated_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "BEAT_S", 0.5)
    monkeypatch.setattr(remote, "MOST_MISSED", 4)
    pool, way = Processes(1), Way(kills="pauses", marker=str(tmp_path / "marker"))
    examine(tmp_path / "there", way, pool, num_queries=1, concurrency=1)
    assert len(pool.links) == 1


def test_worker_that_cannot_run_the_agent_gets_no_episode(tmp_path: Path) -> None:
    pool, told = Processes(2), []
    _, there = examine(tmp_path, Way(only=str(tmp_path / "only")), pool, tell=told.append)
    assert {one.outcome for one in there.values()} == {Outcome.SOLVED, Outcome.UNSOLVED}
    assert {one.attempt for one in there.values()} == {0}
    assert f"1 workers cannot run the agent {ROLE}: agent: lacks the program" in told
    assert len(pool.links) == 2


def test_run_without_a_worker_that_can_run_the_agent_fails_with_the_reason(tmp_path: Path) -> None:
    only = tmp_path / "only"
    only.touch()
    with pytest.raises(
        AssessmentFailed, match="no worker can run the agent toy_operator: agent: lacks the program"
    ):
        examine(tmp_path / "out", Way(only=str(only)), Processes(2))


def _same(way: Way) -> Way:
    return way


def make_head(*held: str, starting: int = 0, unable: str = "") -> Remote:
    """Return a ``Remote`` whose workers hold worlds; each letter is a world of a participant."""
    # the choice of a worker uses neither the pool nor the links, so empty objects replace them
    head = Remote(SimpleNamespace(), {}, lambda text: None)
    for number, roles in enumerate(held):
        worker = remote._Worker(number, SimpleNamespace(node=""), ready=True)
        worker.problems = dict.fromkeys("abc", "") | ({"b": unable} if number == 0 else {})
        worker.roles = dict(enumerate(roles))
        head._workers.append(worker)
    head._starting = starting
    return head


@pytest.mark.parametrize(
    ("held", "starting", "usable"),
    [
        (("", ""), 0, {"a": [0, 1]}),  # the only participant
        (("a", ""), 0, {"a": [0], "b": [1]}),
        (("a", "aa"), 0, {"a": [0], "b": []}),  # participant b waits for worker 1
        (("a", "b"), 0, {"a": [0], "b": [1]}),
        (("a", "b", ""), 0, {"a": [0], "b": [1]}),
        (("a", "b", "", ""), 0, {"a": [0, 2], "b": [1, 2]}),
        (("b",), 1, {"a": []}),  # participant a waits for the starting worker
        (("b",), 0, {"a": [0], "b": [0]}),  # fewer workers than participants
        (("ab", "ab"), 0, {"a": [0, 1]}),  # both workers are shared
        (("ab", ""), 0, {"a": [1], "b": [1]}),
    ],
)
def test_worker_gets_worlds_of_one_participant_at_a_time(
    held: tuple[str, ...], starting: int, usable: dict[str, list[int]]
) -> None:
    head = make_head(*held, starting=starting)
    head._waiting.update([*usable])
    found = {role: sorted(one.number for one in head._usable(role)) for role in usable}
    assert found == usable


def test_worker_that_can_run_one_of_two_agents_gets_only_its_episodes() -> None:
    head = make_head("", "", unable="no such program")
    assert {worker.number for worker in head._usable("a")} == {0, 1}
    assert {worker.number for worker in head._usable("b")} == {1}


@pytest.mark.timeout(300)
def test_agent_that_kills_its_workers_ends_no_episode_of_another_participant(
    tmp_path: Path,
) -> None:
    ways = {"killer": Way(kills="always executed"), "other": Way(8, pause_s=0.3)}

    async def run() -> None:
        config = Toy.config_type.parse(
            {"num_queries": 1, "concurrency": 2, "max_iterations": 8, "seed": 11}
        )
        agents = {role: Valves(way) for role, way in ways.items()}
        sources = {role: partial(_same, way) for role, way in ways.items()}
        async with Remote(Processes(2), sources, lambda text: None) as executor:
            await conduct(Toy(), config, agents, out=tmp_path, executor=executor)

    asyncio.run(run())
    episodes = read_journal(tmp_path / "other" / JOURNAL_NAME).episodes.values()
    assert [(one.outcome, one.attempt) for one in episodes] == [(Outcome.SOLVED, 0)] * 3
    broken = read_journal(tmp_path / "killer" / JOURNAL_NAME).episodes.values()
    assert [one.outcome for one in broken] == [Outcome.UNSOLVED] * 3


class OnePool(Processes):
    """A pool that replaces Ray's; a process can use only one pool at a time."""

    used = False

    def __init__(self, address: str | None, number: int, most: int) -> None:
        super().__init__(number)

    async def __aenter__(self) -> Self:
        assert not OnePool.used
        OnePool.used = True
        return self

    async def __aexit__(self, *_: object) -> None:
        OnePool.used = False


@pytest.mark.timeout(300)
def test_assessments_of_a_service_use_workers_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # imported here, because workers import this module but do not need these
    from peer import Answering

    from netarena.a2a.client import A2AAgent
    from netarena.a2a.purple import purple_app
    from netarena.a2a.service import listen, serving
    from netarena.cli.executor import Placement, conduct_on

    monkeypatch.setattr("netarena.run.ray_pool.RayPool", OnePool)
    prompts: list[str] = []

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        return "open v1"

    async def run() -> None:
        config = Toy.config_type.parse({"num_queries": 1, "max_iterations": 2, "seed": 11})
        there = conduct_on(Placement("ray", None, 1), allow_link_local=False)
        app = purple_app(Answering(answer), name="purple", description="d")
        async with serving(app, listen("127.0.0.1", 0)) as url:
            agents = [A2AAgent(url, name=ROLE) for _ in range(2)]
            await asyncio.gather(
                *(
                    there(Toy(), config, {ROLE: agent}, out=tmp_path / str(number))
                    for number, agent in enumerate(agents)
                )
            )
            for agent in agents:
                await agent.aclose()

    asyncio.run(run())
    for number in range(2):
        journal = tmp_path / str(number) / JOURNAL_NAME
        episodes = read_journal(journal, slim=False).episodes.values()
        assert {one.steps[0].move for one in episodes} == {"open v1"}
        assert [event["event"] for event in read_events(journal)].count("worker") == 1
    assert len(prompts) == 2 * sum(one.iterations for one in episodes)


#: Time in s that the agent of the next test names in its Retry-After header.
LIMITED_S = 6


@pytest.mark.timeout(300)
def test_all_workers_wait_after_an_agent_has_rate_limited_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peer import Call, message03, raw_server, replying, respond

    from netarena.a2a.client import A2AAgent
    from netarena.cli.executor import UrlSource

    times: list[tuple[str, float]] = []
    refused: list[tuple[str, float]] = []
    #: Set when the other worker has answered a ping that followed the pause.
    known = asyncio.Event()
    passed: list[bool] = []
    pass_on, receive = Remote._pass_on, TestLink.receive

    def pass_on_and_ask(head: Remote, worker: Any, pause: dict[str, Any]) -> None:
        pass_on(head, worker, pause)
        passed.append(True)
        for other in head._ready():
            if other is not worker:
                other.link.send(encode("ping"))

    async def notice(link: TestLink) -> bytes:
        data = await receive(link)
        if passed and b'"pong"' in data:
            known.set()
        return data

    monkeypatch.setattr(Remote, "_pass_on", pass_on_and_ask)
    monkeypatch.setattr(TestLink, "receive", notice)

    async def script(call: Call, writer: asyncio.StreamWriter) -> None:
        if call.method != "POST":
            await replying(message03("open v1"))(call, writer)
            return
        context = call.rpc["params"]["message"]["contextId"]
        times.append((context, clock()))
        others = {one for one, _ in times} - {context}
        if others and not refused:
            refused.append((context, clock()))
            respond(writer, status="429 Slow down", headers={"retry-after": str(LIMITED_S)})
            return
        # the other worker's first request is answered when the pause has arrived there
        await known.wait()
        await replying(message03("open v1"))(call, writer)

    async def run() -> None:
        config = Toy.config_type.parse(
            {"num_queries": 1, "concurrency": 2, "max_iterations": 3, "seed": 11}
        )
        async with raw_server(script) as server:
            agent = A2AAgent(server.url, name=ROLE)

            def source() -> UrlSource:
                return UrlSource(agent.url, None, agent.fetched)

            async with Remote(Processes(2), {ROLE: source}, lambda text: None) as executor:
                await conduct(Toy(), config, {ROLE: agent}, out=tmp_path, executor=executor)
            await agent.aclose()

    asyncio.run(run())
    begin = refused[0][1]
    later = [at - begin for _, at in times if at > begin]
    assert len(times) > 3
    assert min(later) >= LIMITED_S


def test_service_with_workers_refuses_a_participant_at_a_loopback_address(tmp_path: Path) -> None:
    from netarena.a2a.client import A2AAgent
    from netarena.cli.executor import Placement, conduct_on

    there = conduct_on(Placement("ray", "10.0.0.1:1", 1), allow_link_local=False)
    agents = {ROLE: A2AAgent("http://127.0.0.1:1")}
    with pytest.raises(ConfigError, match=r"participants\.toy_operator: http://127\.0\.0\.1:1 is"):
        asyncio.run(there(Toy(), Toy.config_type.parse({}), agents, out=tmp_path))


def test_check_agent_reports_workers_that_cannot_run_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from netarena.cli import check_agent
    from netarena.cli.executor import Placement

    way = Way(only=str(tmp_path / "only"))
    monkeypatch.setattr("netarena.run.ray_pool.RayPool", OnePool)
    monkeypatch.setattr(check_agent, "connect", lambda *_: Valves(way))
    monkeypatch.setattr(check_agent, "make_source", lambda *_: way)
    checks = asyncio.run(check_agent._ask_workers("", Toy(), Placement("ray", None, 3)))
    assert sorted((check.ok, check.detail) for check in checks) == [
        (False, "2 on node-0: agent: lacks the program"),
        (True, "1 on node-0: connected to the agent"),
    ]


def ask_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    """Return what ``check-agent`` reports about two workers."""
    from netarena.cli import check_agent
    from netarena.cli.executor import Placement

    way = Way()
    monkeypatch.setattr("netarena.run.ray_pool.RayPool", OnePool)
    monkeypatch.setattr(check_agent, "connect", lambda *_: Valves(way))
    monkeypatch.setattr(check_agent, "make_source", lambda *_: way)
    return asyncio.run(check_agent._ask_workers("", Toy(), Placement("ray", None, 2)))


def test_check_agent_reports_workers_that_died_after_they_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = Remote.join

    async def die(head: Remote, party: Party) -> RemotePlayer:
        await join(head, party)
        for worker in head._workers:
            os.kill(worker.link.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        await head._changed.wait_for(lambda: all(one.lost for one in head._workers))
        raise AssessmentFailed(head._why_nobody(party.role))

    monkeypatch.setattr(Remote, "join", die)
    monkeypatch.setattr(remote, "MOST_DEATHS", 0)
    (check,) = ask_workers(tmp_path, monkeypatch)
    assert (check.name, check.ok) == ("workers", False)
    assert "all workers that could run the agent toy_operator have died; the last" in check.detail
    assert check.remedy


def test_check_agent_reports_workers_that_cannot_play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netarena.run.worker.code_digest", lambda package: "0" * 16)
    (check,) = ask_workers(tmp_path, monkeypatch)
    assert (check.name, check.ok) == ("workers", False)
    assert check.detail.startswith(
        "no worker can run episodes: "
    )  # names no option of another command
    assert check.remedy


def test_service_logs_workers_that_cannot_play_and_fails_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from netarena.a2a.client import A2AAgent
    from netarena.cli.executor import Placement, conduct_on

    monkeypatch.setattr("netarena.run.ray_pool.RayPool", OnePool)
    monkeypatch.setattr("netarena.run.worker.code_digest", lambda package: "0" * 16)
    there = conduct_on(Placement("ray", None, 1), allow_link_local=False)
    agents = {ROLE: A2AAgent("http://127.0.0.1:1")}
    with pytest.raises(
        AssessmentFailed, match="cannot start workers: no worker can run episodes: "
    ):
        asyncio.run(there(Toy(), Toy.config_type.parse({}), agents, out=tmp_path))
    logged = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert [line.partition(": ")[0] for line in logged] == ["cannot start workers"]


def test_invalid_request_is_refused_by_a_service_with_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from netarena.a2a.client import A2AAgent
    from netarena.cli.executor import Placement, conduct_on

    monkeypatch.setattr("netarena.run.ray_pool.RayPool", OnePool)
    there = conduct_on(Placement("ray", None, 1), allow_link_local=False)
    agents = {"no role": A2AAgent("http://127.0.0.1:1")}
    with pytest.raises(ConfigError, match=r"participants: the role 'no role' must match"):
        asyncio.run(there(Toy(), Toy.config_type.parse({}), agents, out=tmp_path))


class BrokenLink:
    """A connection with a worker whose messages cannot be read."""

    node = "node-0"

    def send(self, data: bytes) -> None:
        """Drop the bytes."""

    async def receive(self) -> bytes:
        raise RuntimeError("the stream is broken")

    async def examine(self) -> None:
        """Do nothing: the worker's machine always answers."""

    async def close(self) -> None:
        """Do nothing."""


class BrokenPool:
    """Starts workers whose messages cannot be read."""

    size = 2

    async def hire(self) -> BrokenLink:
        return BrokenLink()


@pytest.mark.timeout(20)
def test_worker_whose_connection_has_an_unexpected_error_counts_as_lost(tmp_path: Path) -> None:
    pool: Any = BrokenPool()
    with pytest.raises(
        ConfigError, match="no worker can run episodes: RuntimeError: the stream is broken"
    ):
        examine(tmp_path, Way(), pool)


def test_run_with_an_agent_that_cannot_be_reached_ends(tmp_path: Path) -> None:
    with pytest.raises(AgentSilent, match="could not be reached"):
        examine(tmp_path, Way(kills="silent"), Processes(1))


def test_worker_with_a_different_version_of_the_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netarena.run.worker.code_digest", lambda package: "0" * 16)
    with pytest.raises(
        ConfigError, match=r"no worker can run episodes.* not 0000.*install the same release"
    ):
        examine(tmp_path, Way(), Processes(1))


def test_cancelled_run_ends_all_workers(tmp_path: Path) -> None:
    pool, marker = Processes(2), tmp_path / "marker"

    async def run() -> None:
        way = Way(kills="forever", marker=str(marker))
        config = Toy.config_type.parse({"num_queries": 4, "seed": 1})
        async with Remote(pool, {ROLE: lambda: way}, lambda text: None) as executor:
            task = asyncio.ensure_future(
                conduct(Toy(), config, {ROLE: Valves(way)}, out=tmp_path, executor=executor)
            )
            async with asyncio.timeout(60):
                while not marker.exists():  # noqa: ASYNC110 -- another process makes it
                    await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert [link.relay._process.poll() for link in pool.links] == [0, 0]


def test_decoder_joins_split_messages() -> None:
    data = encode("go", id=1) + encode("played", b"\x00body", id=2, asked=True, world_s=0.5)
    decoder = Decoder()
    messages = [one for byte in data for one in decoder.feed(bytes([byte]))]
    assert [one.what for one in messages] == ["go", "played"]
    assert read_played(messages[1].values, messages[1].body).world_s == 0.5
