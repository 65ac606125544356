"""The registry of protocols: routes, bodies, errors, audit, hints, tests and documents go by it."""

from diagnoser.ingest.protocols import elasticsearch, lines, loki, otlp
from diagnoser.ingest.protocols.protocol import Protocol

PROTOCOLS: tuple[Protocol, ...] = (
    lines.PROTOCOL,  # the first that is asked for a path: each further one costs
    loki.PROTOCOL,
    otlp.PROTOCOL,
    elasticsearch.PROTOCOL,
)


def path_ends() -> tuple[str, ...]:
    return tuple(end for protocol in PROTOCOLS for end in protocol.path_ends)
