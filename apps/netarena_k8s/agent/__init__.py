"""Scripted agents of Kubernetes: checklists, random and fixed replies, and attacks."""
