"""Baseline purple agents: a language model, or scripted ones, in process or served over A2A."""
