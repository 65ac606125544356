"""structlog: its console form, JSON and logfmt; rank and host are bound where there are several processes."""

import os
import sys

import structlog

RENDERERS = {
    "console": lambda: [structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)],
    "color": lambda: [structlog.dev.ConsoleRenderer(colors=True, exception_formatter=structlog.dev.plain_traceback)],
    "json": lambda: [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
    "dicts": lambda: [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()],
    "logfmt": lambda: [
        structlog.processors.format_exc_info,
        structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
    ],
}


def build(form, rank, world):
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.TimeStamper(fmt="iso"),
            *RENDERERS[form](),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
    )
    log = structlog.get_logger()
    if world > 1:
        log = log.bind(rank=rank, host=os.environ.get("NODE_NAME", "worker-0"))
    return log
