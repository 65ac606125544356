"""The settings in force, with every secret masked, and the files that the service reads its tables from."""

from collections.abc import Iterator

from pydantic import SecretStr

from diagnoser.adapters import files
from diagnoser.config.settings import PREFIX, Settings
from diagnoser.model.shown_settings import Origin, ShownSetting
from diagnoser.redaction.redact import without_secrets

TABLES = ("alerts.yaml", "policy.yaml", "node_proofs.yaml", "node_queries.yaml")
HIDDEN = "is set, never shown"


def shown_settings(settings: Settings) -> tuple[ShownSetting, ...]:
    """By name, the files first."""
    return (*_files(settings), *sorted(_settings(settings), key=lambda shown: shown.name))


def _settings(settings: Settings) -> Iterator[ShownSetting]:
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        is_given = name in settings.model_fields_set and value != field.default
        origin = Origin.GIVEN if is_given else Origin.DEFAULT
        yield ShownSetting(PREFIX + name.upper(), _shown(value), origin, field.description or "")


def _files(settings: Settings) -> Iterator[ShownSetting]:
    site = settings.rules_dir
    for name in TABLES:
        if site is not None and (site / name).exists():
            yield ShownSetting(name, str(site / name), Origin.SITE_FILE)
        else:
            yield ShownSetting(name, str(files.bundled("rules") / name), Origin.SHIPPED_FILE)


def _shown(value: object) -> str:
    if isinstance(value, SecretStr):
        return HIDDEN if value.get_secret_value() else ""
    if value is None:
        return ""
    return without_secrets(str(value))
