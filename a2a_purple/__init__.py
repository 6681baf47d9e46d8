"""Baseline purple agents (a language model or a script), used in process or served over A2A."""
