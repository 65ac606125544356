"""What the site says in files of its own: masks of outgoing text, and the mapping of labels."""

from diagnoser.adapters import files
from diagnoser.config.settings import Settings
from diagnoser.ingest import mapping
from diagnoser.ingest.mapping import FieldMapping
from diagnoser.redaction import redact
from diagnoser.redaction.redact import Redactor


def load_redactor(settings: Settings, *, addresses: bool = False) -> Redactor:
    """What this site masks before text goes to a model. Raises RuleFaults, BadInput."""
    path = settings.redact_file
    text = ""
    if path:
        text = files.text(path)
    return redact.load(str(path), text, addresses=addresses)


def load_outbound_redactor(settings: Settings) -> Redactor:
    """As ``load_redactor``, for chats and webhooks: no alias keeps an address's identity there. Node names stay."""
    return load_redactor(settings, addresses=True)


def load_mapping(settings: Settings) -> FieldMapping:
    """The shipped presets, with the operator's file before them. Raises RuleFaults with all of its faults, BadInput."""
    path = settings.mapping
    if path is None:
        return mapping.DEFAULT
    return mapping.load(str(path), files.text(path))
