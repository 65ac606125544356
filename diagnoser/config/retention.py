"""How long the site keeps what it stores."""

from diagnoser.config.settings import Settings
from diagnoser.worker.retention import RetentionAges


def ages(settings: Settings) -> RetentionAges:
    return RetentionAges(
        settings.retention_days,
        settings.evidence_retention_days,
        settings.outbox_retention_days,
        settings.max_stored_bytes,
        settings.archive_retention_days,
        settings.max_archived_bytes,
        settings.audit_retention_days,
    )
