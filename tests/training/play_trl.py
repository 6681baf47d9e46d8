"""GRPO training of a tiny model with random weights, and a manual episode in the same environment.

This does not run in CI, because torch and its dependencies on Linux take 5.6 GB.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}

import datasets
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen2_5_chat_template

from netarena.cli import main
from netarena.training.trl import make_dialogues, make_environment, make_rows

folder = Path(sys.argv[1])

# the output of ``netarena sft``, loaded as data sets usually are
assert main(["sft", "toy", "--sizes", "2,2,2", "--seed", "1", "--out", str(folder / "set")]) == 0
mixed = str(folder / "set" / "mixed.jsonl")
loaded = datasets.load_dataset(
    "json", data_files=mixed, split="train", cache_dir=str(folder / "cache")
)
assert [one["role"] for one in loaded[0]["messages"]] == ["user", "assistant"]

# the tools have types and documentation
schema = get_json_schema(make_environment("route")().run_command)["function"]
assert schema["parameters"]["required"] == ["machine", "command"]
assert schema["parameters"]["properties"]["machine"]["description"]

# a data set as dialogues with the environment's tools
row = make_dialogues("toy", Path(mixed))[0]
assert json.loads(row["tools"]) == [get_json_schema(make_environment("toy")().reply)]
assert [one["role"] for one in row["messages"]][:3] == ["user", "assistant", "tool"]

# a manual episode in the environment
rollout = make_environment("toy")()
assert rollout.reset(seed=3, task=2, other="ignored").startswith("You run a waterworks.")
silent = rollout.get_reward()
assert silent == -40.0
for number in range(1, 9):
    told = rollout.reply(text=f"open v{number}")
    if told == "The task has ended.":
        break
assert rollout.get_reward() > 90

# a training run
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
tokenizer.train_from_iterator(
    ["open v1"],
    trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=special),
)
words = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, eos_token=special[2], pad_token=special[0], padding_side="left"
)
words.chat_template = qwen2_5_chat_template
model = Qwen2ForCausalLM(
    Qwen2Config(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=8192,
    )
)  # fmt: skip
trainer = GRPOTrainer(
    model,
    args=GRPOConfig(
        output_dir=str(folder / "out"), max_steps=2, per_device_train_batch_size=2,
        num_generations=2, max_completion_length=16, report_to=[], use_cpu=True, bf16=False,
        save_strategy="no", logging_steps=1,
    ),
    train_dataset=datasets.Dataset.from_list(make_rows(seed=7, number=8)),
    processing_class=words,
    environment_factory=make_environment("toy"),
)  # fmt: skip
trainer.train()
rewards = [float(one["reward"]) for one in trainer.state.log_history if "reward" in one]
assert rewards == [silent, silent], rewards
print("ok")
