"""Each typical mistake in the settings is reported offline, with what to do about it."""

import asyncio
import json
from pathlib import Path

import pytest

from diagnoser.config import llm_factory, self_check
from diagnoser.config.loader import load_analyzer
from tests import accuracy_bars

SECRET = "x" * 20
MISTAKES: tuple[tuple[dict[str, str], str], ...] = (
    ({"DATABSE_URL": "sqlite:///d.db"}, "did you mean DIAGNOSER_DATABASE_URL?"),
    ({"PORT": "abc"}, "should be a valid integer"),
    ({"PORT": "70000"}, "less than or equal to 65535"),
    ({"WORKERS": "0"}, "greater than or equal to 1"),
    ({"ROLE": "worker,api"}, "should be 'all', 'api' or 'worker'"),
    ({"LOG_LEVEL": "INFO"}, "should be 'debug', 'info', 'warning' or 'error'"),
    ({"LOG_FORMAT": "text"}, "should be 'console' or 'json'"),
    ({"EXIT_GRACE_SECONDS": "1s"}, "should be a valid number"),
    ({"ALLOW_PRIVATE_TARGETS": "maybe"}, "should be a valid boolean"),
    ({"RECOVERY_MODE": "on"}, "should be 'policy', 'observe' or 'act'"),
    ({"LLM_TRIGGER": "always"}, "should be 'never', 'undecided' or 'always_explain'"),
    ({"MAX_REQUEST_BYTES": "1"}, "no such setting"),
    ({"TOKENS_FILE": "/no/file"}, "No such file"),
    ({"HOST": "0.0.0.0"}, "Make one: diagnoser token create"),
    ({"RECOVERY_MODE": "act"}, "Make them: diagnoser token create"),
    ({"BASE_URL": "diagnoser.example"}, "must begin with http:// or https://"),
    ({"BASE_URL": "http://localhost:8321", "HOST": "0.0.0.0"}, "Set the public address"),
    ({"TOKENS": SECRET}, "must begin with one of ingest:"),
    ({"TOKENS": "admin:short"}, "and have 16 characters"),
    ({"TOKENS": f"boss:{SECRET}"}, "must begin with one of"),
    ({"ALLOWED_HOSTS": "http://d.example"}, "must be a name alone"),
    ({"TRUSTED_PROXIES": "nginx"}, "does not appear to be an IPv4 or IPv6 network"),
    ({"TLS_CERTIFICATE": "/etc/hostname"}, "DIAGNOSER_TLS_KEY is missing"),
    ({"TLS_KEY": "/etc/hostname"}, "DIAGNOSER_TLS_CERTIFICATE is missing"),
    ({"DATABASE_URL": "sqlite://data/d.db"}, "three slashes before a relative path"),
    ({"DATABASE_URL": "mysql://h/x"}, "must be sqlite:///path or postgresql://"),
    ({"DATABASE_URL": "sqlite:////no/such/d.db"}, "make it, or correct DIAGNOSER_DATABASE_URL"),
    ({"DATABASE_URL": "postgresql://u:p@s@h/x"}, "%40"),
    ({"REDIS_URL": "localhost:6379"}, "must begin with redis://"),
    ({"RETENTION_DAYS": "3"}, "less than 8 days"),
    ({"ARCHIVE": "bucket"}, "must be file:///folder or s3://bucket/prefix"),
    ({"ARCHIVE_RETENTION_DAYS": "30"}, "have no effect without DIAGNOSER_ARCHIVE"),
    ({"ARCHIVE_ENDPOINT": "http://127.0.0.1:9000"}, "DIAGNOSER_ARCHIVE is no s3://"),
    ({"ARCHIVE": "s3://logs", "ARCHIVE_ENDPOINT": "minio:9000"}, "DIAGNOSER_ARCHIVE_ENDPOINT is no URL"),
    ({"LLM_URL": "http://127.0.0.1:8000/v1"}, "without DIAGNOSER_LLM_MODEL"),
    ({"LLM_MODEL": "m"}, "no model is asked without DIAGNOSER_LLM_URL"),
    ({"LLM_API_KEY": "k"}, "no model is asked without DIAGNOSER_LLM_URL"),
    ({"LLM_URL": "127.0.0.1:8000/v1", "LLM_MODEL": "m"}, "must begin with http:// or https://"),
    ({"PROMETHEUS_URL": "prometheus:9090"}, "must begin with http:// or https://"),
    ({"LLM_URL": "http://127.0.0.1:8000", "LLM_MODEL": "m"}, "below /v1. Add it"),
    ({"EMBEDDING_URL": "http://127.0.0.1:8000/v1"}, "set both"),
    ({"WEBHOOK_URL": "https://h.example/x"}, "DIAGNOSER_WEBHOOK_SECRET must be whsec_"),
    ({"WEBHOOK_SECRET": "whsec_c2VjcmV0"}, "nothing is sent without DIAGNOSER_WEBHOOK_URL"),
    ({"OIDC_ISSUER": "https://login.example"}, "DIAGNOSER_OIDC_CLIENT_ID is missing"),
    ({"OIDC_CLIENT_ID": "x"}, "have no effect without DIAGNOSER_OIDC_ISSUER"),
    ({"APPRISE_URLS": "zzz"}, "is not name=URL"),
    ({"SLACK_URL": "hooks.slack.example"}, "must start with http:// or https://"),
    ({"MAPPING": "/no/file"}, "cannot read /no/file"),
    ({"RULES_DIR": "/no/folder"}, "no such folder: /no/folder"),
    ({"PROMPTS_DIR": "/no/folder"}, "no such folder: /no/folder"),
    ({"REDACT_FILE": "/no/file"}, "cannot read /no/file"),
    ({"KAFKA_PROPERTIES": "/no/file"}, "there is no such file"),
    ({"FT_LAUNCHER_LOG_ROOT": "/no/folder"}, "there is no such folder"),
    ({"OTLP_ENDPOINT": "collector:4318"}, "must be http://host:port or https://host:port"),
)


@pytest.fixture(autouse=True)
def shipped_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read once; a site's folder is read by the real loader."""
    read = load_analyzer
    monkeypatch.setattr(
        self_check, "load_analyzer", lambda site: read(site) if site.rules_dir else accuracy_bars.load()
    )


def reported(settings: dict[str, str]) -> str:
    environment = {f"DIAGNOSER_{name}": value for name, value in settings.items()}
    parts = asyncio.run(self_check.findings(environment, reach=False))
    return "\n".join([*self_check.faults_of(parts), *(text for part in parts for text in part.warnings)])


@pytest.mark.parametrize(("settings", "fix"), MISTAKES, ids=[json.dumps(settings) for settings, _ in MISTAKES])
def test_a_typical_mistake_is_reported_with_its_fix(settings: dict[str, str], fix: str) -> None:
    """None is silent, and no server has to be asked."""
    assert fix in reported(settings)


@pytest.mark.parametrize("prompt", llm_factory.PROMPTS)
def test_every_prompt_of_the_site_is_read(prompt: str, tmp_path: Path) -> None:
    """Also those of the log agent and of questions, which the service reads at its start."""
    (tmp_path / prompt).mkdir(parents=True)
    assert prompt in reported({"PROMPTS_DIR": str(tmp_path)})


def test_what_a_site_needs_has_no_warning() -> None:
    """The settings of docs/deploy.md."""
    assert reported({}) == ""
    site = {"HOST": "0.0.0.0", "TOKENS": f"admin:{SECRET},agent:{SECRET}", "RECOVERY_MODE": "act"}
    model = {"LLM_URL": "http://127.0.0.1:8000/v1", "LLM_MODEL": "m", "BASE_URL": "https://diagnoser.example"}
    assert reported(site | model) == ""
