"""The interface of agents, and two kinds of agents.

An agent can run a program for each turn, or be driven by the tool calls of a client.
"""
