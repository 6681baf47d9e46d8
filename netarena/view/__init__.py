"""The viewer: pages to read trajectories by, over the journals of runs; read-only.

``index`` follows journals, ``selection`` filters what it found, ``site`` renders pages from both,
``app`` serves them on loopback and ``static`` writes them as files.
"""
