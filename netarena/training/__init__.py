"""Learning from the same worlds: sets of dialogues (``sft``), and sessions to be played.

One core, ``session``, and thin doors that import their framework when they are imported.
"""
