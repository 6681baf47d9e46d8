"""Baseline purple agents: scripted ones, in process or served over A2A."""
