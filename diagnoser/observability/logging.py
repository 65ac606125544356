"""The service's own log: structured, to standard error, as JSON for machines or in columns for people."""

import logging
import sys

import structlog
from structlog.typing import EventDict, WrappedLogger

from diagnoser.redaction.redact import masked, masked_lines, without_secrets


def set_up(*, as_json: bool, level: str) -> None:
    """Structured logs to standard error: JSON for machines, columns for people. Secrets in them are masked."""
    renderer = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            _mask_secrets,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _mask_secrets(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """A processor of structlog. What people are called and addresses stay: whoever is on call needs them."""
    traceback = event.pop("exception", None)
    shown: EventDict = masked(event, without_secrets)
    if traceback:
        shown["exception"] = masked_lines(traceback, without_secrets)
    return shown
