"""Runs within schemathesis, in its environment."""

import schemathesis


@schemathesis.serializer("application/x-ndjson", "application/syslog", "application/x-protobuf")
def as_it_is(context: object, value: object) -> bytes:
    """The description has such a body as one string."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
