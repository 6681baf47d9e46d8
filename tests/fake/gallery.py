"""Stored runs with everything that the viewer can show, including hostile texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netarena_toy import Toy

from netarena.model import (
    Action,
    AgentInfo,
    Cause,
    Claim,
    Episode,
    Failure,
    FailureKind,
    Finding,
    Fit,
    Judgement,
    Localised,
    Outcome,
    Query,
    Reply,
    Step,
)
from netarena.run.assessment import QUERIES_NAME
from netarena.run.journal import JOURNAL_NAME, Header
from netarena.task.identity import Secrecy
from netarena.task.picture import (
    Change,
    Chart,
    Column,
    Difference,
    Link,
    Mark,
    Matrix,
    Node,
    Picture,
    Pictures,
    Segment,
    Topology,
)

#: markup that would run, load data, change styles or close elements; template syntax; terminal
#: control characters; characters that reverse text or are invisible
HOSTILE = (
    "</pre></title></textarea></style>--><script>window.hacked = 1</script>"
    "<img src=x onerror=window.hacked=2><svg onload=window.hacked=3><iframe srcdoc=x></iframe>"
    "<a href=javascript:window.hacked=4>click</a><style>main{display:none}</style>"
    "\"' onmouseover=window.hacked=5 x='{{ 7*191 }}{% raw %}&#60;b&#62;"
    "\x1b[31m\x1b]0;title\x07\x08 \u202edesrever\u202c zero\u200bwidth \u2066 \ufeff\U000e0041"
)
#: a very long line
LONG = "0123456789abcde " * 65_536
VALVES = ("v1", "v2", "v3")


class DrawnPictures(Pictures):
    """The pictures of the ``Drawn`` application's states."""

    def draw(self, query: Query, episode: Episode, number: int) -> Sequence[Picture]:
        state = episode.steps[number - 1].state if number else episode.initial_state
        if not isinstance(state, dict):
            return ()
        spoil = str(state.get("spoil", ""))
        names = tuple(f"{valve}{spoil}" for valve in VALVES)
        works = [bool(state[valve]) for valve in VALVES]
        marks = tuple(Mark.WORKS if one else Mark.BROKEN for one in works)
        nodes = (Node(name="source", role="router"), Node(name="hall", role="switch", rank=1))
        return (
            Matrix(title=f"Flow{spoil}", rows=("tap", "pump"), columns=names, cells=(marks, marks)),
            Topology(
                title=f"Pipes{spoil}",
                nodes=(*nodes, *(Node(name=name, role=f"valve{spoil}", rank=2) for name in names)),
                links=(
                    Link(ends=("source", "hall"), label=f"10.0.0.1/24{spoil}"),
                    *(Link(ends=("hall", name)) for name in names),
                ),
                pairs=tuple(
                    (a, b, mark)
                    for a, mark in zip(names, marks, strict=True)
                    for b in ("source", names[0])
                    if mark.wrong and a != b
                ),
            ),
            Chart(
                title=f"Flow per pipe{spoil}",
                unit=f"litres{spoil}",
                columns=tuple(
                    Column(
                        name=name,
                        limit=3,
                        segments=(Segment(name=f"source{spoil}", size=2 + number),),
                    )
                    for name in names
                ),
            ),
            Difference(
                title=f"Valves{spoil}",
                prominent=True,
                changes=(
                    Change(
                        element=f"v1{spoil}",
                        before=f"a: 1\nb: 2\n{spoil}",
                        after=f"a: 1\nb: {number}\n",
                        right=None,
                    ),
                    Change(element="v2", before=None, after=f"open{spoil}", right=number == 0),
                ),
            ),
        )


class Drawn(Toy):
    """The toy application with pictures; its states list the valves that are open."""

    pictures = DrawnPictures()

    def describe(self, action: Action) -> str:
        return f"closed: {action.parameters['valve']}"


def query(number: int, **values: Any) -> Query:
    return Query(
        **{
            "id": f"toy-1-abc-7-{number}",
            "application": "toy",
            "version": "1",
            "seed": 7,
            "index": number,
            "label": ("leak", "drought", "flood")[number % 3],
            "level": f"level{1 + number % 2}",
            "text": "Open all valves.",
            "initial": {"number": number},
            "actions": (Action(kind="close", parameters={"valve": "v1"}),),
            **values,
        }
    )


def step(works: Sequence[bool], **values: Any) -> Step:
    state = dict(zip(VALVES, works, strict=True)) | values.pop("more", {})
    wrong = [valve for valve, one in zip(VALVES, works, strict=True) if not one]
    return Step(
        **{
            "prompt": "What do you do?",
            "reply": Reply(text="open v1, please"),
            "move": {"machine": "pump", "command": "open v1"},
            "output": "done",
            "executed": True,
            "state": state,
            "judgement": Judgement(
                correct=not wrong, reason=f"{wrong[0]} is closed" if wrong else ""
            ),
            "agent_s": 1.5,
            **values,
        }
    )


def solved(asked: Query, **values: Any) -> Episode:
    """Return an episode solved in two steps, the first of which has no effect."""
    return Episode(
        **{
            "query_id": asked.id,
            "index": asked.index,
            "label": asked.label,
            "level": asked.level,
            "role": "toy_operator",
            "agent": AgentInfo(name="plumber"),
            "prompt_type": "zeroshot_base",
            "outcome": Outcome.SOLVED,
            "correct": True,
            "safe": True,
            "iterations": 2,
            "initial_state": dict.fromkeys(VALVES, True) | {"v1": False},
            "steps": (step([False, True, True]), step([True, True, True])),
            "agent_time_s": 3.0,
            **values,
        }
    )


def lost(asked: Query, **values: Any) -> Episode:
    """Return an episode that is not solved: one step harms v2, and v1 stays closed."""
    finding = Finding(rule="pair_broken", element="v2", detail="v2 was open and is closed now.")
    harm = Judgement(correct=False, findings=(finding,), reason="v1 is closed")
    return solved(
        asked,
        **{
            "outcome": Outcome.UNSOLVED,
            "correct": False,
            "safe": False,
            "detail": "v1 and v2 are closed.",
            "failure": Failure(kind=FailureKind.SAFETY_VIOLATION, rule="pair_broken"),
            "steps": (step([False, False, True], judgement=harm), step([False, False, True])),
            **values,
        },
    )


def silent(asked: Query, **values: Any) -> Episode:
    """Return an episode in which the agent sent no readable reply."""
    return solved(
        asked,
        **{
            "outcome": Outcome.AGENT_FAILED,
            "correct": False,
            "safe": False,
            "reason": "timeout",
            "detail": "no reply",
            "iterations": 1,
            "steps": (Step(prompt="?", reply=Reply(text="hm"), refused="Send a command."),),
            **values,
        },
    )


def declared(asked: Query, **values: Any) -> Episode:
    """Return an episode of a ticket that the agent declared finished too early."""
    told = Claim(causes=(Cause("v3", "rust"),))
    right = Fit(recall=0.0, precision=0.0)
    return lost(
        asked,
        **{
            "safe": True,
            "failure": Failure(kind=FailureKind.FALSE_CLAIM, rule="false_claim"),
            "steps": (step([False, True, True]), step([False, True, True], claim=told)),
            "claimed": True,
            "claim_right": False,
            "localised": Localised(place=right, cause=right),
            **values,
        },
    )


def invalid(asked: Query, **values: Any) -> Episode:
    """Return an episode that is invalid because of an environment failure."""
    gone = {"correct": False, "safe": False, "steps": (), "iterations": 0, "initial_state": None}
    why = {"outcome": Outcome.INVALID, "detail": "the pump broke", "evidence": ("leak", {"a": 1})}
    return solved(asked, **{**gone, **why, **values})


def hostile(asked: Query) -> Episode:
    """Return an episode with ``HOSTILE`` in every text that an agent or a world can set."""
    spoiled = {"more": {"spoil": HOSTILE}}
    finding = Finding(rule=HOSTILE, element=HOSTILE, detail=HOSTILE)
    judgement = Judgement(correct=False, findings=(finding,), reason=HOSTILE)
    text = {"prompt": HOSTILE, "reply": Reply(text=HOSTILE)}
    return lost(
        asked,
        agent=AgentInfo(name=HOSTILE),
        detail=HOSTILE,
        reason=HOSTILE,
        failure=Failure(kind=FailureKind.SAFETY_VIOLATION, rule=HOSTILE, detail=HOSTILE),
        initial_state={"v1": True, "v2": True, "v3": False, "spoil": HOSTILE},
        steps=(
            step([True, False, True], move=HOSTILE, output=HOSTILE, judgement=judgement,
                 **spoiled, **text),
            step([True, True, True], output=LONG + HOSTILE, **spoiled, **text),
            Step(**text, refused=HOSTILE),
        ),
    )  # fmt: skip


def write_run(
    folder: Path, queries: Sequence[Query], episodes: Sequence[Episode], *, repeats: int = 1
) -> Path:
    """Write the folder of an unfinished run; ``end_run`` finishes it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / QUERIES_NAME).write_text("".join(f"{one.model_dump_json()}\n" for one in queries))
    config = {"repeats": repeats, "num_queries": len(queries)}
    header = Header(
        application="toy", version="1", role="toy_operator", seed=7, shape={}, config=config,
        secrecy=Secrecy.OPEN,
    )  # fmt: skip
    event = {"event": "assessment", "header": header.model_dump(mode="json")}
    (folder / JOURNAL_NAME).write_text(json.dumps(event) + "\n")
    add(folder, *episodes)
    return folder


def add(folder: Path, *episodes: Episode) -> None:
    with (folder / JOURNAL_NAME).open("a") as journal:
        for episode in episodes:
            journal.write(f'{{"event": "episode", "episode": {episode.model_dump_json()}}}\n')


def end_run(folder: Path) -> None:
    with (folder / JOURNAL_NAME).open("a") as journal:
        journal.write('{"event": "end", "complete": true}\n')


def mixed(folder: Path, count: int = 12) -> Path:
    """Write a run with all kinds of episodes in turn, and a hostile one with a hostile label."""
    queries = [query(number) for number in range(count)]
    kinds = (solved, lost, silent, solved, invalid, lost)
    episodes = [kinds[number % len(kinds)](one) for number, one in enumerate(queries)]
    bad = query(count, id=f"{HOSTILE}{count}", label=HOSTILE, text=HOSTILE)
    return write_run(folder, [*queries, bad], [*episodes, hostile(bad)])
