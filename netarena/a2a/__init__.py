"""The Agent2Agent (A2A) protocol that AgentBeats uses, versions 1.0 and 0.3.

This is the only package that imports the A2A SDK:

- ``request`` and ``credential`` do no network I/O.
- ``transport`` and ``client`` communicate with the agent under test.
- ``boundary``, ``card``, ``store`` and ``service`` are shared by all servers.
- ``server`` is a green agent, which assesses other agents.
- ``purple`` serves any ``netarena.agent.interface.Agent`` for assessment.
"""
