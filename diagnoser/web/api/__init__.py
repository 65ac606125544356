"""The API, a module a noun: one with a ``router`` is served."""
