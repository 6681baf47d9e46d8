"""A guard stops the network traffic that a command has left in the kernel."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from netarena_network.real import guard
from netarena_network.real.guard import Guard


class Network:
    """Fake interfaces of a namespace; each observation sees the packets sent since the last one."""

    def __init__(self, **packets_a_look: int) -> None:
        self.rates = packets_a_look
        self.sent = dict.fromkeys(packets_a_look, 0)

    def look(self, _: object) -> dict[str, int]:
        self.sent = {name: sent + self.rates[name] for name, sent in self.sent.items()}
        return dict(self.sent)

    def run(self, *line: str, fed: str = "") -> None:
        assert line[1:] == ("-force", "-batch", "-")
        for command in fed.splitlines():
            link, act, dev, name, down = command.split()
            assert (link, act, dev, down) == ("link", "set", "dev", "down")
            self.rates[name] = 0


@pytest.mark.parametrize(
    ("rates", "down"),
    [
        ({"eth0": 3, "lo": 0}, []),
        ({"eth0": 1, "br0": 9_000}, ["br0"]),
        # each of many loops carries so few packets that a single loop would be ignored
        ({"eth0": 1, **{f"br{n}": 40 for n in range(60)}}, [f"br{n}" for n in range(60)]),
        # after the busiest interface is set down, the next one still carries a storm
        ({"br0": 900_000, "br1": 9_000, "eth0": 2}, ["br0", "br1"]),
    ],
)
def test_storm_is_detected_from_the_sum_over_all_interfaces(
    rates: dict[str, int], down: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(**rates)
    watched = Guard.__new__(Guard)
    monkeypatch.setattr(watched, "_within", network.look)
    monkeypatch.setattr(watched, "_command", network.run)
    # 60 packets per observation are a storm
    times = iter(range(1000))
    clock = SimpleNamespace(monotonic=lambda: next(times) * 0.003, sleep=lambda _: None)
    monkeypatch.setattr(guard, "time", clock)
    assert sorted(watched._still()) == sorted(down)
