"""Keys of all applications: unknown keys, wrong values, and keys that affect queries."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.config import Config, PromptStyle, with_seed_text
from netarena.errors import ConfigError


def test_every_key_has_the_documented_default() -> None:
    config = Config.parse({})
    assert config.prompt_type is PromptStyle.ZEROSHOT_BASE
    assert (config.num_queries, config.max_iterations, config.concurrency) == (1, 10, 1)
    assert (config.seed, config.agent_timeout_s, config.time_budget_s) == (None, 280, None)
    assert config.complexity_level == ("level1", "level2", "level3")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "config: must be a JSON object, not list"),
        (
            {"num_querys": 3},
            r"config.num_querys: unknown key; did you mean 'num_queries'\? Known keys: ",
        ),
        ({"num_queries": 0}, "config.num_queries: .*greater than or equal to 1, not 0"),
        ({"num_queries": "many"}, "config.num_queries: .*'many'"),
        ({"num_queries": 1.5}, "config.num_queries"),
        ({"num_queries": True}, "config.num_queries"),
        ({"resume": "yes"}, "config.resume"),
        (
            {"prompt_type": "zero"},
            "config.prompt_type: 'zero' is not one of zeroshot_base, .*, react",
        ),
        ({"prompt_type": "zeroshot_cott"}, "react; did you mean 'zeroshot_cot'\\?$"),
        ({"seed": -1}, "config.seed"),
        ({"seed": 2**64}, "config.seed"),
        (
            {"complexity_level": ["level9"]},
            "'level9' is not one of level1, level2, level3",
        ),
        ({"complexity_level": ["level1", {"a": 2}]}, "{.a.: 2} is not one of [^{]*$"),
        ({"complexity_level": []}, "a list of one or more of level1"),
        ({"complexity_level": 1}, "a list of one or more of level1"),
        ({"time_budget_s": 0}, "config.time_budget_s"),
        ({"time_budget_s": True}, "config.time_budget_s: .* valid number, not True"),
        ({"agent_timeout_s": "60"}, "config.agent_timeout_s: .* valid number, not '60'"),
        ({"agent_timeout_s": float("nan")}, "config.agent_timeout_s"),
        ({"end_index": 0}, "config.end_index: Input should be greater than or equal to 1, not 0$"),
        ({"end_index": 1, "start_index": 1}, "config.end_index: must be greater"),
        ({"output_file": "../up"}, "config.output_file"),
    ],
)
def test_message_about_a_wrong_value_lists_the_allowed_values(values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Config.parse(values)
    assert "\n" not in str(caught.value)


def test_levels_are_sorted_and_contain_no_duplicates() -> None:
    assert Config.parse({"complexity_level": "level2"}).complexity_level == ("level2",)
    levels = ["level3", "level1", "level1"]
    assert Config.parse({"complexity_level": levels}).complexity_level == ("level1", "level3")


def test_only_keys_that_draw_queries_change_the_shape_hash() -> None:
    plain = Config.parse({})
    same = {"seed": 5, "concurrency": 3, "prompt_type": "react", "output_dir": "x", "resume": True}
    assert Config.parse(same).shape_hash() == plain.shape_hash()
    assert Config.parse({"num_queries": 2}).shape_hash() == plain.shape_hash()
    assert Config.parse({"complexity_level": "level1"}).shape_hash() != plain.shape_hash()
    assert set(plain.shape()) == {"complexity_level"}


@given(st.dictionaries(st.text(max_size=8), st.none() | st.integers() | st.text(max_size=8)))
def test_any_input_is_accepted_or_refused_in_one_line(values: dict[str, Any]) -> None:
    try:
        Config.parse(values)
    except ConfigError as error:
        shown = str(error)
    else:
        shown = ""
    assert shown.isprintable()


def test_one_shard_of_quick_submit_is_accepted_and_several_are_refused():
    assert Config.parse({"num_shards": 1, "shard_index": 0}) == Config.parse({})
    for key, value in (("num_shards", 4), ("shard_index", 1), ("num_shards", True)):
        with pytest.raises(ConfigError, match=rf"config\.{key}: must be \d, not .*quick-submit"):
            Config.parse({key: value})


@pytest.mark.parametrize("given", ["level9", ["level9"], ["level1", "level9"]])
def test_error_message_contains_a_wrong_value_once(given):
    with pytest.raises(ConfigError) as caught:
        Config.parse({"complexity_level": given})
    assert str(caught.value).count("level9") == 1


def test_seed_may_be_given_as_text_to_avoid_rounding():
    assert Config.parse({"seed_text": "18446744073709551615"}).seed == 2**64 - 1
    # a seed from a copied summary, which JavaScript has rounded
    assert Config.parse({"seed": 2**53, "seed_text": "9007199254740993"}).seed == 2**53 + 1
    assert Config.parse({"seed": None, "seed_text": "7"}) == Config.parse({"seed": 7})
    assert Config.parse({"seed": 7, "seed_text": None}) == Config.parse({"seed": 7})


@pytest.mark.parametrize("text", [7, "", "-7", "0x7", "\uff17", "1_0", "9" * 21, ["7"]])
def test_seed_text_that_contains_other_characters_than_digits_is_refused(text):
    with pytest.raises(
        ConfigError, match=r"^config\.seed_text: must be a string with the digits of a seed"
    ):
        Config.parse({"seed_text": text})


def test_seed_that_differs_from_its_text_is_refused():
    with pytest.raises(
        ConfigError, match=r"^config\.seed_text: 8 differs from config\.seed, which is 7"
    ):
        Config.parse({"seed": 7, "seed_text": "8"})


def test_seed_of_a_nested_config_is_also_stored_as_text():
    stored = with_seed_text({"seed": 2**60, "config": {"seed": 2**60, "repeats": 1}})
    assert stored["config"] == {"seed": 2**60, "seed_text": str(2**60), "repeats": 1}
    assert Config.parse(stored["config"]).seed == 2**60


def test_lists_of_seeds_have_lists_of_texts():
    told = with_seed_text({"seed": None, "seeds": [1, 2**60], "replaced_seeds": [3]})
    assert told == {
        "seed": None,
        "seeds": [1, 2**60],
        "seeds_text": ["1", "1152921504606846976"],
        "replaced_seeds": [3],
    }


def test_participant_has_its_own_prompt_keys_and_no_others():
    config = Config.parse({"seed": 7, "prompt_type": "fewshot_cot", "num_queries": 3})
    assert Config.prompt_keys() == ["prompt_type"]
    own = config.with_own("a", {"prompt_type": "react"})
    assert own == config.model_copy(update={"prompt_type": PromptStyle.REACT})
    assert config.with_own("a", {}) == config
    for values, words in (
        ({"seed": 8}, "a.config.seed: has one value for all participants: set it in [config]"),
        (
            {"prompt_typ": "react"},
            "a.config.prompt_typ: unknown key; a participant may have",
        ),
        ({"prompt_type": "chat"}, "a.config.prompt_type: "),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(words)}"):
            config.with_own("a", values)
