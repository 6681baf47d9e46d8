"""Export of a run as a log of Inspect (version 2, JSON), for its viewer and data frames.

A sample is a query, and an epoch is a repetition. The three verdicts are the sample's scores, ``C``
or ``I``. Inspect shows the first score, ``solved_safely``, as the headline. Each turn is a call of
the model, the parsed action is a tool call, and the verdict after the action is an intermediate
score. An invalid episode is a sample with an error and without a score. The export does not need
the Inspect package.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from netarena.analysis.stats import VERDICTS, count_unasked, summarise
from netarena.config import with_seed_text
from netarena.model import Judgement, Outcome, Usage
from netarena.report.story import why
from netarena.report.table import Told, public_id
from netarena.report.trajectory import call_of
from netarena.run.archive import Stored
from netarena.run.journal import JOURNAL_NAME
from netarena.task.application import tools_of

VERSION = 2
#: Names of the scores. The first one is the headline.
SCORES = ("solved_safely", *(name for name in VERDICTS if name != "solved_safely"))
#: Source of the verdict after a turn.
STEP_SCORER = "step"


def name_log(stored: Stored) -> str:
    """Return the log's file name in the only format that Inspect lists."""
    return _created(stored).replace(":", "-") + end_of_name(stored)


def end_of_name(stored: Stored) -> str:
    """Return the common end of the names of a run's logs. They differ in the time at the
    beginning."""
    return f"_{stored.header.application}-{stored.header.role}_{_log_id(stored)}.json"


def write_log(stored: Stored, told: Iterable[Told], *, public: bool) -> Iterator[str]:
    """Yield the log's text in parts. Episodes are read one by one to save memory."""
    head = json.dumps(_head(stored, public=public), ensure_ascii=False)
    yield head.removesuffix("}") + ', "samples": ['
    before = "\n"
    for one in told:
        yield before + json.dumps(_sample(one), ensure_ascii=False)
        before = ",\n"
    yield "\n]}\n"


def _created(stored: Stored) -> str:
    """Return the journal's modification time (ISO 8601, UTC), because records contain no date."""
    changed_s = (stored.folder / JOURNAL_NAME).stat().st_mtime
    return datetime.fromtimestamp(int(changed_s), UTC).isoformat()


def _log_id(stored: Stored) -> str:
    header = stored.header
    # two runs of the same queries have different folders, which distinguishes their logs
    run = [header.application, header.version, header.role, header.shape, header.seed]
    text = json.dumps([*run, str(stored.folder.resolve())])
    return hashlib.sha256(text.encode()).hexdigest()[:22]


def _head(stored: Stored, *, public: bool) -> dict[str, Any]:
    header, config = stored.header, stored.config
    outlines = stored.outlines
    seed = None if public else stored.seed
    summary = summarise(
        stored.application,
        config,
        seed,
        outlines,
        stored.not_run,
        unasked=count_unasked(stored.config, outlines, stored.not_run, ended=stored.past.ended),
        replaced=len(stored.past.replaced),
    )
    agent = next((episode.agent for episode in stored.past.episodes.values()), None)
    created = _created(stored)
    # the folder of a run of a single query is named after the query's id, which reveals the seed
    # unless the id is sealed
    asked = summary["config"] | ({"output_dir": None, "benchmark_path": None} if public else {})
    usage = sum((one.usage for one in outlines if one.usage), Usage())
    model = agent.name if agent else "none"
    return {
        "version": VERSION,
        "status": "success" if stored.past.complete else "cancelled",
        "eval": {
            "eval_id": _log_id(stored),
            "run_id": _log_id(stored),
            "task_id": _log_id(stored),
            "created": created,
            "task": f"{header.application}-{header.role}",
            "task_version": header.version,
            "task_args": asked,
            "dataset": {
                "name": header.application,
                "samples": len(stored.queries),
                "sample_ids": [
                    public_id(query.id, query.seed) if public else query.id
                    for query in stored.queries
                ],
                "shuffled": False,
            },
            "model": model,
            "model_base_url": agent.base_url if agent else None,
            "config": {"epochs": config.repeats},
            # the viewer must not interpret an agent's text as markup (images, links)
            "viewer": {"trust_content": False},
            "metadata": with_seed_text(
                {
                    "seed": summary["seed"],
                    "generator_version": header.version,
                    "prompt_version": header.prompt_version,
                }
            ),
        },
        "plan": {},
        "results": {
            "total_samples": len(stored.asks),
            "completed_samples": summary["graded"],
            "scores": [
                {
                    "name": name,
                    "scorer": name,
                    "scored_samples": summary["graded"],
                    "metrics": _metrics(summary[f"avg_{name}"], summary["intervals"][name]),
                }
                for name in SCORES
                if summary[f"avg_{name}"] is not None
            ],
        },
        "stats": {
            "started_at": created,
            "completed_at": created,
            "model_usage": {model: _usage(usage)} if usage.replies else {},
        },
    }


def _metrics(rate: float, interval: Iterable[float]) -> dict[str, Any]:
    low, high = interval
    values = {"accuracy": rate, "low": low, "high": high}
    return {name: {"name": name, "value": value} for name, value in values.items()}


def _sample(told: Told) -> dict[str, Any]:
    episode = told.episode
    outline = episode.outline()
    reasons = why(episode)
    sample: dict[str, Any] = {
        "id": told.query_id,
        "epoch": episode.repeat,
        "input": told.query.text,
        "target": [] if told.public else told.actions,
        "messages": [message for turn in _turns(told) for message in turn],
        "events": list(_events(told)),
        "output": _output(told),
        "total_time": sum(
            (episode.agent_time_s, episode.execution_time_s, episode.own_time_s, episode.world_s)
        ),
        "working_time": episode.agent_time_s + episode.execution_time_s,
        "metadata": {
            "label": episode.label,
            "level": episode.level,
            "outcome": episode.outcome.value,
            "iterations": episode.iterations,
            "reason": episode.reason,
            "failure_type": episode.failure.kind.value if episode.failure else None,
            "failure_rule": episode.failure.rule if episode.failure else None,
        },
    }
    if episode.usage is not None:
        sample["model_usage"] = {episode.agent.name: _usage(episode.usage)}
    if episode.outcome is Outcome.INVALID:
        said = "environment failure" if told.public else episode.detail
        sample["error"] = {"message": said, "traceback": said, "traceback_ansi": said}
        return sample
    sample["scores"] = {
        name: {
            "value": "C" if VERDICTS[name](outline) else "I",
            "explanation": None if told.public else reasons or None,
        }
        for name in SCORES
    }
    return sample


def _turns(told: Told) -> Iterator[list[dict[str, Any]]]:
    """Yield the messages of each turn: the prompt, including earlier results, and the reply."""
    for number, step in enumerate(told.episode.steps, start=1):
        name = f"{told.query_id}-{told.episode.repeat}-{number}"
        turn = [{"id": f"{name}-prompt", "role": "user", "content": step.prompt}]
        if step.reply is not None:
            said = {"role": "assistant", "content": step.reply.text}
            turn.append({"id": f"{name}-reply", **said, "model": told.episode.agent.name})
        yield turn


def _events(told: Told) -> Iterator[dict[str, Any]]:
    """Yield the events of each turn: the model call, the tool call and the verdict.

    Inspect builds its data frame of messages from the model calls.
    """
    model = told.episode.agent.name
    tools = tools_of(told.stored.application, told.stored.config)
    begin_s = 0.0
    for (prompt, *replies), step in zip(_turns(told), told.episode.steps, strict=True):
        at = {"timestamp": _created(told.stored)}
        choices = [{"message": reply, "stop_reason": "stop"} for reply in replies]
        yield {
            "event": "model",
            "uuid": prompt["id"],
            **at,
            "working_start": begin_s,
            "working_time": step.agent_s,
            "model": model,
            "input": [prompt],
            "tools": [],
            "tool_choice": "none",
            "config": {},
            "output": {"model": model, "choices": choices, "time": step.agent_s},
        }
        begin_s += step.agent_s
        if step.move is not None:
            name, arguments = call_of(tools, step.move)
            refused = None if step.refused is None else {"type": "parsing", "message": step.refused}
            yield {
                "event": "tool",
                "uuid": f"{prompt['id']}-call",
                **at,
                "working_start": begin_s,
                "working_time": step.execution_s,
                "type": "function",
                "id": f"{prompt['id']}-call",
                "function": name,
                "arguments": dict(arguments),
                "result": step.output or "",
                "error": refused,
            }
        begin_s += step.execution_s
        if step.judgement is not None:
            yield {
                "event": "score",
                "uuid": f"{prompt['id']}-verdict",
                **at,
                "working_start": begin_s,
                "score": _verdict(told, step.judgement),
                "intermediate": True,
                "scorer": STEP_SCORER,
            }


def _verdict(told: Told, judgement: Judgement) -> dict[str, Any]:
    """Return the event with the verdict after a turn."""
    said = [one.detail for one in judgement.findings]
    if not judgement.correct and judgement.reason:
        said.append(judgement.reason)
    return {
        "value": {"correct": judgement.correct, "safe": judgement.safe},
        "explanation": None if told.public else "; ".join(said) or None,
        "metadata": {"rules": sorted({one.rule for one in judgement.findings})},
    }


def _output(told: Told) -> dict[str, Any]:
    """Return the agent's last reply as the output of the sample."""
    model = told.episode.agent.name
    replies = [step.reply for step in told.episode.steps if step.reply is not None]
    if not replies:
        return {"model": model, "choices": []}
    message = {"role": "assistant", "content": replies[-1].text, "model": model}
    return {
        "model": model,
        "completion": replies[-1].text,
        "choices": [{"message": message, "stop_reason": "stop"}],
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "total_cost": usage.cost_usd,
    }
