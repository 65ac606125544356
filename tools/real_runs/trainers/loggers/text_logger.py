"""Lines in the forms of loggers of other languages and of sites: the standard library's records, written anew."""

import json
import logging
import os
import sys
from datetime import UTC, datetime

_LETTERS = {"WARNING": "W", "ERROR": "E", "CRITICAL": "F", "INFO": "I"}
_THREE = {"INFO": "INF", "WARNING": "WRN", "ERROR": "ERR", "CRITICAL": "FTL"}
_SHORT = {"WARNING": "WARN", "CRITICAL": "FATAL"}


def _iso(at, digits=3):
    return f"{at:%Y-%m-%dT%H:%M:%S.%f}"[: digits - 6 or None]


def _comma(at):
    return f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03d}"


def log4j(at, record, level, rank, world):
    return f"{_comma(at)} [main] {_SHORT.get(level, level):<5} com.acme.train.Trainer - "


def zerolog(at, record, level, rank, world):
    shard = f" rank={rank}" if world > 1 else ""
    return f"{at:%-I:%M%p} {_THREE[level]} {record.filename}:{record.lineno} >{shard} "


def tracing(at, record, level, rank, world):
    span = f"worker{{rank={rank}}}: " if world > 1 else ""
    return f"{_iso(at, 6)}Z {_SHORT.get(level, level).replace('FATAL', 'ERROR'):>5} {span}train::engine: "


def env_logger(at, record, level, rank, world):
    return f"[{at:%Y-%m-%dT%H:%M:%SZ} {_SHORT.get(level, level).replace('FATAL', 'ERROR'):<5} trainer::worker] "


def serilog(at, record, level, rank, world):
    return f"[{at:%H:%M:%S} {_THREE[level]}] " + (f"<w{rank}> " if world > 1 else "")


def zap(at, record, level, rank, world):
    return f"{_iso(at)}Z\t{_SHORT.get(level, level)}\tworker-{rank}\ttrain/{record.filename}:{record.lineno}\t"


def util(at, record, level, rank, world):
    """java.util.logging: two lines a record."""
    name = {"CRITICAL": "SEVERE", "ERROR": "SEVERE"}.get(level, level)
    return f"{at:%b %d, %Y %-I:%M:%S %p} com.acme.train.Trainer {record.funcName}\n{name}: "


def celery(at, record, level, rank, world):
    return f"[{_comma(at)}: {level}/ForkPoolWorker-{rank + 1}] tasks.train[7c1f9d02]: "


def klog(at, record, level, rank, world):
    return f"{_LETTERS[level]}{at:%m%d %H:%M:%S.%f} {record.process:>7} {record.filename}:{record.lineno}] "


def ltsv(at, record, level, rank, world):
    return f"time:{_iso(at)}Z\tlevel:{level.lower()}\thost:{os.environ.get('NODE_NAME', 'worker-0')}\trank:{rank}\tmsg:"


def hclog(at, record, level, rank, world):
    return f"{_iso(at)}Z [{_SHORT.get(level, level)}]  train.worker{rank}: "


def csv(at, record, level, rank, world):
    return f"{at.timestamp():.3f},{rank},{level.lower()},{record.name},"


def logback(at, record, level, rank, world):
    return (
        f"{at:%H:%M:%S.%f}"[:-3]
        + f" [rank-{rank}-main] {_SHORT.get(level, level).replace('FATAL', 'ERROR'):<5} c.a.train.Trainer - "
    )


def log4cxx(at, record, level, rank, world):
    place = f"({record.filename}:{record.lineno})"
    return f"[{_comma(at)}] [{record.process}] {_SHORT.get(level, level)} train.worker{rank} {place} - "


def spdlog(at, record, level, rank, world):
    name = {"INFO": "info", "WARNING": "warning"}.get(level, level.lower())
    return f"[{at:%Y-%m-%d %H:%M:%S.%f}"[:-3] + f"] [trainer-{rank}] [{name}] "


def boost(at, record, level, rank, world):
    return f"[{at:%Y-%m-%d %H:%M:%S.%f}] [0x00007f3a{record.process:08x}] [{level.lower():<7}] "


def logrus(at, record, level, rank, world):
    name = {"CRITICAL": "fatal"}.get(level, level.lower())
    shard = f"rank={rank} host={os.environ.get('NODE_NAME', 'worker-0')} " if world > 1 else ""
    return f'time="{at:%Y-%m-%dT%H:%M:%SZ}" level={name} {shard}msg='


def nlog(at, record, level, rank, world):
    name = {"WARNING": "WARN", "CRITICAL": "FATAL"}.get(level, level)
    return f"{at:%Y-%m-%d %H:%M:%S.%f}"[:-2] + f"|{name}|{'rank ' + str(rank) + '|' if world > 1 else ''}Acme.Train|"


def cef(at, record, level, rank, world):
    severity = {"INFO": 3, "WARNING": 6, "ERROR": 8, "CRITICAL": 10}[level]
    host = os.environ.get("NODE_NAME", "worker-0")
    head = f"CEF:0|Acme|Trainer|3.2|{record.lineno}|{record.funcName}|{severity}"
    return f"{head}|dvchost={host} cn1Label=rank cn1={rank} msg="


def dated(at, record, level, rank, world):
    """As a shell script's log function has it."""
    return f"{at:%a %b %e %H:%M:%S UTC %Y} {level[:4].lower()} r{rank}: "


class Form(logging.Formatter):
    def __init__(self, write, rank, world):
        super().__init__()
        self.write, self.rank, self.world = write, rank, world

    def format(self, record):
        head = self.write(datetime.fromtimestamp(record.created, UTC), record, record.levelname, self.rank, self.world)
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        text = (
            json.dumps(record.getMessage() + trace, ensure_ascii=False)
            if self.write is logrus
            else record.getMessage() + trace
        )
        return head + text


_SECOND = (log4j, zerolog, tracing, env_logger, serilog, zap, util, celery, klog, ltsv, hclog, csv)
_THIRD = (logback, log4cxx, spdlog, boost, logrus, nlog, cef, dated)
FORMS = {form.__name__: form for form in (*_SECOND, *_THIRD)}


def build(form, rank, world):
    handler = logging.StreamHandler(
        sys.stderr if form in ("klog", "tracing", "env_logger", "util", "boost", "logrus") else sys.stdout
    )
    handler.setFormatter(Form(FORMS[form], rank, world))
    log = logging.getLogger("train")
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False
    return log
