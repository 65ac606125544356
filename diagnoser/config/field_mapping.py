"""The site's mapping of labels and attributes."""

from diagnoser.adapters import files
from diagnoser.config.settings import Settings
from diagnoser.ingest import mapping
from diagnoser.ingest.mapping import FieldMapping


def load_mapping(settings: Settings) -> FieldMapping:
    """The shipped presets, with the operator's file before them. Raises RuleFaults with all of its faults, BadInput."""
    path = settings.mapping
    if path is None:
        return mapping.DEFAULT
    return mapping.load(str(path), files.text(path))
