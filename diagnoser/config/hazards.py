"""Settings that are sound one by one, and together have no effect, or another one than their site expects."""

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from diagnoser.config.authentication import is_loopback
from diagnoser.config.settings import Settings

RETENTION_LEAST_DAYS = 8
"""Attempts with news in the last days are never dropped."""

Condition = Callable[[Settings], object]


def _is_set(settings: Settings, *names: str) -> bool:
    """Tell whether one of the settings has a value."""
    return any(getattr(settings, name) for name in names)


def _has_callers(settings: Settings) -> bool:
    return _is_set(settings, "tokens", "oidc_issuer")


def _without(needed: Sequence[str], *names: str) -> Condition:
    """Make the condition that one of the settings has a value, and none of those that it needs."""
    return lambda settings: _is_set(settings, *names) and not _is_set(settings, *needed)


_HAZARDS: tuple[tuple[Condition, str], ...] = (
    (
        lambda s: s.recovery_mode == "act" and not _has_callers(s),
        "DIAGNOSER_RECOVERY_MODE=act lets plans drain nodes, and the settings have no token: unless the database has "
        "tokens or users, whoever reaches the port can report jobs and claim plans. Make them: diagnoser token create",
    ),
    (
        lambda s: not is_loopback(s.host) and not _has_callers(s),
        "DIAGNOSER_HOST is beyond loopback, and the settings have no token: the service starts only if the database "
        "has tokens or users. Make one: diagnoser token create",
    ),
    (
        lambda s: not is_loopback(s.host) and is_loopback(urlsplit(s.base_url).hostname),
        "DIAGNOSER_BASE_URL names this machine alone: links in alerts open nothing elsewhere. Set the public address",
    ),
    (
        _without(["llm_model"], "llm_url"),
        "DIAGNOSER_LLM_URL is set without DIAGNOSER_LLM_MODEL: most servers refuse a request without a model. Set it",
    ),
    (
        _without(["llm_url"], "llm_model"),
        "DIAGNOSER_LLM_MODEL has no effect: no model is asked without DIAGNOSER_LLM_URL",
    ),
    (
        _without(["llm_url", "embedding_url"], "llm_api_key"),
        "DIAGNOSER_LLM_API_KEY has no effect: no model is asked without DIAGNOSER_LLM_URL",
    ),
    (
        lambda s: s.prometheus_url and urlsplit(s.prometheus_url).scheme not in ("http", "https"),
        "DIAGNOSER_PROMETHEUS_URL must begin with http:// or https://, such as http://prometheus:9090",
    ),
    (
        lambda s: s.llm_url and urlsplit(s.llm_url).scheme not in ("http", "https"),
        "DIAGNOSER_LLM_URL must begin with http:// or https://, such as http://127.0.0.1:8000/v1",
    ),
    (
        lambda s: urlsplit(s.llm_url).netloc and urlsplit(s.llm_url).path in ("", "/"),
        "DIAGNOSER_LLM_URL has no path: OpenAI-compatible servers answer below /v1. Add it",
    ),
    (
        lambda s: bool(s.embedding_url) != bool(s.embedding_model),
        "DIAGNOSER_EMBEDDING_URL and DIAGNOSER_EMBEDDING_MODEL have an effect together only: set both",
    ),
    (
        _without(["webhook_url"], "webhook_secret"),
        "DIAGNOSER_WEBHOOK_SECRET has no effect: nothing is sent without DIAGNOSER_WEBHOOK_URL",
    ),
    (
        lambda s: (
            s.redis_url.get_secret_value()
            and not s.redis_url.get_secret_value().startswith(("redis://", "rediss://", "unix://"))
        ),
        "DIAGNOSER_REDIS_URL must begin with redis://, rediss:// or unix://, such as redis://host:6379/0",
    ),
    (
        lambda s: s.archive_endpoint and not s.archive.startswith("s3://"),
        "DIAGNOSER_ARCHIVE_ENDPOINT has no effect: DIAGNOSER_ARCHIVE is no s3://bucket/prefix",
    ),
    (
        _without(["archive"], "archive_retention_days", "max_archived_bytes"),
        "DIAGNOSER_ARCHIVE_RETENTION_DAYS and DIAGNOSER_MAX_ARCHIVED_BYTES have no effect without DIAGNOSER_ARCHIVE",
    ),
    (
        lambda s: any(
            0 < days < RETENTION_LEAST_DAYS
            for days in (s.retention_days, s.audit_retention_days, s.archive_retention_days)
        ),
        f"a retention of less than {RETENTION_LEAST_DAYS} days has no effect: set that, or 0 for ever",
    ),
    (
        _without(["oidc_issuer"], "oidc_client_id", "oidc_roles"),
        "DIAGNOSER_OIDC_CLIENT_ID and DIAGNOSER_OIDC_ROLES have no effect without DIAGNOSER_OIDC_ISSUER",
    ),
    (
        lambda s: s.kafka_properties and not s.kafka_properties.is_file(),
        "DIAGNOSER_KAFKA_PROPERTIES: there is no such file; `diagnoser consume` would not start",
    ),
    (
        lambda s: s.ft_launcher_log_root and not s.ft_launcher_log_root.is_dir(),
        "DIAGNOSER_FT_LAUNCHER_LOG_ROOT: there is no such folder; every file in it would be refused",
    ),
)


def warnings(settings: Settings) -> list[str]:
    """Say what each combination does, and what to do about it."""
    return [message for condition, message in _HAZARDS if condition(settings)]
