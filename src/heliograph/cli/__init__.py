"""``helio``: parse arguments, call the API, print. No logic of its own.

``main`` is the entry; every group of commands has a module. What they share: ``frame`` (commands that fail
with one line), ``common`` (the options every command has), ``output`` and ``messages`` (printing),
``signals`` (stopping in order).
"""
