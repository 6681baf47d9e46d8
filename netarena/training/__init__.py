"""Training in the same worlds: data sets of dialogues (``sft``) and interactive sessions.

``session`` is the core. Each adapter to a framework imports the framework when it is imported.
"""
