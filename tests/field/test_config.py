"""Configs from public scenario, submission and workflow files: one row per file, with its source.

The keys and values are public. A row has the config of one file, without the keys of earlier rows.
It also has the first line of the expected error message, which is empty if the config is accepted.
Add a row for each new file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from netarena.errors import ConfigError
from netarena.task.application import load

BOARD = "RDI-Foundation/netarena-agentbeats-leaderboard"
TEMPLATE = "RDI-Foundation/agentbeats-leaderboard-template, quick-submit-runner.yml"
OLD_BOARD = "Froot-NetSys/netarena_leaderboard"
REFERENCE = "Froot-NetSys/NetArena"

MALT = {
    "prompt_type": "zeroshot_base",
    "complexity_level": ["level1", "level2", "level3"],
    "num_queries": 3,
    "output_dir": "dump",
    "output_file": "query_output.jsonl",
    "benchmark_path": "assessment_queries.jsonl",
    "regenerate_benchmark": True,
}
ROUTE = {
    "prompt_type": "zeroshot_base",
    "num_queries": 2,
    "max_iterations": 10,
    "output_dir": "dump",
    "benchmark_path": "assessment_error_config.json",
    "regenerate_benchmark": True,
    "num_switches": 2,
    "num_hosts_per_subnet": 1,
}
K8S = {
    "prompt_type": "zeroshot_base",
    "num_queries": 2,
    "max_iterations": 15,
    "benchmark_path": "assessment_error_config.json",
    "output_dir": "dump",
    "microservice_dir": "/microservices-demo",
    "regenerate_config": True,
}
SHARD = {"shard_index": 0, "num_shards": 1}
AGENTS = [{"name": "azure-gpt", "base_url": "http://127.0.0.1:8000", "prompt_type": "zeroshot_cot"}]


class Row(NamedTuple):
    """One reported config."""

    source: str
    application: str
    config: dict[str, Any]
    refused: str = ""


ROWS = (
    Row(f"{BOARD}, submissions", "malt", {**MALT, **SHARD}),
    Row(f"{BOARD}, amber", "route", {**ROUTE, **SHARD}),
    Row(f"{OLD_BOARD}, malt", "malt", {**MALT, "prompt_type": "fewshot_cot"}),
    Row(f"{OLD_BOARD}, malt", "malt", {"regenerate_query": True}),
    Row(f"{OLD_BOARD}, k8s", "k8s", K8S),
    Row(f"{OLD_BOARD}, early malt", "malt", {"microservice_dir": "/microservices-demo"},
        "config.microservice_dir: unknown key; it belongs to another application: delete the key"),
    Row(f"{OLD_BOARD}, early malt", "malt", {"num_switches": 2},
        "config.num_switches: unknown key; it belongs to another application: delete the key"),
    Row(f"{OLD_BOARD}, early malt", "malt", {"num_hosts_per_subnet": 1},
        "config.num_hosts_per_subnet: unknown key; it belongs to another application: "
        "delete the key"),
    Row(TEMPLATE, "malt", {"num_instances": 50},
        "config.num_instances: unknown key; num_queries counts queries per label: "),
    Row(TEMPLATE, "route", {"num_instances": 50},
        "config.num_instances: unknown key; num_queries counts queries per label: "),
    Row(TEMPLATE, "k8s", {"shard_index": 0, "num_shards": 20},
        "config.num_shards: must be 1, not 20: an assessment is not split into shards; "
        "set num_shards: 1 in assessment_config and in quick-submit.yml"),
    Row(f"{REFERENCE}, config.template.toml", "malt", {"agent_client_configs": AGENTS}),
    Row(f"{REFERENCE}, config.template.toml", "route",
        {"benchmark_path": "test_data.json", "regenerate_benchmark": False}),
    Row(f"{REFERENCE}, K8sConfig", "k8s", {"output_file": "eval_results.jsonl"}),
    Row(f"{REFERENCE}, MaltConfig", "malt", {"start_index": 0, "end_index": None}),
    # pages of the reference's applications from before it used A2A
    Row(f"{REFERENCE}, app-malt/README.md", "malt", {"complexity_levels": ["level1"]},
        "config.complexity_levels: unknown key; did you mean 'complexity_level'?"),
    Row(f"{REFERENCE}, app-malt/README.md", "malt", {"regenerate_queries": False},
        "config.regenerate_queries: unknown key; did you mean 'regenerate_query'?"),
    Row(f"{REFERENCE}, app-malt/README.md", "malt", {"prompt_type": "base"},
        "config.prompt_type: 'base' is not one of zeroshot_base, zeroshot_cot, "),
    Row(f"{REFERENCE}, app-malt/README.md", "malt", {"agent_type": "AzureGPT4Agent"},
        "config.agent_type: unknown key; the participant chooses its model "),
    Row(f"{REFERENCE}, app-malt/README.md", "malt", {"model": {"agent_type": "ReAct_Agent"}},
        "config.model: unknown key; the participant chooses its model "),
    Row(f"{REFERENCE}, app-route/README.md", "route", {"benchmark": {"num_queries": 10}},
        "config.benchmark: unknown key; move its keys to [config]"),
    Row(f"{REFERENCE}, app-route/README.md", "route", {"max_iteration": 10},
        "config.max_iteration: unknown key; did you mean 'max_iterations'?"),
    Row(f"{REFERENCE}, app-route/README.md", "route", {"regenerate": True},
        "config.regenerate: unknown key; did you mean 'regenerate_query'?"),
    Row(f"{REFERENCE}, app-route/README.md", "route", {"parallel": False},
        "config.parallel: unknown key; set concurrency"),
)  # fmt: skip


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{at}-{row.application}") for at, row in enumerate(ROWS, 1)]
)
def test_public_config_is_accepted_or_refused_with_a_suggestion(row):
    if not row.refused:
        load(row.application).config_type.parse(row.config)
        return
    with pytest.raises(ConfigError) as caught:
        load(row.application).config_type.parse(row.config)
    assert str(caught.value).startswith(row.refused), str(caught.value)
