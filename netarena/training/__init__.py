"""Training in the same worlds: data sets of dialogues (``sft``) and interactive sessions.

``session`` is the core. Thin adapters import their framework when they are imported.
"""
