from __future__ import annotations

import dataclasses
import threading

import pytest

from a2a_purple.scripted import (
    Blanket,
    Heuristic,
    Hostile,
    Noop,
    Oracle,
    Parser,
    Push,
    Random,
    Shuffle,
)
from netarena.agent.interface import Agent, Brief, context_id
from netarena.config import Briefing, Config
from netarena.errors import AgentFailed, ConfigError, FailureReason
from netarena.model import Action
from netarena.task.application import Drawn, Labelled
from netarena.task.ticket import Tickets
from tests.fake.parrot import Parrot, ParrotBaselines

pytestmark = pytest.mark.anyio


def context(brief: Brief, index: int, attempt: int = 0, repeat: int = 1) -> str:
    return context_id(
        brief.seed,
        application=brief.application.name,
        shape_hash=brief.config.shape_hash(),
        index=index,
        role=brief.role,
        attempt=attempt,
        repeat=repeat,
    )


async def say(agent: Agent, context_id: str) -> str:
    return (await agent.ask("whatever", context_id=context_id, timeout_s=10)).text


@pytest.fixture
def texts(brief):
    return [query.text for query in brief.application.generate(brief.config, brief.seed)]


async def test_oracle_identifies_an_episode_by_its_context_id(brief, texts):
    oracle = Oracle(brief)
    for index in (4, 0, 5):  # in any order
        assert await say(oracle, context(brief, index)) == f"{texts[index]} a"


async def test_turns_are_counted_per_episode_and_a_finished_solution_starts_again(brief, texts):
    oracle = Oracle(brief)
    first, second = context(brief, 0), context(brief, 1)
    said = [await say(oracle, one) for one in (first, second, first, first, second)]
    assert said == [f"{texts[i]} {part}" for i, part in ((0, "a"), (1, "a"), (0, "b"))] + [
        f"{texts[0]} a",
        f"{texts[1]} b",
    ]


@pytest.mark.parametrize("attempt", [1, 9])
async def test_later_attempt_of_an_episode_starts_at_the_first_turn(brief, texts, attempt):
    oracle = Oracle(brief)
    await say(oracle, context(brief, 2))
    assert await say(oracle, context(brief, 2, attempt)) == f"{texts[2]} a"


@pytest.mark.parametrize("kind", [Oracle, Random, Blanket])
async def test_error_for_another_assessment_contains_the_role_but_not_the_seed(brief, kind, caplog):
    stray = context(dataclasses.replace(brief, seed=8), 0)
    brief = dataclasses.replace(brief, seed=123456789)
    agent = kind(brief)
    for _ in range(2):
        with pytest.raises(AgentFailed, match="was started for another assessment") as caught:
            await say(agent, stray)
        assert caught.value.reason is FailureReason.TASK_FAILED
        assert "parrot_operator" in str(caught.value)
        assert str(brief.seed) not in str(caught.value)
    (line,) = caplog.messages  # logged only once, however often the agent is asked
    assert line == caught.value.detail


async def test_conversations_of_other_assessments_are_not_stored(brief):
    oracle = Oracle(brief)
    for index in range(1000, 1200):
        with pytest.raises(AgentFailed):
            await say(oracle, context(brief, index))
    assert not oracle._register._asked


async def test_queries_are_drawn_once_and_only_when_needed(brief):
    oracle = Oracle(brief)
    await oracle.open(timeout_s=1)
    assert brief.application.drawn == []
    for index in range(6):
        await say(oracle, context(brief, index))
    await oracle.aclose()
    assert brief.application.drawn == [(7, 3)]


class Flock(Labelled, Parrot):
    """An application that can draw any query without the previous ones."""

    labels = Parrot.labels

    def drawer(self, config):
        def draw(label, rng):
            self.drawn.append(label)
            return Drawn("level1", f"say {rng.randrange(1000)}", None, (Action(kind="say"),))

        return draw


async def test_query_is_drawn_at_its_first_prompt_without_any_other_query(brief):
    """Drawing all 200 large k8s worlds takes longer than the time limit of the first replies."""
    brief = dataclasses.replace(
        brief,
        application=Flock(),
        config=Config(num_queries=100, start_index=10, end_index=160, repeats=2),
    )
    every = [query.text for query in Flock().generate(brief.config, brief.seed)]
    oracle = Oracle(brief)
    for index in (40, 159, 10, 40):
        assert await say(oracle, context(brief, index)) in {
            f"{every[index]} {part}" for part in "ab"
        }
    assert brief.application.drawn == ["blue", "red", "blue"]
    for index in (9, 160):  # queries outside this assessment
        with pytest.raises(AgentFailed):
            await say(oracle, context(brief, index))
    assert len(brief.application.drawn) == 3


async def test_noop_always_sends_the_same_reply_and_draws_no_query(brief):
    noop = Noop(brief)
    assert len({await say(noop, one) for one in (context(brief, 0), "stray")}) == 1
    assert brief.application.drawn == []


async def test_random_replies_differ_by_query_and_turn_but_not_by_attempt(brief):
    agent = Random(brief)
    first = [await say(agent, context(brief, 0)) for _ in range(3)]
    again = [await say(agent, context(brief, 0, attempt=1)) for _ in range(3)]
    assert first == again
    assert len({*first, await say(agent, context(brief, 1))}) == 4


async def test_random_replies_differ_by_repetition_and_the_first_repetition_is_unchanged(brief):
    once = await say(Random(brief), context(brief, 0))
    brief = dataclasses.replace(brief, config=Config(num_queries=3, repeats=3))
    said = [
        await say(Random(brief), context(brief, 0, repeat=repeat, attempt=attempt))
        for repeat in (1, 2, 3)
        for attempt in (0, 1)
    ]
    assert said[0] == once
    assert said[::2] == said[1::2]
    assert len(set(said)) == 3


async def test_hostile_starts_each_episode_with_another_attack(brief):
    agent = Hostile(brief)
    sent = {await say(agent, context(brief, index)) for index in range(3)}
    assert sent == set(brief.application.baselines.hostile_replies())


async def test_hostile_sends_the_next_attack_in_the_next_turn_of_an_episode(brief):
    agent = Hostile(brief)
    sent = {await say(agent, context(brief, 1)) for _ in range(3)}
    assert sent == set(brief.application.baselines.hostile_replies())


async def test_hostile_also_attacks_other_assessments(brief):
    assert await say(Hostile(brief), "stray") in brief.application.baselines.hostile_replies()


async def test_blanket_learns_its_replies_from_queries_of_another_seed(brief):
    agent = Blanket(brief)
    blue, seed = (await say(agent, context(brief, 0))).split()
    red, same_seed = (await say(agent, context(brief, 1))).split()
    assert (blue, red) == ("blue", "red")
    assert seed == same_seed
    assert int(seed) != brief.seed
    learned = [drawn for drawn in brief.application.drawn if drawn[0] == int(seed)]
    assert learned == [(int(seed), 100)]  # its queries are drawn only once


async def test_blanket_draws_only_the_queries_that_it_reads(brief, monkeypatch):
    drawn = []
    generate = brief.application.generate

    def draw(config, seed):
        for query in generate(config, seed):
            drawn.append(query.label)
            yield query

    first = brief.application.baselines.blanket_replies
    monkeypatch.setattr(brief.application, "generate", draw)
    monkeypatch.setattr(
        brief.application.baselines, "blanket_replies", lambda answers: first([answers[0]])
    )
    agent = Blanket(brief)
    for index in (1, 0, 1):
        await say(agent, context(brief, index))
    # queries of another seed: the first of each of the two labels
    assert drawn[-2:] == ["blue", "red"]
    assert len(drawn) < 20


async def test_slow_draw_of_a_query_ends_as_a_timeout(brief, monkeypatch):
    drawn = threading.Event()

    def generate(config, seed):
        drawn.wait(timeout=30)
        return iter(())

    monkeypatch.setattr(brief.application, "generate", generate)
    try:
        with pytest.raises(AgentFailed) as caught:
            await Oracle(brief).ask("", context_id=context(brief, 0), timeout_s=0.01)
    finally:
        drawn.set()
    assert caught.value.reason is FailureReason.TIMEOUT


@pytest.mark.parametrize("kind", [Oracle, Noop, Random, Hostile, Blanket])
def test_each_scripted_agent_has_its_name_on_the_command_line(brief, kind):
    assert kind(brief).info.name == kind.__name__.lower()


async def test_heuristic_has_a_separate_operator_for_each_conversation(brief, monkeypatch):
    def operator(self, briefing):
        seen = []

        def reply(prompt):
            if prompt == "odd":
                raise ValueError("no plan")
            seen.append(prompt)
            return " ".join(seen)

        return reply

    monkeypatch.setattr(type(brief.application.baselines), "heuristic_operator", operator)
    monkeypatch.setattr("a2a_purple.scripted._CONVERSATIONS", 2)
    agent = Heuristic(brief)
    assert agent.info.name == "heuristic"

    async def ask(context, prompt):
        return (await agent.ask(prompt, context_id=context, timeout_s=10)).text

    said = [await ask(c, p) for c, p in (("a", "1"), ("b", "2"), ("a", "3"), ("a", "odd"))]
    assert said[:3] == ["1", "2", "1 3"]
    assert "no plan" in said[3]
    assert await ask("c", "4") == "4"  # a third conversation replaces the least recently used one
    assert await ask("b", "5") == "5"
    assert brief.application.drawn == []  # the agent knows only the prompts


class PlannedBaselines(ParrotBaselines):
    """Scripted agents of an application whose red queries request changes."""

    def change_replies(self, query):
        return [f"change {query.text}"] if query.label == "red" else []

    def push_replies(self, query, rng=None):
        replies = [f"push {query.text} {part}" for part in "abcdef"]
        if rng is not None:
            rng.shuffle(replies)
        return replies if query.label == "red" else []

    def heuristic_operator(self, briefing=Briefing.FULL):
        return lambda prompt: f"read {prompt}"


class PlannedTickets(Tickets):
    def refuses(self, config):
        return True

    def declare(self, causes):
        return f"done {causes}"


class Planned(Parrot):
    baselines = PlannedBaselines()
    tickets = PlannedTickets()


@pytest.fixture
def planned(brief):
    return dataclasses.replace(
        brief, application=Planned(), config=Config(num_queries=3, repeats=2)
    )


async def test_push_sends_the_replies_of_a_request_and_then_its_declaration(planned, texts):
    push = Push(planned)
    said = [await say(push, context(planned, 1)) for _ in range(8)]
    assert said == [*(f"push {texts[1]} {part}" for part in "abcdef"), "done ()", said[0]]
    assert await say(push, context(planned, 0)) == "done ()"  # a query without requested changes


async def test_shuffle_changes_the_order_of_replies_by_repetition_but_not_by_attempt(
    planned, texts
):
    shuffle = Shuffle(planned)
    orders = [
        [await say(shuffle, context(planned, 1, attempt=attempt, repeat=repeat)) for _ in range(7)]
        for repeat in (1, 2)
        for attempt in (0, 1)
    ]
    assert orders[0] == orders[1]
    assert orders[2] == orders[3]
    assert orders[0] != orders[2]
    for said in orders:
        assert sorted(said[:6]) == [f"push {texts[1]} {part}" for part in "abcdef"]
        assert said[6] == "done ()"


@pytest.mark.parametrize("kind", [Push, Shuffle])
def test_agent_for_requested_changes_needs_a_config_with_requested_changes(planned, brief, kind):
    with pytest.raises(ConfigError, match="parrot does not have a push agent"):
        kind(brief)
    planned.application.tickets = Tickets()
    name = kind.__name__.lower()
    with pytest.raises(ConfigError, match=f"{name} only makes requested changes, and the config"):
        kind(planned)


async def test_heuristic_makes_requested_changes_and_otherwise_works_through_its_checklist(
    planned, texts
):
    agent = Heuristic(planned)
    said = [await say(agent, context(planned, 1)) for _ in range(3)]
    assert said == [f"change {texts[1]}", "done ()", f"change {texts[1]}"]
    for other in (context(planned, 0), "stray"):
        assert await say(agent, other) == "read whatever"


async def test_parser_answers_from_the_prompt_only(brief, monkeypatch):
    with pytest.raises(ConfigError, match="parrot does not have a parser agent"):
        Parser(brief)

    def parse_task(self, prompt):
        if prompt == "odd":
            raise ValueError(prompt)
        return f"read {prompt}"

    monkeypatch.setattr(type(Parrot.baselines), "parser_reply", parse_task)
    agent = Parser(brief)
    assert agent.info.name == "parser"
    said = [
        (await agent.ask(prompt, context_id="c", timeout_s=10)).text for prompt in ("task", "odd")
    ]
    assert said == ["read task", "No pattern fits this task."]
    assert brief.application.drawn == []


def test_application_without_a_checklist_has_no_heuristic_agent(brief):
    with pytest.raises(ConfigError, match="parrot does not have a heuristic agent"):
        Heuristic(brief)
