"""Logging libraries of Python other than the standard one: Logbook, Eliot, coloredlogs, OpenTelemetry, daiquiri,
logzero; and messages beside a bar."""

import logging
import os
import sys


class Adapter(logging.Handler):
    """Gives the standard library's records to another library."""

    def __init__(self, take):
        super().__init__()
        self.take = take

    def emit(self, record):
        self.take(record)


def logbook(rank, world):
    import logbook

    host = f"@{os.environ.get('NODE_NAME', 'worker-0')}" if world > 1 else ""
    form = f"[{{record.time:%Y-%m-%d %H:%M:%S.%f}}] {{record.level_name}}: {{record.channel}}{host}: {{record.message}}"
    logbook.StreamHandler(sys.stderr, format_string=form).push_application()
    log = logbook.Logger(f"train.{rank}" if world > 1 else "train")
    return Adapter(lambda record: log.log(record.levelname, record.getMessage(), exc_info=record.exc_info))


def eliot(rank, world):
    import eliot

    eliot.to_file(sys.stdout)
    fields = {"rank": rank} if world > 1 else {}

    def take(record):
        if record.exc_info:
            eliot.write_traceback(exc_info=record.exc_info)
        eliot.log_message("train:event", level=record.levelname.lower(), text=record.getMessage(), **fields)

    return Adapter(take)


def coloredlogs(rank, world):
    import coloredlogs

    handler = logging.StreamHandler(sys.stderr)
    place = f" rank={rank}" if world > 1 else ""
    handler.setFormatter(
        coloredlogs.ColoredFormatter(f"%(asctime)s %(name)s[%(process)d]{place} %(levelname)s %(message)s")
    )
    return handler


def otel(rank, world):
    """The console exporter: an object over several lines."""
    from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
    from opentelemetry.sdk._logs.export import ConsoleLogRecordExporter, SimpleLogRecordProcessor
    from opentelemetry.sdk.resources import Resource

    resource = {"service.name": "train", "host.name": os.environ.get("NODE_NAME", "worker-0"), "worker.rank": rank}
    provider = LoggerProvider(resource=Resource(resource))
    provider.add_log_record_processor(SimpleLogRecordProcessor(ConsoleLogRecordExporter()))
    return LoggingHandler(logger_provider=provider)


def bar(rank, world):
    """Messages between the redraws of a bar."""
    from tqdm import tqdm

    shown = tqdm(total=400, desc=f"rank {rank}" if world > 1 else "train", mininterval=0.2, file=sys.stderr)

    def take(record):
        shown.update(1)
        trace = "\n" + logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
        tqdm.write(record.getMessage() + trace, file=sys.stderr)

    return Adapter(take)


def daiquiri(rank, world):
    import daiquiri

    place = f" rank-{rank}" if world > 1 else ""
    formatter = daiquiri.formatter.ColorExtrasFormatter(
        fmt=f"%(asctime)s [%(process)d]{place} %(color)s%(levelname)-8.8s %(name)s: %(message)s%(color_stop)s"
    )
    return daiquiri.output.Stream(sys.stderr, formatter=formatter).handler


def logzero(rank, world):
    import logzero

    handler = logging.StreamHandler(sys.stderr)
    place = f" rank:{rank}" if world > 1 else ""
    handler.setFormatter(
        logzero.LogFormatter(
            fmt=f"%(color)s[%(levelname)1.1s %(asctime)s %(module)s:%(lineno)d{place}]%(end_color)s %(message)s"
        )
    )
    return handler


def alive(rank, world):
    """A bar that is redrawn on its line by carriage returns, and messages with a colour between."""
    state = {"done": 0}

    def take(record):
        state["done"] += 1
        filled = state["done"] % 24
        sys.stderr.write(f"\r\x1b[2K\x1b[32mw{rank}\x1b[0m |{'█' * filled:<24}| {state['done']} it ")
        trace = "\n" + logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
        shade = {"INFO": 36, "WARNING": 33}.get(record.levelname, 31)
        sys.stderr.write(
            f"\r\x1b[2K\x1b[{shade}m{record.levelname.lower()}\x1b[0m w{rank} {record.getMessage()}{trace}\n"
        )
        sys.stderr.flush()

    return Adapter(take)


LIBRARIES = {
    "daiquiri": daiquiri,
    "logzero": logzero,
    "alive": alive,
    "logbook": logbook,
    "eliot": eliot,
    "coloredlogs": coloredlogs,
    "otel": otel,
    "bar": bar,
}


def build(form, rank, world):
    log = logging.getLogger("train")
    log.handlers[:] = [LIBRARIES[form](rank, world)]
    log.setLevel(logging.INFO)
    log.propagate = False
    return log
