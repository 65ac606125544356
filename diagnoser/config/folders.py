"""The folders of rules and prompts: the site's own, or the shipped ones."""

from pathlib import Path

from diagnoser.adapters import files
from diagnoser.config.settings import Settings


def rules_folder(settings: Settings) -> Path:
    return settings.rules_dir or files.bundled("rules")


def prompts_folder(settings: Settings) -> Path:
    return settings.prompts_dir or files.bundled("prompts")


def site_or_shipped(folder: Path, name: str) -> Path:
    """Find a table in a folder of rules; the shipped one where that folder has none."""
    path = folder / name
    if path.exists():
        return path
    return files.bundled("rules") / name
