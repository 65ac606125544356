"""Settings of earlier versions that are constants now, or stand elsewhere.

Most are only warned about. One that protected something stops the start: to go on without it is for a person to decide.
"""

from collections.abc import Mapping

_PROPERTY = "set {} in the file of DIAGNOSER_KAFKA_PROPERTIES"
REMOVED = {
    "DIAGNOSER_KEEP_ALIVE_SECONDS": "it is 75 now",
    "DIAGNOSER_MAX_REQUEST_BYTES": "it is 67108864 (64 MiB) now",
    "DIAGNOSER_MAX_BUFFERED_BYTES": "it is 268435456 (256 MiB) now",
    "DIAGNOSER_FATAL_DEBOUNCE_MAX_SECONDS": "it is 60 now",
    "DIAGNOSER_SESSION_IDLE_HOURS": "it is 12 now",
    "DIAGNOSER_SESSION_DAYS": "it is 7 now",
    "DIAGNOSER_NODE_LOG_RETENTION_HOURS": "it is 24 now",
    "DIAGNOSER_BASELINE_RETENTION_DAYS": "it is 30 now",
    "DIAGNOSER_EVIDENCE_RETENTION_DAYS": "it is 90 now",
    "DIAGNOSER_OUTBOX_RETENTION_DAYS": "it is 90 now",
    "DIAGNOSER_LLM_LOG_BUDGET_TOKENS": "it is 6000 now",
    "DIAGNOSER_LLM_COST_PER_HOUR": "DIAGNOSER_LLM_TOKENS_PER_HOUR limits what the model may use",
    "DIAGNOSER_LLM_PRICE_PER_MILLION_INPUT_TOKENS": "DIAGNOSER_LLM_TOKENS_PER_HOUR limits what the model may use",
    "DIAGNOSER_LLM_PRICE_PER_MILLION_OUTPUT_TOKENS": "DIAGNOSER_LLM_TOKENS_PER_HOUR limits what the model may use",
    "DIAGNOSER_LLM_BREAKER_FAILURES": "it is 5 now",
    "DIAGNOSER_LLM_BREAKER_SECONDS": "it is 60 now",
    "DIAGNOSER_WEBHOOK_RATE_LIMIT": "it is 20 now",
    "DIAGNOSER_SLACK_RATE_LIMIT": "it is 1 now",
    "DIAGNOSER_KAFKA_SECURITY_PROTOCOL": _PROPERTY.format("security.protocol"),
    "DIAGNOSER_KAFKA_CA_FILE": _PROPERTY.format("ssl.ca.location"),
    "DIAGNOSER_KAFKA_SASL_MECHANISM": _PROPERTY.format("sasl.mechanism"),
    "DIAGNOSER_KAFKA_SASL_USERNAME": _PROPERTY.format("sasl.username"),
    "DIAGNOSER_KAFKA_SASL_PASSWORD": _PROPERTY.format("sasl.password"),
    "DIAGNOSER_KAFKA_SASL_PASSWORD_FILE": _PROPERTY.format("sasl.password"),
}
"""Environment variable -> what holds in place of its setting."""


_PROTECTED = ("DIAGNOSER_KAFKA_", "DIAGNOSER_SESSION_", "DIAGNOSER_LLM_COST_")
"""Beginnings of variables that kept connections encrypted, sessions short or the bill small."""
_RETENTION = ("_RETENTION_DAYS", "_RETENTION_HOURS")
"""Ends of variables by which a site promised to keep data no longer."""


def warnings(environment: Mapping[str, str]) -> list[str]:
    """Name the variables that no longer set anything, each with what holds instead."""
    return [_explained(name) for name in _given(environment) if not _protected(name)]


def faults(environment: Mapping[str, str]) -> list[str]:
    """Name the variables without which less is protected than before. They have to be taken away by a person."""
    return [f"{_explained(name)}; remove the variable" for name in _given(environment) if _protected(name)]


def _given(environment: Mapping[str, str]) -> list[str]:
    return [name for name in REMOVED if name in environment]


def _protected(name: str) -> bool:
    return name.startswith(_PROTECTED) or name.endswith(_RETENTION)


def _explained(name: str) -> str:
    return f"{name} is no longer a setting: {REMOVED[name]}"
