"""JSON lines: of python-json-logger, and in the field names of zap and slog (Go), bunyan, winston and pino (Node),
CLEF (.NET), tracing (Rust), Monolog (PHP), GELF, Logstash, Datadog, ECS, OTLP and Google Cloud."""

import json
import logging
import os
import sys
from datetime import UTC, datetime

LEVELS = {"INFO": 30, "WARNING": 40, "ERROR": 50, "CRITICAL": 60}


class Fields(logging.Formatter):
    """One JSON object a record. form: whose field names."""

    def __init__(self, form, rank, world):
        super().__init__()
        self.form, self.rank, self.world = form, rank, world
        self.host = os.environ.get("NODE_NAME", "worker-0")

    def format(self, record):
        entry = getattr(self, self.form)(record, datetime.fromtimestamp(record.created, UTC))
        return json.dumps(entry, ensure_ascii=False)

    def zap(self, record, at):
        entry = {
            "level": {"WARNING": "warn", "CRITICAL": "fatal"}.get(record.levelname, record.levelname.lower()),
            "ts": round(record.created, 6),
            "caller": f"train/{record.filename}:{record.lineno}",
            "msg": record.getMessage(),
        }
        if self.world > 1:
            entry |= {"rank": self.rank, "node": self.host}
        if record.exc_info:
            entry |= {"error": str(record.exc_info[1]), "stacktrace": self.formatException(record.exc_info)}
        return entry

    def bunyan(self, record, at):
        entry = {"name": "train", "hostname": self.host, "pid": record.process, "level": LEVELS[record.levelname]}
        if self.world > 1:
            entry["worker"] = self.rank
        if record.exc_info:
            kind, error, _ = record.exc_info
            entry["err"] = {
                "message": str(error),
                "name": kind.__name__,
                "stack": self.formatException(record.exc_info),
            }
        return entry | {"msg": record.getMessage(), "time": f"{at:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z", "v": 0}

    def cloud(self, record, at):
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        entry = {"severity": record.levelname, "message": message, "timestamp": at.isoformat()}
        if self.world > 1:
            entry["labels"] = {"replica_rank": str(self.rank), "instance": self.host}
        return entry

    def ecs(self, record, at):
        entry = {
            "@timestamp": f"{at:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z",
            "log.level": record.levelname.lower(),
            "message": record.getMessage(),
            "ecs.version": "8.11.0",
            "host": {"hostname": self.host},
            "process": {"pid": record.process},
        }
        if record.exc_info:
            kind, error, _ = record.exc_info
            entry["error"] = {
                "type": kind.__name__,
                "message": str(error),
                "stack_trace": self.formatException(record.exc_info),
            }
        return entry

    def winston(self, record, at):
        entry = {"level": {"WARNING": "warn"}.get(record.levelname, record.levelname.lower())}
        entry["message"] = record.getMessage()
        if record.exc_info:
            entry["stack"] = self.formatException(record.exc_info)
        return entry | {"service": "train", "timestamp": f"{at:%Y-%m-%d %H:%M:%S}", "worker": self.rank}

    def gelf(self, record, at):
        entry = {"version": "1.1", "host": self.host, "short_message": record.getMessage()}
        if record.exc_info:
            entry["full_message"] = record.getMessage() + "\n" + self.formatException(record.exc_info)
        level = {"INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}[record.levelname]
        return entry | {"timestamp": round(record.created, 3), "level": level, "_rank": self.rank, "_facility": "train"}

    def pino(self, record, at):
        entry = {"level": LEVELS[record.levelname], "time": int(1000 * record.created), "pid": record.process}
        entry |= {"hostname": self.host, "rank": self.rank} if self.world > 1 else {"hostname": self.host}
        if record.exc_info:
            kind, error, _ = record.exc_info
            entry["err"] = {
                "type": kind.__name__,
                "message": str(error),
                "stack": self.formatException(record.exc_info),
            }
        return entry | {"msg": record.getMessage()}

    def logstash(self, record, at):
        entry = {
            "@timestamp": f"{at:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z",
            "@version": "1",
            "message": record.getMessage(),
            "logger_name": "com.acme.train",
            "thread_name": f"worker-{self.rank}",
            "level": record.levelname.replace("WARNING", "WARN").replace("CRITICAL", "ERROR"),
            "HOSTNAME": self.host,
        }
        return entry | ({"stack_trace": self.formatException(record.exc_info)} if record.exc_info else {})

    def datadog(self, record, at):
        entry = {
            "timestamp": int(1000 * record.created),
            "status": record.levelname.lower(),
            "message": record.getMessage(),
            "dd.service": "train",
            "dd.env": "prod",
            "dd.trace_id": "0",
        }
        if record.exc_info:
            kind, error, _ = record.exc_info
            stack = self.formatException(record.exc_info)
            entry |= {"error.kind": kind.__name__, "error.message": str(error), "error.stack": stack}
        return entry | {"tags": [f"rank:{self.rank}", f"host:{self.host}"]}

    def slog(self, record, at):
        name = {"WARNING": "WARN", "CRITICAL": "ERROR+4"}.get(record.levelname, record.levelname)
        entry = {"time": at.isoformat(), "level": name, "msg": record.getMessage()}
        if self.world > 1:
            entry["worker"] = {"rank": self.rank, "host": self.host}
        return entry | ({"err": self.formatException(record.exc_info)} if record.exc_info else {})

    def clef(self, record, at):
        entry = {"@t": at.isoformat(), "@mt": record.getMessage()}
        if record.levelname != "INFO":
            entry["@l"] = {"CRITICAL": "Fatal"}.get(record.levelname, record.levelname.title())
        if record.exc_info:
            entry["@x"] = self.formatException(record.exc_info)
        return entry | {"SourceContext": "Acme.Train", "Rank": self.rank, "MachineName": self.host}

    def span(self, record, at):
        """tracing-subscriber's JSON."""
        fields = {"message": record.getMessage()}
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        name = {"WARNING": "WARN", "CRITICAL": "ERROR"}.get(record.levelname, record.levelname)
        entry = {"timestamp": at.isoformat(), "level": name, "fields": fields, "target": "trainer::fit"}
        return entry | ({"span": {"name": "worker", "rank": self.rank}} if self.world > 1 else {})

    def monolog(self, record, at):
        context = {"rank": self.rank} if self.world > 1 else {}
        if record.exc_info:
            kind, error, _ = record.exc_info
            context["exception"] = {
                "class": kind.__name__,
                "message": str(error),
                "trace": self.formatException(record.exc_info),
            }
        number = {"INFO": 200, "WARNING": 300, "ERROR": 400, "CRITICAL": 500}[record.levelname]
        entry = {"message": record.getMessage(), "context": context, "level": number, "level_name": record.levelname}
        return entry | {"channel": "train", "datetime": at.isoformat(), "extra": {}}

    def otlp(self, record, at):
        """A request of OTLP a line."""
        attributes = [{"key": "rank", "value": {"intValue": str(self.rank)}}]
        if record.exc_info:
            stack = {"stringValue": self.formatException(record.exc_info)}
            attributes.append({"key": "exception.stacktrace", "value": stack})
        name = {"WARNING": "WARN", "CRITICAL": "FATAL"}.get(record.levelname, record.levelname)
        body = {"stringValue": record.getMessage()}
        entry = {
            "timeUnixNano": str(int(1e9 * record.created)),
            "severityText": name,
            "body": body,
            "attributes": attributes,
        }
        host = {"attributes": [{"key": "host.name", "value": {"stringValue": self.host}}]}
        return {
            "resourceLogs": [{"resource": host, "scopeLogs": [{"scope": {"name": "train"}, "logRecords": [entry]}]}]
        }


def python_json_logger(rank, world):
    from pythonjsonlogger.json import JsonFormatter

    static = {"rank": rank, "world_size": world} if world > 1 else {}
    fields = "%(asctime)s %(levelname)s %(name)s %(message)s"
    return JsonFormatter(fields, rename_fields={"levelname": "level", "asctime": "time"}, static_fields=static)


def build(form, rank, world):
    handler = logging.StreamHandler(sys.stdout if form in ("zap", "cloud") else sys.stderr)
    library = form == "library"
    handler.setFormatter(python_json_logger(rank, world) if library else Fields(form, rank, world))
    log = logging.getLogger("train")
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False
    return log
