"""Loggers of the field, one module each: ``build(name, rank, world)`` gives what has info, error, exception ..."""

import importlib


def build(name, rank, world):
    """name: of a module here, with a form of it behind a colon ("structlog_logger:json")."""
    module, _, form = name.partition(":")
    return importlib.import_module(f"loggers.{module}").build(form, rank, world)
