"""Where original lines are archived, and how long the site keeps what it stores."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from diagnoser.adapters.folder_archive import folder_archive
from diagnoser.adapters.object_archive import object_archive
from diagnoser.config.settings import Settings
from diagnoser.model.errors import BadInput
from diagnoser.ports import Archive
from diagnoser.worker.retention import RetentionAges

DUMPS_DAYS = 90
"""A dump is read while people look for the cause of a hang; later its diagnosis says what it showed."""
MESSAGES_DAYS = 90
"""Sent messages answer who was told what: for a quarter, as reviews of incidents go."""


def retention_ages(settings: Settings) -> RetentionAges:
    return RetentionAges(
        attempts_days=settings.retention_days,
        dumps_days=DUMPS_DAYS,
        messages_days=MESSAGES_DAYS,
        stored_bytes=settings.max_stored_bytes,
        archive_days=settings.archive_retention_days,
        archived_bytes=settings.max_archived_bytes,
        audit_days=settings.audit_retention_days,
    )


def open_archive(settings: Settings) -> Archive | None:
    """Open the archive; None where none is set. Raises BadInput."""
    if not settings.archive:
        return None
    url = urlsplit(settings.archive)
    match url.scheme, url.netloc:
        case "file", "" if url.path not in ("", "/"):
            return folder_archive(Path(unquote(url.path)))
        case "s3" | "gs" | "az", bucket if bucket:
            return object_archive(settings.archive, settings.archive_endpoint)
    raise BadInput("DIAGNOSER_ARCHIVE must be file:///folder or s3://bucket/prefix (or gs://, az://)")
