"""Evidence of live networks is read through the sandbox of the agent."""

from __future__ import annotations

import asyncio

import pytest

from netarena.task.application import configured, load

pytestmark = pytest.mark.requires("episodes")


def read(**keys):
    application, config = configured(
        load("route"),
        {"briefing": "ticket", "error_types": ["faults_1"], "num_queries": 1, "emulator": "netns",
         **keys},
    )  # fmt: skip
    (query,) = application.generate(config, 3)

    async def run():
        async with application:
            return await application.evidence(query, config)

    return query, asyncio.run(run())


def test_each_machine_of_a_network_is_a_candidate():
    query, found = read(num_switches=3, num_hosts_per_subnet=2)
    machines = [one for one in found.candidates if one.trace]
    # the second word of a role is a digest of the machine's kinds of entries
    assert {one.role.split()[0] for one in machines} == {"router", "host"}
    assert len(machines) > 7  # includes machines in reserve
    faulty = query.actions[0].parameters["machine"]
    assert [one.name for one in machines if one.target] == [faulty]
    assert all(one.trace["addr.created most"] > 0 for one in machines)
    assert found.trace["rule.rounds"] >= 1
    # settings that the sandbox reads or writes before a command must leave no trace: with such a
    # trace, the value was 0.017 to 0.023. If the kernel moves a command to another processor, the
    # inode numbers decrease once or twice more.
    assert all(one.trace["sysctl.inode falls"] < 0.008 for one in machines)
    assert any(one.form for one in found.candidates)


@pytest.mark.requires("backbone")
@pytest.mark.xdist_group("backbone")
@pytest.mark.slow
def test_evidence_of_backbone_routers_includes_their_daemons():
    query, found = read(world="backbone", routers=4)
    machines = [one for one in found.candidates if one.trace]
    routers = [one for one in machines if "router" in one.role]
    assert len(routers) == 4
    assert all("show ip route.uptime most" in one.trace for one in routers)
    assert all("rule.startup_differs" in one.trace for one in routers)
    targets = {one.name for one in machines if one.target}
    assert targets == load("backbone").scene(query).faulty
    assert 0 < len(targets) < len(machines)
    forms = {one.name: one for one in found.candidates if one.form}
    assert forms.keys() == {one.name for one in machines}
    assert {one.role for one in forms.values()} <= {"border router", "router", "host"}
