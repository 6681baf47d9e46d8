"""Independent readers of varied MALT task texts, from words back to the requested program.

They share no code with what writes the texts (``netarena_malt.query.render``, ``describe`` and
``phrasing``), so that a text and its truth that drift apart are found. ``meaning.meaning`` brings
a query's own actions to the form that the readers give.
"""
