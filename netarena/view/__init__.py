"""Viewer: read-only pages for trajectories in the journals of runs.

``index`` follows journals, ``selection`` filters their episodes, ``site`` renders pages of them,
``app`` serves the pages on loopback and ``static`` writes them as files.
"""
