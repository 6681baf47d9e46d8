"""The wire: AgentBeats over A2A, protocol lines 1.0 and 0.3.

The only package that imports the A2A SDK. ``request`` and ``credential`` are pure; ``transport``
and ``client`` talk to the agent under test; ``boundary``, ``card``, ``store`` and ``service`` are
what every served agent shares; ``server`` is a green agent, ``purple`` serves any
``netarena.agent.Agent``.
"""
