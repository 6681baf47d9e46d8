"""Replies of agents that send commands without observing the cluster."""

import random

from netarena_k8s.agent.guess import blanket, distract
from netarena_k8s.reply import read_reply
from netarena_k8s.world.boutique import boutique


def test_random_guesses_are_various_parsable_commands() -> None:
    rng = random.Random(7)
    drawn = {read_reply(distract(boutique(), rng)) for _ in range(50)}
    assert len(drawn) > 20
    assert all(one.startswith("kubectl ") for one in drawn)


def test_blanket_reply_replaces_every_standard_policy() -> None:
    (reply,) = blanket("shop")
    command = read_reply(reply)
    assert command.startswith("kubectl replace -f -")
    assert all(f'"name": "{policy.name}"' in command for policy in boutique().policies)
