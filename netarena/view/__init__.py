"""Viewer: read-only pages for trajectories in the journals of runs.

``index`` follows journals, ``selection`` filters their episodes, ``site`` renders pages from both,
``app`` serves them on loopback and ``static`` writes them as files.
"""
