"""Viewer of runs: read-only pages of the trajectories in their journals.

``index`` reads journals as they grow, and ``selection`` filters their episodes. ``site`` renders
the pages, ``app`` serves them on loopback, and ``static`` writes them as files.
"""
