"""Viewer: read-only pages for trajectories in the journals of runs.

``index`` reads journals as they grow, and ``selection`` filters their episodes. ``site`` renders
the pages, ``app`` serves them on loopback, and ``static`` writes them as files.
"""
