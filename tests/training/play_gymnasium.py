"""Gymnasium's own checks, and typical uses of environments; warnings are errors."""

from __future__ import annotations

import os
import sys
import warnings

import gymnasium
from gymnasium.utils.env_checker import check_env

import netarena.training.gym
from netarena.training.reward import Rewards

warnings.simplefilter("error")


def answers(seat) -> list[str]:
    return list(seat.application.solve(seat.query))


def check(name: str, **given) -> None:
    env = gymnasium.make(f"NetArena/{name}", **given)
    check_env(env.unwrapped)
    first, info = env.reset(seed=3)
    assert env.reset(seed=3) == (first, info)
    assert env.observation_space.contains(first)
    observation, told = env.reset(options={"task": 4})
    assert told["query_id"].endswith("-3-4")
    assert env.render() == observation
    seat = env.unwrapped.seat
    for reply in answers(seat):
        observation, reward, terminated, truncated, info = env.step(reply)
    assert (observation, terminated, truncated, info["solved"]) == ("", True, False, True)
    assert reward > 0
    env.reset(seed=3)
    over = seen = False
    while not over:
        _, reward, terminated, truncated, info = env.step("Nothing.")
        over, seen = terminated or truncated, True
        assert reward < 0
    assert seen
    assert truncated is not seat.application.one_shot
    env.close()

    both = gymnasium.make_vec(f"NetArena/{name}", num_envs=2, **given)
    assert isinstance(both.unwrapped, netarena.training.gym.TrainingVector)
    started, _ = both.reset(seed=3)
    alone = gymnasium.make(f"NetArena/{name}", **given)
    assert started[1] != started[0] != ""
    assert both.observation_space.contains(started)
    fleet, application = both.unwrapped.fleet, alone.unwrapped.seat.application
    assert len(set(fleet.pids)) == min(2, len(os.sched_getaffinity(0)))
    solution = list(application.solve(fleet.queries[0]))
    step = both.step((solution[0], "Nothing."))
    assert step[1][0] > step[1][1]
    while not step[2][0] and not step[3][0]:
        step = both.step((solution[-1], "Nothing."))
    # the first environment starts a new episode
    again = both.step(("counts for nothing", "Nothing."))
    assert again[1][0] == 0.0
    assert again[0][0].startswith(started[0][:20])
    both.close()
    alone.close()
    serial = gymnasium.make_vec(f"NetArena/{name}", 2, vectorization_mode="sync", **given)
    serial.reset(seed=3)
    assert all(serial.step(("Nothing.", "Nothing."))[1] < 0)
    serial.close()
    if name == "App-v0":
        # the default number of processes and a single process give the same results
        spread = play(gymnasium.make_vec(f"NetArena/{name}", 3, **given))
        assert spread == play(gymnasium.make_vec(f"NetArena/{name}", 3, processes=1, **given))


def play(envs) -> list[object]:
    told = [envs.reset(seed=5)[0]]
    for turn in range(12):
        observations, *verdicts, infos = envs.step([f"open v{turn % 8 + 1}"] * 3)
        told += [observations, *(one.tolist() for one in verdicts), sorted(infos)]
    envs.close()
    return told


# the toy draws all queries up to the requested one
check("App-v0", application="toy", num_queries=5, rewards=Rewards(refused=-1.0, solved=1.0))
for name in sys.argv[1:]:
    check(name, **({"patches": "direct"} if name == "K8s-v0" else {}))
print("ok")
