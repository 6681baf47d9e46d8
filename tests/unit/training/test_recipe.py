"""The recipes of ``benchmarks/recipes``, checked without any training framework.

The dry run in ``tests/integration/test_training_framework.py`` checks the arguments for TRL.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from netarena.errors import ConfigError

ROOT = Path(__file__).parents[3]
RECIPES = sorted((ROOT / "benchmarks" / "recipes").glob("*.toml"))
_COMMAND = re.compile(r"python benchmarks/train_model\.py ([^`\n#]+)")


@pytest.fixture(scope="module")
def program() -> Any:
    spec = importlib.util.spec_from_file_location(
        "train_model", ROOT / "benchmarks" / "train_model.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pydantic resolves names of types in this module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_commands_on_the_pages_include_every_recipe(program):
    named = set()
    for page in ("docs/training.md", "docs/evidence/training.md", "docs/evidence/README.md"):
        for command in _COMMAND.findall((ROOT / page).read_text(encoding="utf-8")):
            options = program.read_arguments(shlex.split(command))
            program.read_recipe(ROOT / options.recipe, options.changes, options.minutes)
            named.add(ROOT / options.recipe)
    assert sorted(named) == RECIPES


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_phases_of_a_recipe_fit_into_the_requested_time(program, path):
    recipe = program.read_recipe(path, minutes=60)
    phases = [phase for phase in (recipe.sft, recipe.grpo) if phase is not None]
    scores = (len(phases) + 1) * recipe.held_out.minutes
    assert sum(phase.minutes for phase in phases) + scores == pytest.approx(60)
    # all rollouts of a group belong to the same step
    if recipe.grpo is not None:
        said = recipe.grpo.arguments
        rows = said["per_device_train_batch_size"] * said["gradient_accumulation_steps"]
        assert rows % said["num_generations"] == 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("sft.file=level4", "recipe.sft.file: .*small.toml: Input should be 'level1'"),
        ("sft.files=level1", "recipe.sft.files: .*small.toml: Extra inputs are not permitted"),
        ("grpo.rewards=1", "recipe.grpo.rewards: "),
        ("grpo.minutes=0", "recipe.grpo.minutes: "),
        ("model.name=a", "--set: must be KEY=VALUE, where KEY is a key of the recipe"),
        ("model", "--set: must be KEY=VALUE, where KEY is a key of the recipe"),
        ("keys.emulator=ns3", "config.emulator: "),
        ("application=chess", "chess"),
    ],
)
def test_error_in_a_recipe_is_reported_in_one_line(program, change, told):
    with pytest.raises(ConfigError, match=told) as raised:
        program.read_recipe(ROOT / "benchmarks" / "recipes" / "small.toml", [change])
    assert "\n" not in str(raised.value)


def test_missing_model_is_reported(program):
    with pytest.raises(ConfigError, match=r"model: .*pip install --no-deps no-such-model"):
        program.find_model("package:no-such-model")
    assert program.find_model("Qwen/Qwen2.5-0.5B-Instruct") == ("Qwen/Qwen2.5-0.5B-Instruct", {})
