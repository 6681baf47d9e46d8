"""Independent parsers of varied MALT task texts, which recover the requested program.

They share no code with the program that writes the texts (``netarena_malt.query.render``,
``describe`` and ``phrasing``), so they detect texts that differ from the correct program.
``meaning.meaning`` converts a query's own actions to the form that the parsers return.
"""
