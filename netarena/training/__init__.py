"""Training in the worlds of the benchmark: data sets of dialogues, and interactive sessions.

``sft`` writes the data sets, and ``session`` runs the sessions. The other modules adapt sessions to
training frameworks. Importing an adapter also imports its framework.
"""
