"""The machines of a backbone show no trace of the injection of its faults."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice

import pytest

from netarena_backbone.agent.trace import COMMAND, findings
from netarena_backbone.app import Backbone
from netarena_backbone.environment import BackboneEnvironment
from netarena_backbone.query import case_of
from netarena_backbone.world.model import World

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requires("backbone"),
    pytest.mark.slow,
    pytest.mark.xdist_group("backbone"),
]

#: faults of FRR, of filters and of service files, and a false alarm
_LABELS = ("ospf_authentication+zone_filter+name_entry", "faults_0")


async def _read(environment: BackboneEnvironment, world: World) -> list[str]:
    found = []
    for machine in world.machines:
        done = await environment.execute({"machine": machine, "command": COMMAND})
        if done.executed:
            found += [f"{machine}: {one}" for one in findings(done.output)]
    return found


@pytest.mark.parametrize("label", _LABELS)
async def test_reader_of_configurations_and_files_finds_no_trace_of_the_injection(
    label: str,
) -> None:
    keys = {"world": "backbone", "emulator": "netns", "briefing": "ticket", "routers": 4}
    async with Backbone() as app:
        config = app.config_type.parse({**keys, "error_types": [label], "num_queries": 1})
        for query in islice(app.generate(config, 5), 1):
            environment = app.environment(query, config)
            assert isinstance(environment, BackboneEnvironment)
            try:
                await environment.open()
                world = case_of(query).world
                assert await _read(environment, world) == []
                # the reader detects a later change
                name = world.routers[0].name
                change = "vtysh -c 'configure terminal' -c 'ip route 192.0.2.0/25 blackhole'"
                await environment.execute({"machine": name, "command": change})
                (found,) = await _read(environment, world)
                assert found.startswith(f"{name}: the startup configuration differs: > ip route")
                await environment.execute({"machine": name, "command": "vtysh -c 'write memory'"})
                assert not [one for one in await _read(environment, world) if "differs" in one]
            finally:
                await environment.close()


#: Rules with which an agent could keep the judge's connections open: drop the last packets of each
#: connection and translate addresses; drop the replies to the first packets
_LAST = (
    "iptables -A OUTPUT -p tcp --tcp-flags FIN FIN -j DROP",
    "iptables -A OUTPUT -p tcp --tcp-flags RST RST -j DROP",
    "iptables -t nat -A PREROUTING -p tcp -j REDIRECT",
)
_FIRST = "iptables -A OUTPUT -p tcp --tcp-flags SYN,ACK SYN,ACK -j DROP"


@pytest.mark.parametrize(
    ("label", "rules"),
    [("one_way", ["true"]), ("faults_0", [" && ".join(_LAST), _FIRST])],
    ids=["fault", "agent"],
)
async def test_service_tests_leave_no_connection_even_if_packets_are_lost(
    label: str, rules: Sequence[str]
) -> None:
    keys = {"world": "backbone", "emulator": "netns", "briefing": "ticket", "routers": 4}
    async with Backbone() as app:
        config = app.config_type.parse({**keys, "error_types": [label], "num_queries": 1})
        (query,) = app.generate(config, 5)
        environment = app.environment(query, config)
        try:
            await environment.open()
            for rule in rules:
                found = []
                for command in (f"{rule} && echo done", "ss -Htan"):
                    for host in case_of(query).world.hosts:
                        done = await environment.execute({"machine": host.name, "command": command})
                        found += done.output.splitlines() if done.executed else []
                assert "LISTEN" in str(found)
                assert {one for one in found if not one.startswith("LISTEN")} == {"done"}
        finally:
            await environment.close()


async def test_each_bgp_session_is_younger_than_the_ospf_adjacencies_of_its_router() -> None:
    keys = {"world": "backbone", "emulator": "netns", "briefing": "ticket", "routers": 4}
    async with Backbone() as app:
        config = app.config_type.parse({**keys, "error_types": ["faults_0"], "num_queries": 1})
        (query,) = app.generate(config, 5)
        environment = app.environment(query, config)
        command = "vtysh -c 'show ip ospf neighbor json' -c 'show bgp ipv4 unicast summary json'"
        seen = 0
        try:
            await environment.open()
            for router in case_of(query).world.routers:
                done = await environment.execute({"machine": router.name, "command": command})
                if not done.executed:
                    continue
                text, decoder = done.output[done.output.index("{") :], json.JSONDecoder()
                ospf, end = decoder.raw_decode(text)
                bgp, _ = decoder.raw_decode(text[end:].lstrip())
                adjacencies = [
                    one["upTimeInMsec"] for rows in ospf["neighbors"].values() for one in rows
                ]
                sessions = [
                    one["peerUptimeMsec"]
                    for one in bgp["peers"].values()
                    if one["state"] == "Established"
                ]
                assert min(adjacencies) > max(sessions)
                seen += len(sessions)
        finally:
            await environment.close()
        assert seen > 4
