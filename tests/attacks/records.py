"""How lines of a node's log look on the way in: records of the kernel itself, and of its user space.

Controls and lies share these forms: what a true fault looks like is decided here, and nowhere else.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

TEXT, SYSLOG, NDJSON, JSON = "text/plain", "application/syslog", "application/x-ndjson", "application/json"
PROTOBUF = "application/x-protobuf"
LOGS, LOKI, OTLP, BULK = "/api/v1/logs", "/loki/api/v1/push", "/v1/logs", "/elasticsearch/_bulk"
KERN, USER, DAEMON, AUTHPRIV, LOCAL0 = 0, 1, 3, 10, 16
"""Facilities of syslog."""
WARNING = 4
UPTIME = 8_123.112233


@dataclass(frozen=True, slots=True)
class Post:
    """A request that carries lines."""

    path: str
    body: bytes
    kind: str
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """The node that a record is of, and when it is read."""

    cluster: str
    node: str
    now: float

    @property
    def iso(self) -> str:
        return datetime.fromtimestamp(self.now, UTC).isoformat(timespec="microseconds")

    @property
    def stamp(self) -> str:
        return datetime.fromtimestamp(self.now, UTC).strftime("%b %e %H:%M:%S")

    def query(self, source: str) -> dict[str, str]:
        return {"source": source, "node": self.node, "cluster": self.cluster}


Record = Callable[[Place, str], Post]
"""(place, message) -> the request that a shipper with the agent's token makes of it."""


def _kmsg(place: Place, message: str) -> Post:
    """As /dev/kmsg gives it: control characters are escaped."""
    escaped = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in message)
    body = f"{WARNING},1234,{UPTIME * 1e6:.0f},-;{escaped}\n"
    return Post(LOGS, body.encode(), TEXT, place.query("kernel"))


def _dmesg(place: Place, message: str) -> Post:
    """As /proc/kmsg and dmesg give it: every line of a message has the head of its own."""
    body = "".join(f"<{WARNING}>[ {UPTIME:.6f}] {line}\n" for line in message.split("\n"))
    return Post(LOGS, body.encode(), TEXT, place.query("dmesg"))


def _syslog(place: Place, message: str) -> Post:
    """RFC 5424, from a syslog daemon that sends what it read from the kernel itself apart from all else."""
    head = f"<{KERN * 8 + WARNING}>1 {place.iso} {place.node} kernel - - - "
    body = "".join(f"{head}{line}\n" for line in message.split("\n"))
    return Post(LOGS, body.encode(), SYSLOG, {"cluster": place.cluster, "source": "kernel"})


def _old_syslog(place: Place, message: str) -> Post:
    """RFC 3164, the same."""
    head = f"<{KERN * 8 + WARNING}>{place.stamp} {place.node} kernel: [ {UPTIME:.6f}] "
    body = "".join(f"{head}{line}\n" for line in message.split("\n"))
    return Post(LOGS, body.encode(), SYSLOG, {"cluster": place.cluster, "source": "kernel"})


def _journal(place: Place, message: str) -> Post:
    """A record of journald, as it exports JSON."""
    return Post(LOGS, _line(_kernel_fields(place) | {"message": message}), NDJSON, place.query("kernel"))


def _journal_loki(place: Place, message: str) -> Post:
    return loki(_kernel_fields(place) | {"source": "kernel"}, message, place)


def _journal_otlp(place: Place, message: str) -> Post:
    return otlp(_kernel_fields(place) | {"source": "kernel"}, message, place)


def _journal_bulk(place: Place, message: str) -> Post:
    return bulk(_kernel_fields(place) | {"source": "kernel", "message": message}, place)


def _kernel_fields(place: Place) -> dict[str, str]:
    return {
        "_TRANSPORT": "kernel",
        "SYSLOG_FACILITY": str(KERN),
        "SYSLOG_IDENTIFIER": "kernel",
        "PRIORITY": str(WARNING),
        "host": place.node,
        "cluster": place.cluster,
    }


KERNEL: Mapping[str, Record] = {
    "kmsg": _kmsg,
    "dmesg": _dmesg,
    "syslog": _syslog,
    "old-syslog": _old_syslog,
    "journal": _journal,
    "journal-loki": _journal_loki,
    "journal-otlp": _journal_otlp,
    "journal-bulk": _journal_bulk,
}
"""Records of the kernel itself, in each form in which shippers send them."""
PROVES = ("kmsg", "syslog", "journal")
"""Forms whose true fault must take the node out; of the others it may be only a suspicion."""


@dataclass(frozen=True, slots=True)
class Logger:
    """How a program of any user writes to the system's log."""

    facility: int
    tag: str


LOGGERS: Mapping[str, Logger] = {
    "user": Logger(USER, "root"),
    "user-kernel": Logger(USER, "kernel"),
    "daemon": Logger(DAEMON, "nvidia-persistenced"),
    "daemon-kernel": Logger(DAEMON, "kernel"),
    "authpriv": Logger(AUTHPRIV, "sshd"),
    "local0-kernel": Logger(LOCAL0, "kernel"),
    "local0-slurmd": Logger(LOCAL0, "slurmd"),
    "user-colon": Logger(USER, "kernel:"),
    "raw-kernel": Logger(KERN, "kernel"),  # written to /dev/log past libc, which would change the facility
}


def logger_syslog(place: Place, who: Logger, message: str) -> Post:
    text = message.replace("\n", " ")
    body = f"<{who.facility * 8 + 3}>1 {place.iso} {place.node} {who.tag} 4711 - - {text}\n"
    return Post(LOGS, body.encode(), SYSLOG, {"cluster": place.cluster})


def logger_old_syslog(place: Place, who: Logger, message: str) -> Post:
    text = message.replace("\n", " ")
    body = f"<{who.facility * 8 + 3}>{place.stamp} {place.node} {who.tag}: {text}\n"
    return Post(LOGS, body.encode(), SYSLOG, {"cluster": place.cluster})


def logger_careless(place: Place, who: Logger, message: str) -> Post:
    """Sent by a syslog daemon that calls all that it has the kernel's. A raw record could not be told from the kernel's
    there: it is left to its own tag."""
    text = message.replace("\n", " ")
    facility = who.facility or USER
    body = f"<{facility * 8 + 3}>1 {place.iso} {place.node} {who.tag} 4711 - - {text}\n"
    return Post(LOGS, body.encode(), SYSLOG, {"cluster": place.cluster, "source": "kernel"})


def logger_text(place: Place, who: Logger, message: str) -> Post:
    """A line of /var/log/messages, which does not tell the facility."""
    body = f"{place.stamp} {place.node} {who.tag}: {message}\n"
    return Post(LOGS, body.encode(), TEXT, place.query("syslog"))


def logger_journal(place: Place, who: Logger, message: str) -> Post:
    fields = {
        "_TRANSPORT": "syslog",
        "_UID": "1000",
        "SYSLOG_FACILITY": str(who.facility),
        "SYSLOG_IDENTIFIER": who.tag,
        "host": place.node,
        "message": message,
    }
    return Post(LOGS, _line(fields), NDJSON, place.query("syslog"))


def logger_unsaid(place: Place, who: Logger, message: str) -> Post:
    """As above, where the shipper leaves it to the labels what the stream is."""
    fields = {"_TRANSPORT": "syslog", "_UID": "1000", "SYSLOG_IDENTIFIER": who.tag, "source": "syslog"}
    return loki(fields | {"host": place.node, "cluster": place.cluster}, message, place)


def logger_kmsg(place: Place, who: Logger, message: str) -> Post:
    """What a process with the right to wrote into /dev/kmsg: the kernel never lets it use its own facility."""
    body = f"{(who.facility or USER) * 8 + 3},1234,{UPTIME * 1e6:.0f},-;{message}\n".replace(
        "\n", "\\x0a", message.count("\n")
    )
    return Post(LOGS, body.encode(), TEXT, place.query("kernel"))


LoggerRecord = Callable[[Place, Logger, str], Post]
USER_SPACE: Mapping[str, LoggerRecord] = {
    "syslog": logger_syslog,
    "old-syslog": logger_old_syslog,
    "text": logger_text,
    "journal": logger_journal,
    "journal-loki": logger_unsaid,
    "kmsg": logger_kmsg,
    "careless": logger_careless,
}


def loki(labels: Mapping[str, str], message: str, place: Place) -> Post:
    values = [[str(int(place.now * 1e9)), message]]
    body = {"streams": [{"stream": dict(labels), "values": values}]}
    return Post(LOKI, json.dumps(body).encode(), JSON)


def otlp(attributes: Mapping[str, str], message: str, place: Place) -> Post:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    for name, value in attributes.items():
        resource.resource.attributes.add(key=name).value.string_value = value
    record = resource.scope_logs.add().log_records.add(time_unix_nano=int(place.now * 1e9))
    record.body.string_value = message
    return Post(OTLP, bytes(request.SerializeToString()), PROTOBUF)


def bulk(document: Mapping[str, Any], place: Place) -> Post:
    return Post(BULK, b'{"create": {"_index": "logs"}}\n' + _line(document), NDJSON)


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"
