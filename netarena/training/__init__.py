"""Training in the same worlds: data sets of dialogues (``sft``) and interactive sessions.

``session`` is the core. Importing an adapter for a framework imports the framework.
"""
