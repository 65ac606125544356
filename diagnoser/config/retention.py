"""How long the site keeps what it stores."""

from diagnoser.config.settings import Settings
from diagnoser.worker.retention import RetentionAges

DUMPS_DAYS = 90
"""A dump is read while people look for the cause of a hang; later its diagnosis says what it showed."""
MESSAGES_DAYS = 90
"""Sent messages answer who was told what: for a quarter, as reviews of incidents go."""


def ages(settings: Settings) -> RetentionAges:
    return RetentionAges(
        settings.retention_days,
        DUMPS_DAYS,
        MESSAGES_DAYS,
        settings.max_stored_bytes,
        settings.archive_retention_days,
        settings.max_archived_bytes,
        settings.audit_retention_days,
    )
