"""Interface of agents, and agents that run programs or that clients drive with tool calls."""
