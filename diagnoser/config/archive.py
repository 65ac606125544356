"""Where original lines are archived, as the settings say."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from diagnoser.adapters.folder_archive import folder_archive
from diagnoser.adapters.object_archive import object_archive
from diagnoser.config.settings import Settings
from diagnoser.model.errors import BadInput
from diagnoser.ports import Archive


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
