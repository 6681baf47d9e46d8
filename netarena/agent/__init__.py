"""Agents in this process: their interface, and implementations that run programs or call tools."""
