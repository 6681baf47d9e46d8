"""Kubernetes application, in which an agent restores the intended connections with one kubectl
command per turn."""
