"""Options of ``netarena run`` for the size of a run: estimate, share of the queries, cost limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import click

from netarena.a2a.scenario import NEEDS_APPLICATION
from netarena.cli.model import Model, need_price, read_prices
from netarena.cli.screen import tell
from netarena.config import Config
from netarena.errors import ConfigError
from netarena.run.purse import Purse

F = TypeVar("F", bound=Callable[..., Any])


def plan_options(command: F) -> F:
    """Decorator that adds the options of this module."""
    options = (
        click.option(
            "--estimate",
            is_flag=True,
            help="Estimate the numbers of queries, calls and tokens, the cost, time and disk "
            "space, then exit. No agent is asked.",
        ),
        click.option(
            "--estimate-from",
            "earlier",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            metavar="DIR",
            help="Like --estimate, with the mean turns and output tokens of the run in DIR.",
        ),
        click.option(
            "--fraction",
            type=click.FloatRange(0, 1, min_open=True),
            metavar="F",
            help="Ask only this fraction of the queries of each label, at least one per label.",
        ),
        click.option(
            "--max-cost",
            "limit_usd",
            type=click.FloatRange(0, min_open=True),
            metavar="USD",
            help="Stop the run before its replies cost more than this amount; --resume continues "
            "the run.",
        ),
        click.option(
            "--price",
            "prices",
            multiple=True,
            metavar="[ROLE=]IN,OUT",
            help="Price of a model in USD per million tokens of input and output.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@dataclass
class Plan:
    """Values of the options of this module."""

    estimate: bool = False
    earlier: Path | None = None
    fraction: float | None = None
    limit_usd: float | None = None
    prices: Mapping[str | None, tuple[float, float]] = field(default_factory=dict)
    #: Total cost of the scenarios that have ended, if several run one after another.
    spent_usd: float = 0.0
    #: Whether the cost limit has stopped a run.
    ended: bool = False

    @classmethod
    def of(
        cls,
        *,
        estimate: bool,
        earlier: Path | None,
        fraction: float | None,
        limit_usd: float | None,
        prices: tuple[str, ...],
    ) -> Plan:
        """Return the plan of a command line. Raises ConfigError."""
        read = read_prices(prices)
        asks = estimate or earlier is not None
        if read and not asks and limit_usd is None:
            raise ConfigError("--price", "is allowed only with --estimate or --max-cost")
        return cls(asks, earlier, fraction, limit_usd, read)

    def part(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return config keys with ``num_queries`` reduced to the share in ``--fraction``."""
        number = values.get("num_queries", 1)
        if self.fraction is None or type(number) is not int:
            return dict(values)
        for key in ("start_index", "end_index", "benchmark_path"):
            if values.get(key) is not None:
                raise ConfigError(
                    "--fraction", f"draws a part of num_queries and cannot be combined with {key}"
                )
        # from the decimal digits, because 0.02 means exactly 1/50, unlike the nearest float
        share = Fraction(str(self.fraction))
        return {**values, "num_queries": max(1, round(share * number))}

    @property
    def limits_cost(self) -> bool:
        """Return whether the cost of the run is limited."""
        return self.limit_usd is not None

    def purse(self, models: Mapping[str, Model]) -> Purse | None:
        """Return the cost limit (``Purse``) of a run, or None without ``--max-cost``.

        ``models`` maps roles to the agents' models. Raises ConfigError for an unknown price.
        """
        if self.limit_usd is None:
            return None
        prices = {role: need_price(role, model, self.prices) for role, model in models.items()}
        return Purse(self.limit_usd - self.spent_usd, prices)

    def settle(self, purse: Purse | None, again: str) -> bool:
        """Add the cost of a run and print it. Return whether the limit stopped the run.

        ``again`` is the command that continues the run.
        """
        if purse is None:
            return False
        self.spent_usd += purse.spent_usd
        if not purse.spent_up:
            tell(f"the replies cost {self.spent_usd:.4f} USD so far; limit: {self.limit_usd:g}")
            return False
        self.ended = True
        tell(
            f"--max-cost {self.limit_usd:g} ended the run: {self.spent_usd:.4f} USD have been "
            f"spent, and one more reply may cost {purse.lacking_usd:.4f}; {again} continues with "
            "a higher --max-cost"
        )
        return True


def refuse_with_service(plan: Plan) -> None:
    """Raise ConfigError for options that are not supported if the green agent is a service."""
    if plan.limit_usd is not None:
        raise ConfigError("--max-cost", NEEDS_APPLICATION)


def check_config(config: Config) -> Config:
    """Return ``config`` with a seed, by default 0, because an estimate needs one."""
    return config if config.seed is not None else config.model_copy(update={"seed": 0})
