"""Kubernetes application: an agent restores the intended connections with one kubectl command per
turn.
"""
