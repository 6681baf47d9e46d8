"""Contract tests that every application must pass, as a base class of test classes.

    from netarena.testing import ApplicationContract

    class TestToy(ApplicationContract):
        application = "toy"
        config = {"num_queries": 2}

The tests use the application's real environment. If the machine cannot run it, the application's
own test module must skip the tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from unittest import SkipTest

from netarena.agent.interface import Agent, Brief, context_id
from netarena.config import Briefing, Config, PromptStyle
from netarena.errors import ReplyRefused
from netarena.model import (
    AgentInfo,
    Claim,
    Episode,
    Execution,
    Fit,
    Move,
    Outcome,
    Query,
    Refusal,
    Reply,
    State,
)
from netarena.run.assessment import conduct
from netarena.run.journal import JOURNAL_NAME, read_journal
from netarena.run.record import make_record
from netarena.sandbox.child import module_path
from netarena.task.application import Application, Environment, load
from netarena.task.evidence import RULE, Evidence
from netarena.task.picture import Matrix
from netarena.task.prompt import render
from netarena.task.ticket import NOT_HERE

T = TypeVar("T")

#: Replies that every application refuses.
GARBAGE: tuple[str, ...] = (
    "",
    " \n\t ",
    "I am sorry, I cannot help with that.",
    "```",
    "``````",
    "```\n```",
    "{}",
    "[]",
    "null",
    '{"machine": 1}',
    "\x00\x01\x02",
    "\u202e\ufeff\U0001f600",
    "{" * 10_000,
    "`" * 10_000,
    "```python\n" * 2_000,
    "a" * 200_000,
)

_DRAW = """
import json, sys
from netarena.task.application import load
application = load(sys.argv[1])
config = application.config_type.parse(json.loads(sys.argv[2]))
for query in application.generate(config, int(sys.argv[3])):
    print(query.model_dump_json())
"""


class Recorded:
    """In-process agent. A function computes each reply from the query and the number of the turn,
    starting at 0."""

    def __init__(self, brief: Brief, reply: Callable[[Query, int], str]) -> None:
        self._reply = reply
        self._turns: dict[str, int] = {}
        self._queries = {
            context_id(
                brief.seed,
                application=brief.application.recorded_name,
                shape_hash=brief.config.shape_hash(),
                index=query.index,
                role=brief.role,
                attempt=attempt,
            ): query
            for query in brief.application.generate(brief.config, brief.seed)
            for attempt in range(2)
        }

    @property
    def info(self) -> AgentInfo:
        return AgentInfo(name="recorded")

    async def open(self, *, timeout_s: float) -> None:
        pass

    async def ask(self, prompt: str, *, context_id: str, timeout_s: float) -> Reply:
        del prompt, timeout_s
        turn = self._turns.get(context_id, 0)
        self._turns[context_id] = turn + 1
        return Reply(text=self._reply(self._queries[context_id], turn))

    async def aclose(self) -> None:
        pass


class Watched(Environment):
    """Wrapper of an environment that stores the environment's first and last state.

    The wrapper asserts that a move that is not executed leaves the state unchanged.
    """

    def __init__(self, inner: Environment) -> None:
        self.inner = inner
        self.first: State = None
        self.last: State = None

    async def open(self) -> State:
        self.first = await self.inner.open()
        return self.first

    async def execute(self, move: Move) -> Execution:
        before = await self.inner.observe()
        execution = await self.inner.execute(move)
        if not execution.executed:
            assert await self.inner.observe() == before, (
                "a move that was not executed changed the state"
            )
        return execution

    async def observe(self) -> State:
        return await self.inner.observe()

    async def close(self) -> None:
        try:
            self.last = await self.inner.observe()
        finally:
            await self.inner.close()


def belongings(mark: str) -> dict[str, list[str]]:
    """Return the resources in use, by kind. Tests compare two results to detect leaks.

    The kinds are: children, file descriptors and threads of this process; temporary files, network
    links, network namespaces and mounts of the machine; and processes that have inherited the
    environment variable ``mark``.
    """
    children: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # the thread may have ended meanwhile
            children += (task / "children").read_text().split()
    descriptors = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:
            continue
        if not target.startswith(("anon_inode:", "/dev/urandom", "/proc/")):
            descriptors.append(target)
    return {
        "children": sorted(children),
        "descriptors": sorted(descriptors),
        "temporary files": _names(tempfile.gettempdir()),
        "network links": _names("/sys/class/net"),
        "network namespaces": _names("/run/netns") if Path("/run/netns").exists() else [],
        "mounts": Path("/proc/self/mounts").read_text().splitlines(),
        "descendants": [str(pid) for pid in _marked(mark)],
        "threads": sorted(
            t.name for t in threading.enumerate() if not t.name.startswith("asyncio_")
        ),
    }


def _marked(mark: str) -> list[int]:
    """Return the ids of other processes that have the environment variable ``mark``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark.encode() in environment:
                found.append(int(entry.name))
    return sorted(found)


#: Cached queries by test class, application class and config.
_DRAWN: dict[tuple[type, type, str], tuple[Query, ...]] = {}

#: Cached episodes of ``played`` by test class, application class, reply function and config keys.
_PLAYED: dict[tuple[type, type, Callable[..., str], str], list[Episode]] = {}


class ApplicationContract:
    """Base class of contract tests; a subclass names an application and a small config."""

    application: ClassVar[str]
    config: ClassVar[Mapping[str, Any]] = {}
    #: Additional config keys of tickets.
    ticket: ClassVar[Mapping[str, Any]] = {}
    #: A large number, so that the seed is recognised in texts that must not contain it.
    seed: ClassVar[int] = 7_777_777_777_777_777
    #: Hand-written rules (see ``netarena.task.evidence``) that are known to distinguish candidates
    #: or tickets. Each of these rules shows a defect of the application that must be fixed.
    residues: ClassVar[frozenset[str]] = frozenset()
    #: Approximate number of queries that the tests run in live environments: every k-th query.
    live: ClassVar[int] = 24

    # Helper methods.

    def load(self, **more: Any) -> tuple[Application, Config, list[Query]]:
        """Return the application, its config with ``more`` keys, and the queries of ``seed``."""
        application = load(self.application)
        config = application.config_type.parse({**self.config, **more, "seed": self.seed})
        known = (type(self), type(application), config.model_dump_json())
        if known not in _DRAWN:
            _DRAWN[known] = tuple(application.generate(config, self.seed))
        return application, config, list(_DRAWN[known])

    def play(
        self,
        reply: Callable[[Application, Query, int], str],
        watch: Callable[[Query, Watched], None] | None = None,
        **more: Any,
    ) -> list[Episode]:
        """Run about ``live`` queries with the replies of ``reply``; return the complete episodes.

        ``watch`` is called with each query and its environment, which is not open yet. ``more``
        contains additional config keys.
        """
        application, config, queries = self.load(**more)
        make = application.environment

        def make_watched(query: Query, config: Config) -> Environment:
            watched = Watched(make(query, config))
            if watch is not None:
                watch(query, watched)
            return watched

        application.environment = make_watched  # type: ignore[method-assign] # this instance only
        stride = max(1, len(queries) // self.live)
        chosen = {query.index for query in queries[::stride]}
        brief = Brief(application, config, self.seed, application.role)
        agent: Agent = Recorded(brief, lambda query, turn: reply(application, query, turn))

        async def run(out: Path) -> None:
            async with application:
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "queries.jsonl"
                    path.write_text(
                        "".join(q.model_dump_json() + "\n" for q in queries if q.index in chosen)
                    )
                    # The file contains only some queries of each label, so the file determines the
                    # number of queries.
                    keys = {**self.config, **more, "seed": self.seed, "benchmark_path": str(path)}
                    keys.pop("num_queries", None)
                    chosen_config = type(config).parse(keys)
                    await conduct(application, chosen_config, {application.role: agent}, out=out)

        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(run(Path(folder)))
            past = read_journal(Path(folder) / JOURNAL_NAME, slim=False)
        assert len(past.episodes) == len(chosen), "some queries have no verdict"
        return list(past.episodes.values())

    def played(self, reply: Callable[[Application, Query, int], str], **more: Any) -> list[Episode]:
        """Return the episodes of ``play``, cached for all tests of the class."""
        application = type(load(self.application))
        known = (type(self), application, reply, json.dumps(more, sort_keys=True))
        if known not in _PLAYED:
            _PLAYED[known] = self.play(reply, **more)
        return _PLAYED[known]

    def inspect(self, look: Callable[[Application, Query, Any], Awaitable[T]]) -> list[T]:
        """Return the results of ``look`` on the open environments of a few queries."""
        application, config, queries = self.load()
        stride = max(1, len(queries) // min(self.live, 6))

        async def run() -> list[T]:
            seen = []
            async with application:
                for query in queries[::stride]:
                    environment = application.environment(query, config)
                    try:
                        await environment.open()
                        seen.append(await look(application, query, environment))
                    finally:
                        await environment.close()
            return seen

        return asyncio.run(run())

    # Queries.

    def test_same_seed_gives_same_queries_in_any_process(self) -> None:
        _, _, queries = self.load()
        here = [query.model_dump(mode="json") for query in queries]
        arguments = [self.application, json.dumps(dict(self.config)), str(self.seed)]
        for hash_seed in ("0", "4242"):
            drawn = subprocess.run(
                [sys.executable, "-P", "-c", _DRAW, *arguments],
                env={**os.environ, "PYTHONPATH": module_path(), "PYTHONHASHSEED": hash_seed},
                capture_output=True,
                check=True,
                text=True,
            )
            there = [json.loads(line) for line in drawn.stdout.splitlines()]
            assert there == here, (
                "another process draws other queries from the same seed: generate must use "
                f"only self.rng, not set order or hash(); {_first_difference(here, there)}"
            )

    def test_different_seeds_give_different_queries(self) -> None:
        application, config, queries = self.load()
        other = list(application.generate(config, self.seed + 1))
        assert [(q.text, q.actions) for q in other] != [(q.text, q.actions) for q in queries], (
            "two seeds draw the same queries: generate must draw from self.rng"
        )

    def test_indices_start_at_0_and_determine_the_query_ids(self) -> None:
        application, config, queries = self.load()
        found = [query.index for query in queries]
        assert found == list(range(len(queries))), f"indices must count from 0: {found[:20]}"
        for query in queries:
            wanted = application.query_id(config, self.seed, query.index)
            assert query.id == wanted, (
                f"the id of a query is {query.id}, but query_id returns {wanted}"
            )

    def test_each_query_depends_only_on_its_own_random_generator(self) -> None:
        application, config, queries = self.load()
        draw = application.rng
        other = len(queries) // 2
        changed = []
        for shift in range(1, 9):  # two seeds may give the same query by chance

            def disturb(config: Config, seed: int, index: int, shift: int = shift) -> random.Random:
                return draw(config, seed + shift if index == other else seed, index)

            application.rng = disturb  # type: ignore[method-assign] # this instance only
            disturbed = application.generate(config, self.seed)
            unlike = [a.index for a, b in zip(queries, disturbed, strict=True) if a != b]
            assert set(unlike) <= {other}, (
                f"drawing query {other} changed queries {unlike}: draw each from its own rng"
            )
            changed += unlike
        assert changed, f"query {other} does not depend on self.rng(config, seed, {other})"

    def test_size_labels_and_generate_from_agree_with_generate(self) -> None:
        application, config, queries = self.load()
        size, labels = application.size(config), [*application.labels(config)]
        assert size == len(queries), f"size is {size}, but {len(queries)} queries are drawn"
        found = [query.label for query in queries]
        assert found == labels * config.num_queries, (
            f"labels must alternate in the order of labels(), {labels}, not {found[:20]}"
        )
        for start in (len(queries) // 2, len(queries)):
            rest = application.generate_from(config, self.seed, start)
            later = [query for query in rest if query.index >= start]
            assert later == queries[start:], f"generate_from {start} differs from generate"

    def test_larger_num_queries_only_adds_queries(self) -> None:
        application, config, queries = self.load()
        labels = [*application.labels(config)]
        for number in (1, config.num_queries + 1):
            other = config.model_copy(update={"num_queries": number})
            drawn = list(islice(application.generate(other, self.seed), len(queries)))
            common = min(number, config.num_queries) * len(labels)
            assert drawn[:common] == queries[:common], (
                f"with num_queries {number}, the first {common} queries must stay the same"
            )
            assert len(drawn) == min(number * len(labels), len(queries)), (
                f"with num_queries {number}, generate draws {len(drawn)} queries"
            )

    def test_every_query_has_a_text_actions_and_a_known_level(self) -> None:
        application, _, queries = self.load()
        for query in queries:
            levels = application.config_type.LEVELS
            assert query.text.strip(), f"query {query.id} has no text"
            assert query.actions, f"query {query.id} has no actions, so it has no fault or request"
            assert query.level in levels, f"the level {query.level!r} is not one of {levels}"
            for action in query.actions:
                assert application.describe(action).strip(), (
                    f"describe returns no text for {action}"
                )
        assert "actions" in application.hidden, (
            "hidden must contain actions, which reveal the solution"
        )

    def test_records_survive_a_json_round_trip(self) -> None:
        _, _, queries = self.load()
        for query in queries:
            read = Query.model_validate_json(query.model_dump_json())
            assert read == query, (
                f"writing and reading as JSON changes query {query.id}: use JSON values, and lists "
                "instead of tuples"
            )
        for episode in self.played(_solve):
            read_back = Episode.model_validate_json(episode.model_dump_json())
            assert read_back == episode, (
                f"writing and reading as JSON changes an episode of {episode.query_id}"
            )

    # Training.

    def demonstrated(self) -> list[Episode]:
        """Return the episodes of about ``live`` queries, with demonstrations as replies."""
        application, config, queries = self.load()
        longest = max(len(application.demonstrate(query)) for query in queries)
        limit = min(application.turns(config, query) for query in queries)
        more = {"max_iterations": longest} if longest > limit else {}
        return self.played(_demonstrate, **more)

    def test_demonstration_solves_safely_and_observes_before_each_change(self) -> None:
        application, _, queries = self.load()
        turns = {query.id: len(application.demonstrate(query)) for query in queries}
        # The method of the base class returns the reference solution, without observations.
        bare = type(application).demonstrate is Application.demonstrate
        for episode in self.demonstrated():
            _assert_solved(episode)
            states = [episode.initial_state, *(step.state for step in episode.steps)]
            changed = [before != after for before, after in pairwise(states)]
            if not bare and turns[episode.query_id] > 1:  # one turn cannot both observe and repair
                looked = [False, *(not one for one in changed)]
                assert all(looked[turn] for turn, one in enumerate(changed) if one), (
                    f"a demonstration of {episode.query_id} changes the state without observing "
                    f"it in the turn before: turns that change it are {changed}"
                )

    def test_progress_is_1_exactly_in_correct_states(self) -> None:
        application, _, queries = self.load()
        if type(application).progress is Application.progress:
            return
        by_id = {query.id: query for query in queries}
        for episode in [*self.played(_solve), *self.demonstrated()]:
            query, first = by_id[episode.query_id], episode.initial_state
            done = [step.state for step in episode.steps if step.state is not None]
            told = [application.progress(query, state) for state in (first, *done)]
            for state, share in zip((first, *done), told, strict=True):
                assert 0.0 <= share <= 1.0, f"progress is {share}, not in [0, 1]"
                correct = application.judge(query, first, state, state).correct
                assert (share == 1.0) is correct, (
                    f"progress is {share} in a state of {query.id} that judge reports as "
                    f"{'correct' if correct else 'wrong'}: {state}"
                )
                # Progress must depend only on the stored state, not on the injected faults.
                other, read = load(self.application), json.loads(json.dumps(state))
                blind = other.progress(query.model_copy(update={"actions": ()}), read)
                assert blind == share, "progress depends on the actions, not only on the state"
            assert episode.outcome is not Outcome.SOLVED or told[0] < told[-1] == 1.0, (
                f"progress does not rise to 1 while {query.id} is solved: {told}"
            )

    # Replies.

    def test_reference_solution_solves_every_query_safely(self) -> None:
        by_id = {query.id: query for query in self.load()[2]}
        for episode in self.played(_solve):
            _assert_solved(episode)
            _assert_drawn(self.load()[0], by_id[episode.query_id], episode)

    def test_doing_nothing_solves_no_query(self) -> None:
        for episode in self.played(_decline):
            assert episode.outcome is Outcome.AGENT_FAILED, (
                f"{episode.query_id} ends as {episode.outcome}, although every reply was unusable: "
                f"{episode.detail}"
            )
            assert not episode.correct, f"{episode.query_id} is judged correct without a move"
            assert not episode.safe, f"{episode.query_id} is judged safe without a move"

        async def judge_start(application: Application, query: Query, environment: Any) -> bool:
            state = await environment.observe()
            return application.judge(query, state, state, state).correct

        assert not any(self.inspect(judge_start)), "judge returns correct for an initial state"

    def test_garbage_replies_are_always_refused_with_a_message(self) -> None:
        application, _, _ = self.load()
        rng = random.Random(self.seed)  # noqa: S311 -- not for secrets
        noise = ["".join(map(chr, rng.choices(range(32, 1000), k=200))) for _ in range(200)]
        for reply in [*GARBAGE, *noise]:
            assert _refusal(application, reply).strip(), (
                f"ReplyRefused for {reply[:60]!r} has no message"
            )

    def test_a_refused_reply_leaves_the_state_unchanged(self) -> None:
        watched: dict[str, Watched] = {}
        episodes = self.play(
            lambda *asked: GARBAGE[asked[2] % len(GARBAGE)],
            lambda query, environment: watched.update({query.id: environment}),
        )
        for episode in episodes:
            assert all(step.refused and not step.executed for step in episode.steps), (
                f"a garbage reply was executed in {episode.query_id}: parse must raise ReplyRefused"
            )
            world = watched[episode.query_id]
            assert world.first == world.last, f"refused replies changed {episode.query_id}"

    def test_observing_changes_nothing(self) -> None:
        async def look(_: Application, __: Query, environment: Any) -> bool:
            first = await environment.observe()
            return all([await environment.observe() == first for _ in range(3)])

        assert all(self.inspect(look)), (
            "observe must return the same state as long as nothing changes it"
        )

    def test_prompts_and_records_reveal_nothing_hidden(self) -> None:
        application, _, queries = self.load()
        by_id = {query.id: query for query in queries}
        for episode in self.played(_solve):
            query = by_id[episode.query_id]
            replies = application.solve(query)
            for turn, step in enumerate(episode.steps):
                assert query.text in step.prompt, f"a prompt of {query.id} lacks the query's text"
                _assert_hidden(query, replies[turn:], step.prompt)
        for episode in self.played(_decline):
            query = by_id[episode.query_id]
            record = json.dumps(make_record(application, query, episode), ensure_ascii=False)
            told = [reply for reply in application.solve(query) if _quoted(reply) in record]
            assert not told, f"the record of {query.id} contains its solution: {told[0]!r}"

    # Tickets.

    def ticketed(self) -> dict[str, Any]:
        """Return the config keys of a ticket."""
        return {**TICKET, **self.ticket}

    def load_ticket(self) -> tuple[Application, dict[str, Query]]:
        """Return the application, and the queries of tickets by id.

        Skips the test if the application has no tickets.
        """
        if Briefing.TICKET not in load(self.application).config_type.BRIEFINGS:
            raise SkipTest(f"{self.application} has no tickets")
        application, _, queries = self.load(**self.ticketed())
        return application, {query.id: query for query in queries}

    def test_reference_solution_and_declaration_solve_a_ticket(self) -> None:
        _, by_id = self.load_ticket()
        for episode in self.played(_solve_and_declare, **self.ticketed()):
            _assert_solved(episode)
            assert episode.claim_right is True, f"the declaration of {episode.query_id} is wrong"
            if by_id[episode.query_id].actions:
                assert episode.localised is not None, (
                    f"tickets.declaration reads no causes in {episode.query_id}"
                )
                assert episode.localised.cause == Fit(recall=1.0, precision=1.0), (
                    f"tickets.causes of {episode.query_id} differ from the declared causes: "
                    f"{episode.localised.cause}"
                )

    def test_ticket_prompt_reveals_only_symptoms(self) -> None:
        _, by_id = self.load_ticket()
        for episode in self.played(_solve_and_declare, **self.ticketed()):
            query = by_id[episode.query_id]
            replies = load(self.application).solve(query)
            tasks = {step.prompt.rpartition("## Task")[2] for step in episode.steps}
            assert len(tasks) == 1, f"the reported symptoms change between turns: {tasks}"
            for turn, step in enumerate(episode.steps):
                _assert_hidden(query, replies[turn:], step.prompt)

    def test_declaration_in_the_first_turn_is_not_safe(self) -> None:
        self.load_ticket()
        for episode in self.play(lambda app, *_: app.tickets.declare(()), **self.ticketed()):
            assert episode.claimed, (
                f"tickets.declaration reads no declaration in {episode.query_id}"
            )
            assert len(episode.steps) == 1, "an episode continues after a declaration"
            assert not episode.safe, (
                f"a declaration in the first turn of {episode.query_id} is judged safe"
            )

    def test_repair_before_another_repair_that_it_requires_is_unsafe(self) -> None:
        application, by_id = self.load_ticket()
        hasty = {one.id: list(application.hasty(one)) for one in by_id.values()}
        if not any(hasty.values()):
            return  # no repair depends on another repair

        def reply(_: Application, query: Query, turn: int) -> str:
            return _nth((hasty[query.id] or [[]])[0], turn)

        for episode in self.play(reply, **self.ticketed()):
            assert not (hasty[episode.query_id] and episode.safe), (
                f"an order of repairs that hasty returns for {episode.query_id} is judged safe"
            )

    def test_declaration_is_parsed_with_its_causes_and_refusals(self) -> None:
        application, by_id = self.load_ticket()
        for query in by_id.values():
            tickets = application.tickets
            causes = tickets.causes(query)
            refused, reply = tickets.refusals(query), tickets.reference(query)
            claim = tickets.declaration(application.parse(reply))
            assert claim is not None, f"tickets.declaration reads no declaration in {reply!r}"
            assert set(claim.causes or ()) == set(causes), (
                f"{reply!r} is read as {claim.causes}, not as {causes}"
            )
            assert set(claim.refused) == set(refused), (
                f"{reply!r} is read as {claim.refused}, not as {refused}"
            )
            requested = tickets.requested(query)
            assert all(1 <= one.change <= requested for one in refused), (
                f"{query.id} requests {requested} changes, but tickets.refusals returns {refused}"
            )
            assert not tickets.unsettled(query, claim), (
                f"tickets.unsettled rejects the reference declaration of {query.id}: {reply!r}"
            )

    def test_only_the_right_refusals_solve_a_ticket(self) -> None:
        application, by_id = self.load_ticket()
        tickets = application.tickets
        if not any(tickets.requested(query) for query in by_id.values()):
            return  # no query requests changes
        words = {one.because for query in by_id.values() for one in tickets.refusals(query)}
        for query in by_id.values():
            right = {*tickets.refusals(query)}
            numbers = range(1, tickets.requested(query) + 1)
            single = [Refusal(change=n, because=word) for n in numbers for word in sorted(words)]
            every = [tuple(one for one in single if one.because == word) for word in sorted(words)]
            for said in [(), *((one,) for one in single), *every]:
                settled = not tickets.unsettled(query, Claim(refused=said))
                assert settled is ({*said} == right), (
                    f"tickets.unsettled {'accepts' if settled else 'rejects'} these refused "
                    f"changes of {query.id}: {[*said]}; the right ones are {[*right]}"
                )
            assert bool(tickets.unsettled(query, None)) is bool(right), (
                f"tickets.unsettled must reject a missing declaration of {query.id} if and only if "
                "a change must be refused"
            )
        for episode in self.play(_solve_and_declare_causes, **self.ticketed()):
            needed = bool(tickets.refusals(by_id[episode.query_id]))
            assert episode.correct is not needed, (
                f"{episode.query_id} ends as {episode.outcome} after a declaration that refuses no "
                "change"
            )

    def test_hand_written_rules_find_no_fault_in_the_traces_of_a_ticket(self) -> None:
        """Run a small version of ``netarena audit --traces``.

        Each hand-written rule must give all candidates of one role the same score, in all tickets.
        """
        application, by_id = self.load_ticket()
        config = application.config_type.parse({**self.config, **self.ticketed()})

        async def read() -> list[Evidence]:
            async with application:
                found = [
                    await application.evidence(query, config)
                    for query in [*by_id.values()][: min(self.live, 2)]
                ]
            return [one for one in found if one is not None]

        evidence = asyncio.run(read())
        if not evidence:
            raise SkipTest(f"{self.application} does not support --traces")
        rules: defaultdict[str, set[float]] = defaultdict(set)
        for one in evidence:
            targets = {each.name for each in one.candidates if each.target}
            assert targets or not one.wrong, (
                f"{one.id} has a fault, but no candidate of its evidence is a target"
            )
            for name, value in one.trace.items():
                if name.startswith(RULE) and name not in self.residues:
                    rules[name].add(value)
            for each in one.candidates:
                for name, value in each.trace.items():
                    if name.startswith(RULE) and name.partition("~")[0] not in self.residues:
                        rules[f"{one.id}: {name} of a {each.role or 'candidate'}"].add(value)
        telling = {name: sorted(seen) for name, seen in rules.items() if len(seen) > 1}
        assert not telling, f"rules that distinguish candidates or tickets: {telling}"

    def test_declaration_is_refused_without_a_ticket(self) -> None:
        self.load_ticket()
        for episode in self.play(lambda app, *_: app.tickets.declare(())):
            assert all(step.refused == NOT_HERE for step in episode.steps), (
                f"{episode.query_id} is not a ticket, so each declaration must be refused: "
                f"{[step.refused for step in episode.steps]}"
            )

    def test_prompt_of_every_style_has_the_task_and_hides_the_solution(self) -> None:
        async def check(application: Application, query: Query, environment: Any) -> None:
            parts = application.prompt(query, await environment.observe(), [])
            for style in PromptStyle:
                prompt = render(style, parts)
                assert query.text in prompt, f"a {style} prompt lacks the query's text"
                _assert_hidden(query, application.solve(query), prompt)

        self.inspect(check)

    # The world.

    def test_tear_down_leaves_nothing_behind(self) -> None:
        usual = tempfile.gettempdir()
        mark = f"NETARENA_CONTRACT_{os.getpid()}_{id(self)}"
        with tempfile.TemporaryDirectory() as private:
            Path(private).chmod(0o711)  # commands of other users access files below it
            tempfile.tempdir = private  # other processes do not create files in this folder
            os.environ[mark] = "1"
            try:
                self._use()  # loads modules and fills caches, which do not count as leaks
                before = belongings(mark)
                self._use()
                after = belongings(mark)
                left = {kind: after[kind] for kind in after if after[kind] != before[kind]}
                assert not left, f"worlds leave resources behind: {left}; before: " + str(
                    {kind: before[kind] for kind in left}
                )
            finally:
                del os.environ[mark]
                tempfile.tempdir = usual

    def _use(self) -> None:
        """Run episodes with correct, unusable and random replies; cancel some environments while
        they open."""
        self.play(_solve)
        self.play(_decline)
        rng = random.Random(self.seed)  # noqa: S311 -- not for secrets
        if load(self.application).baselines.offers("random"):
            self.play(lambda app, query, _: app.baselines.random_reply(query, rng))
        application, config, queries = self.load()

        async def cancel() -> None:
            async with application:
                for delay in range(6):
                    environment = application.environment(queries[0], config)
                    opening = asyncio.ensure_future(environment.open())
                    for _ in range(2**delay):
                        await asyncio.sleep(0)
                    opening.cancel()
                    with suppress(asyncio.CancelledError):
                        await opening
                    await environment.close()

        asyncio.run(cancel())


#: Config keys of a ticket.
TICKET: Mapping[str, Any] = {"briefing": "ticket", "max_iterations": 12}


def _solve(application: Application, query: Query, turn: int) -> str:
    return _nth(application.solve(query), turn)


def _demonstrate(application: Application, query: Query, turn: int) -> str:
    return _nth(application.demonstrate(query), turn)


def _decline(*_: Any) -> str:
    return "I would rather not."


def _solve_and_declare(application: Application, query: Query, turn: int) -> str:
    replies = [*application.solve(query), application.tickets.reference(query)]
    return replies[min(turn, len(replies) - 1)]


def _solve_and_declare_causes(application: Application, query: Query, turn: int) -> str:
    """Return a turn's reply: the reference repairs, then a declaration that refuses no change."""
    tickets = application.tickets
    replies = [
        *(one for one in application.solve(query) if not _declares(application, one)),
        tickets.declare(tickets.causes(query)),
    ]
    return replies[min(turn, len(replies) - 1)]


def _declares(application: Application, reply: str) -> bool:
    return application.tickets.declaration(application.parse(reply)) is not None


def _assert_solved(episode: Episode) -> None:
    told = [step.refused or step.output for step in episode.steps]
    assert episode.outcome is Outcome.SOLVED, (
        f"the solution of {episode.query_id} ends as {episode.outcome}: {episode.detail} "
        f"{[*episode.evidence]} after {told}"
    )
    found = [
        one.detail for step in episode.steps if step.judgement for one in step.judgement.findings
    ]
    assert episode.safe, f"the solution of {episode.query_id} is judged unsafe: {found}"


def _first_difference(here: list[Any], there: list[Any]) -> str:
    for one, other in zip(here, there, strict=False):
        if one != other:
            return f"the first difference: {one} and {other}"
    return f"{len(here)} and {len(there)} queries"


def _assert_hidden(query: Query, replies: Sequence[str], prompt: str) -> None:
    assert query.id not in prompt, f"a prompt contains the query's id, {query.id}"
    assert str(query.seed) not in prompt, f"a prompt of {query.id} contains the seed"
    told = [reply for reply in replies if reply in prompt]
    assert not told, f"a prompt of {query.id} contains its solution: {told[0]!r}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _assert_drawn(application: Application, query: Query, episode: Episode) -> None:
    """Assert that the matrices of a solved episode have wrong marks at the start, and no wrong
    marks at the end."""
    drawn = [application.pictures.draw(query, episode, n) for n in range(len(episode.steps) + 1)]
    marks = [
        [mark for one in pictures if isinstance(one, Matrix) for row in one.cells for mark in row]
        for pictures in drawn
    ]
    assert not any(mark.wrong for mark in marks[-1]), (
        f"a picture of the solved query {query.id} shows a wrong mark"
    )
    assert not marks[0] or any(mark.wrong for mark in marks[0]), (
        f"a picture of the initial state of {query.id} shows no wrong mark"
    )


def _refusal(application: Application, reply: str) -> str:
    """Return the reason why ``reply`` is refused. Raises AssertionError if it is not refused."""
    try:
        move = application.parse(reply)
    except ReplyRefused as refused:
        return str(refused)
    raise AssertionError(f"the reply {reply[:60]!r} must be refused, but was parsed as {move!r}")


def _names(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def _nth(replies: Sequence[str], turn: int) -> str:
    return replies[turn] if turn < len(replies) else "I have nothing more to do."
