"""Kubernetes: an agent restores the intended communication, one kubectl command per turn."""
