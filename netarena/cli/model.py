"""Names, prices and tokenizers of the language models that agents use, as far as they are known.

Names come from an agent's command and environment, prices and tokenizers from LiteLLM if it is
installed. This module does not use the network.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from netarena.agent.interface import asks_no_model
from netarena.errors import ConfigError
from netarena.run.purse import FREE, MAX_OUTPUT_TOKENS, Price

#: Names of the baseline agent as a program and as a module. Its option ``--model`` names the model.
_PURPLE, _PURPLE_MODULE = "netarena-purple", "a2a_purple"
#: Characters per token of English text and JSON, used if no tokenizer is installed.
_CHARS_PER_TOKEN = 4
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_MAX_TOKENS = re.compile(r"max_(?:completion_)?tokens=(\d{1,7})")
#: Pattern of a price in ``--price``: US dollars per million tokens of input and of output.
_PRICE = re.compile(r"(?:([A-Za-z0-9][\w.-]*)=)?(\d+(?:\.\d+)?),(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Model:
    """The model of one agent: its name, or the reason why the name is unknown."""

    name: str | None = None
    #: Whether the agent uses no model.
    free: bool = False
    #: Maximum number of output tokens of one reply, if the agent's command sets it.
    max_tokens: int | None = None
    #: The reason why the name is unknown.
    unknown: str = "MODEL_NAME is not set"

    def __str__(self) -> str:
        return "none" if self.free else self.name or "unknown"


def find_model(command: str | None, env: Mapping[str, str], environ: Mapping[str, str]) -> Model:
    """Return the model of an agent that ``command`` starts with the variables ``env``.

    ``environ`` is the environment of this process, which the agent inherits.
    """
    words = _split(command)
    told, most = None, None
    if _is_purple(words):
        if asks_no_model(_option(words, "--strategy")):
            return Model(free=True)
        limit = _MAX_TOKENS.search(command or "")
        most = int(limit[1]) if limit else None
        told = _option(words, "--model")
    told = told or env.get("MODEL_NAME") or None
    if told is None and command is not None:
        told = environ.get("MODEL_NAME") or None
    if told is None:
        return Model(max_tokens=most)
    for name in _VARIABLE.findall(told):
        if name not in environ:
            return Model(max_tokens=most, unknown=f"{name} is not set in the environment")
    return Model(_VARIABLE.sub(lambda found: environ[found[1]], told), max_tokens=most)


def model_of_named(agent: str) -> Model:
    """Return the model of a named agent. A scripted baseline agent uses no model."""
    if asks_no_model(agent):
        return Model(free=True)
    return Model(unknown=f"the agent {agent} does not name its model")


def read_prices(texts: tuple[str, ...]) -> dict[str | None, tuple[float, float]]:
    """Return the prices of ``--price`` in US dollars per token, by role. Raises ConfigError.

    The key None stands for all roles without a price of their own.
    """
    prices: dict[str | None, tuple[float, float]] = {}
    for text in texts:
        found = _PRICE.fullmatch(text)
        if not found:
            raise ConfigError(
                "--price",
                f"must be IN,OUT or ROLE=IN,OUT in USD per million tokens, not {text!r}; "
                "for example 2.5,10",
            )
        prices[found[1]] = (float(found[2]) / 1e6, float(found[3]) / 1e6)
    return prices


def price_of(
    role: str, model: Model, stated: Mapping[str | None, tuple[float, float]]
) -> Price | None:
    """Return the price of a participant's model: from ``stated``, else from LiteLLM's table.

    The result is ``FREE`` for an agent without a model, and None if the price is unknown.
    """
    told = stated.get(role, stated.get(None))
    if told is None and model.free:
        return FREE
    entry: Mapping[str, Any] = {}
    if model.name is not None and (litellm := _litellm()) is not None:
        with suppress(Exception):  # LiteLLM raises a plain Exception for unknown models
            entry = litellm.get_model_info(model.name)
    if told is None:
        costs = [entry.get(f"{side}_cost_per_token") for side in ("input", "output")]
        if None in costs:
            return None
        told = (float(str(costs[0])), float(str(costs[1])))
    most = model.max_tokens or entry.get("max_output_tokens") or MAX_OUTPUT_TOKENS
    return Price(*told, int(most))


def why_no_price(model: Model) -> str:
    """Return why the price of a model is unknown."""
    return f"the price of {model.name} is unknown" if model.name else model.unknown


def need_price(role: str, model: Model, stated: Mapping[str | None, tuple[float, float]]) -> Price:
    """Return the result of ``price_of``. Raises ConfigError if the price is unknown."""
    price = price_of(role, model, stated)
    if price is None:
        raise ConfigError(
            "--max-cost",
            f"needs the price of {role}'s model, but {why_no_price(model)}: give it in USD per "
            f"million tokens with --price {role}=IN,OUT",
        )
    return price


def tokenizer(model: Model) -> tuple[Callable[[str], int], bool]:
    """Return a function that counts tokens, and whether this function uses the model's tokenizer.

    If the model's tokenizer is unknown, the function uses the tokenizer of GPT-4. Without LiteLLM,
    four characters count as a token.
    """
    litellm = _litellm()
    if litellm is None:
        return lambda text: -(-len(text) // _CHARS_PER_TOKEN), False
    import tiktoken

    name, own = "gpt-4", False
    if model.name is not None:
        bare = model.name.rpartition("/")[2]
        with suppress(KeyError):
            tiktoken.encoding_name_for_model(bare)
            name, own = bare, True
    return lambda text: int(litellm.token_counter(model=name, text=text)), own


def _litellm() -> Any:
    """Return the module LiteLLM with its built-in price table; None if it is not installed."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm
    except ImportError:
        return None
    litellm.suppress_debug_info = True  # LiteLLM would print a link for each unknown model
    return litellm


def _split(command: str | None) -> list[str]:
    try:
        return shlex.split(command or "")
    except ValueError:
        return []


def _is_purple(words: list[str]) -> bool:
    """Return whether a command starts the baseline agent."""
    program = any(word.endswith(_PURPLE) for word in words)
    return program or ("-m", _PURPLE_MODULE) in pairwise(words)


def _option(words: list[str], name: str) -> str | None:
    """Return the value of an option in a command, or None."""
    for place, word in enumerate(words):
        if word.startswith(f"{name}="):
            return word.removeprefix(f"{name}=")
        if word == name and place + 1 < len(words):
            return words[place + 1]
    return None
