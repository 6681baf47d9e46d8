"""Export of episodes as trajectories of Harbor: Agent Trajectory Interchange Format (ATIF), 1.8.

Each turn becomes two steps. The first step is the complete prompt. The second step is the agent's
reply. It contains the parsed action as a tool call, the action's output as the observation, and the
verdict as extra data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from netarena.model import JsonValue, Move, Step, Usage
from netarena.report.story import why
from netarena.report.table import Told
from netarena.task.application import tools_of
from netarena.task.tool import Tool

VERSION = "ATIF-v1.8"


def make_trajectory(told: Told) -> dict[str, Any]:
    """Return the document of one episode."""
    episode = told.episode
    tools = tools_of(told.stored.application, told.stored.config)
    session = f"{told.query_id}-{episode.repeat}"
    steps = list(_steps(told, tools)) or [
        {"step_id": 1, "source": "user", "message": told.query.text}
    ]
    truth = {} if told.public else {"actions": told.actions, "why": why(episode)}
    return {
        "schema_version": VERSION,
        "session_id": session,
        "trajectory_id": session,
        "agent": {"name": episode.agent.name, "version": "unknown"},
        "steps": steps,
        "final_metrics": {
            **_metrics(episode.usage, prefix="total_"),
            "total_steps": len(steps),
        },
        "extra": {
            "application": told.query.application,
            "generator_version": told.query.version,
            "prompt_version": episode.prompt_version,
            "query_id": told.query_id,
            "repeat": episode.repeat,
            "label": episode.label,
            "level": episode.level,
            "outcome": episode.outcome.value,
            "correct": episode.correct,
            "safe": episode.safe,
            **truth,
        },
    }


def _steps(told: Told, tools: Sequence[Tool]) -> Iterator[dict[str, Any]]:
    for number, step in enumerate(told.episode.steps, start=1):
        yield {"step_id": 2 * number - 1, "source": "user", "message": step.prompt}
        call_id = f"call-{number}"
        result: dict[str, Any] = {"content": step.refused or step.output}
        own: dict[str, Any] = {}
        if step.move is not None:
            name, arguments = call_of(tools, step.move)
            own["tool_calls"] = [
                {"tool_call_id": call_id, "function_name": name, "arguments": arguments}
            ]
            result["source_call_id"] = call_id
        if step.reply is not None:
            own["observation"] = {"results": [result]}
        if metrics := _metrics(Usage.read(step.reply)):
            own["metrics"] = metrics
        yield {
            "step_id": 2 * number,
            "source": "agent",
            "message": step.reply.text if step.reply else "",
            **own,
            "extra": _verdict(told, step),
        }


def _verdict(told: Told, step: Step) -> dict[str, Any]:
    judgement = step.judgement
    said: dict[str, Any] = {"executed": step.executed, "agent_s": step.agent_s}
    if judgement is not None:
        said |= {
            "correct": judgement.correct,
            "safe": judgement.safe,
            "rules": sorted({one.rule for one in judgement.findings}),
        }
        if not told.public:
            said["harm"] = [one.detail for one in judgement.findings]
            said["still_wrong"] = judgement.reason
    return said


def call_of(tools: Sequence[Tool], move: Move) -> tuple[str, Mapping[str, JsonValue]]:
    """Return the tool name and the arguments for a parsed action.

    If no entry of ``tools`` matches, the tool is ``act``.
    """
    single = [tool for tool in tools if len(tool.parameters) == 1]
    if isinstance(move, dict):
        for tool in tools:
            if {parameter.name for parameter in tool.parameters} == move.keys():
                return tool.name, move
    elif isinstance(move, str) and single:
        first: Tool = single[0]
        return first.name, {first.parameters[0].name: move}
    return "act", {"move": move}


def _metrics(usage: Usage | None, prefix: str = "") -> dict[str, Any]:
    """Return the metrics that an agent reported, if any."""
    if usage is None or not usage.replies:
        return {}
    told = {
        f"{prefix}prompt_tokens": usage.input_tokens,
        f"{prefix}completion_tokens": usage.output_tokens,
        f"{prefix}cost_usd": usage.cost_usd,
    }
    return {key: value for key, value in told.items() if value is not None}
