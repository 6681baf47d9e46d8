"""Rewards as data: the value of each kind of step, and potential-based shaping.

========  ===========  ==========================================================================
step      value        when
========  ===========  ==========================================================================
refused   ``refused``  the reply could not be parsed, or its command was not run
failed    ``failed``   the command ended with an error
valid     ``valid``    any other step: an observation, or a change that does not solve the task
solved    ``solved``   the episode ends in the intended state, and at least one command was run
========  ===========  ==========================================================================

The reward also includes ``turn`` for each step, ``harm`` for each unsafe step, and ``unsolved`` at
the end of an episode that is not solved. Shaping adds ``progress`` × (``gamma`` × Φ(after) −
Φ(before)). The potential Φ is the share of tested elements that are in the intended state; it is 0
at the end of an episode. Such shaping does not change the ranking of policies that start in the
same state (Ng, Harada and Russell, 1999).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

from netarena.errors import ConfigError, not_one_of
from netarena.model import Record


class Kind(StrEnum):
    """Result of a step."""

    REFUSED = "refused"
    FAILED = "failed"
    VALID = "valid"
    SOLVED = "solved"


class Rewards(Record):
    """Values of steps. A preset creates them for a maximum number of turns."""

    refused: float = 0.0
    failed: float = 0.0
    valid: float = 0.0
    solved: float = 0.0
    #: Added for each step, whatever its result.
    turn: float = 0.0
    #: Added for each step with a safety finding.
    harm: float = 0.0
    #: Added at the end of an episode that is not solved.
    unsolved: float = 0.0
    #: Weight of the shaping term, and its discount factor.
    progress: float = 0.0
    gamma: float = 1.0

    def parts(
        self, kind: Kind, *, harmed: bool, done: bool, before: float, after: float
    ) -> dict[str, float]:
        """Return the parts of one step's reward by name. The sum of the parts is the reward.

        Parts with the value 0 are omitted. ``before`` and ``after`` are potentials in [0, 1].
        """
        shaping = self.gamma * (0.0 if done else after) - before
        found = {
            str(kind): getattr(self, kind),
            "turn": self.turn,
            "harm": self.harm if harmed else 0.0,
            "unsolved": self.unsolved if done and kind is not Kind.SOLVED else 0.0,
            "progress": self.progress * shaping,
        }
        return {name: value for name, value in found.items() if value}


def _paper(turns: int) -> Rewards:
    """Return the paper's values: -100 for invalid commands, +10 for valid commands, +100 for a fix.

    Ten observations earn as much as a fix, and an observation before a fix always adds reward.
    """
    del turns
    return Rewards(refused=-100.0, failed=-100.0, valid=10.0, solved=100.0)


def _default(turns: int) -> Rewards:
    """Return values that favour safe fixes in few turns.

    A safe fix earns at least 60, and an episode of observations without a fix earns less than 0.
    The cost of all turns together is limited, whatever the number of turns.
    """
    return Rewards(
        refused=-30.0 / turns,
        failed=-10.0 / turns,
        turn=-10.0 / turns,
        solved=100.0,
        harm=-50.0,
        progress=20.0,
    )


#: Presets by name: functions from the maximum number of turns to the values of steps.
PRESETS: Mapping[str, Callable[[int], Rewards]] = MappingProxyType(
    {"default": _default, "paper": _paper}
)


def rewards_of(preset: str | Rewards, turns: int) -> Rewards:
    """Return the preset with this name for ``turns`` turns. Objects are returned unchanged.

    Raises ConfigError for an unknown name.
    """
    if isinstance(preset, Rewards):
        return preset
    if preset not in PRESETS:
        raise ConfigError("rewards", not_one_of(preset, PRESETS))
    return PRESETS[preset](turns)
