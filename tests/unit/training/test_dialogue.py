from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from orders import Orders

from netarena.errors import ConfigError
from netarena.task.application import load, reply_of
from netarena.training.arena import Seat, close_all
from netarena.training.trl import make_dialogues, make_environment, make_rows


def write(path: Path, turns: list[tuple[str, str]]) -> Path:
    lines = [
        {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}],
         "query_id": "train", "turn": number, "turns": len(turns)}
        for number, (prompt, reply) in enumerate(turns, start=1)
    ]  # fmt: skip
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)
    return path


def test_dialogue_equals_a_rollout_with_the_same_calls(tmp_path):
    keys = {"complexity_level": "level2", "max_iterations": 4}
    seat, rollout = Seat("toy", keys), make_environment("toy", keys)()
    told, turns = [rollout.reset(seed=5, task=3)], []
    prompt, done = seat.start(5, 3), False
    replies = seat.application.demonstrate(seat.query)
    while not done:
        reply = replies[len(turns)]
        turns.append((prompt, reply))
        prompt, _, done, _ = seat.act(reply)
        told.append(rollout.reply(text=reply))
    kinds = [info["kind"] for info in rollout.infos]
    assert kinds == ["valid"] * (len(replies) - 1) + ["solved"]
    rollout.reset(seed=5, task=4)
    assert rollout.infos == []
    close_all()
    path = write(tmp_path / "set.jsonl", turns)
    write(path, turns[:1])
    (row, _) = make_dialogues("toy", path, keys)
    calls = [one["tool_calls"][0]["function"] for one in row["messages"] if one.get("tool_calls")]
    assert calls == [{"name": "reply", "arguments": {"text": reply}} for reply in replies]
    shown = [one["content"] for one in row["messages"] if one["role"] in {"user", "tool"}]
    assert shown == told
    # no call follows the result that ends an episode
    assert row["messages"][-1] == {"role": "assistant", "content": "Done."}
    (tool,) = json.loads(row["tools"])
    assert tool["function"]["parameters"]["required"] == ["text"]


@pytest.mark.parametrize(
    ("name", "keys", "tools"),
    [
        ("malt", {}, {"run_program"}),
        ("k8s", {"briefing": "ticket"}, {"kubectl", "done"}),
        ("route", {"briefing": "ticket"}, {"run_command", "done"}),
    ],
)
def test_demonstration_can_be_expressed_with_tool_calls(tmp_path, name, keys, tools):
    application = load(name, training=True)
    config = application.config_type.parse({"num_queries": 1, **keys})
    path, said = tmp_path / "set.jsonl", list[str]()
    for query in islice(application.generate(config, 7), 3):
        replies = list(application.demonstrate(query))
        if keys:
            replies.append(application.tickets.declare(application.tickets.causes(query)))
        write(path, [(f"prompt {number}", reply) for number, reply in enumerate(replies)])
        said += replies
    rows = make_dialogues(name, path, keys)
    calls = [
        call["function"]
        for row in rows for message in row["messages"] for call in message.get("tool_calls", [])
    ]  # fmt: skip
    assert len(calls) == len(said)
    assert {call["name"] for call in calls} == tools
    for call, reply in zip(calls, said, strict=True):
        again = reply_of(application, call["name"], call["arguments"])
        assert application.parse(again) == application.parse(reply)


def test_refused_changes_can_be_expressed_with_tool_calls(tmp_path, monkeypatch):
    monkeypatch.setattr("netarena.training.trl.load_for", lambda name, **_: Orders())
    keys = {"briefing": "ticket", "quiet": False}
    orders, path = Orders(), tmp_path / "set.jsonl"
    for query in orders.generate(orders.config_type.parse({"num_queries": 1, **keys}), 7):
        replies = [*orders.solve(query), orders.tickets.reference(query)]
        write(path, [(f"prompt {number}", reply) for number, reply in enumerate(replies)])
    rows = make_dialogues("toy", path, keys)
    (*_, tool) = json.loads(rows[0]["tools"])
    assert tool["function"]["parameters"]["required"] == ["causes", "refused"]
    ends = [row["messages"][-3]["tool_calls"][0]["function"]["arguments"] for row in rows]
    assert [end["refused"] for end in ends] == ["1: no_valve", "", "2: no_valve"]
    made = make_environment("toy", keys)
    assert "refused: The requested changes that you refuse" in made.done.__doc__


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("no JSON", "set: .*:1: this line was not written by netarena sft"),
        ('{"turn": 1}', "set: .*:1: this line was not written by netarena sft"),
        ("[]", "set: .*:1: this line was not written by netarena sft"),
        (
            '{"messages": [{"content": "p"}, {"content": "paint v1"}], "turn": 1}',
            "set: a reply cannot be read: .*",
        ),
    ],
)
def test_malformed_dialogue_file_is_reported(tmp_path, line: str, told: Any):
    path = tmp_path / "set.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=told):
        make_dialogues("toy", path)


def test_seed_of_a_row_is_read_from_its_text_if_the_number_is_rounded() -> None:
    """JSON parsers with floating-point numbers round the seed; ``seed_text`` has all digits."""
    (row,) = make_rows(2**53 + 1, 1, start=1)
    rollout = make_environment("toy")
    rounded = rollout().reset(seed=2**53, task=row["task"], seed_text=row["seed_text"])
    assert rounded == rollout().reset(seed=2**53 + 1, task=row["task"])
    assert rounded != rollout().reset(seed=2**53, task=row["task"])
