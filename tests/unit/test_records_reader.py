"""What a record says of itself, in the forms in which programs write it."""

from typing import NamedTuple

import pytest

from diagnoser.model import Severity
from diagnoser.records import forms
from diagnoser.records.reader import head_of, read, severity_of

_HEADS = [(line, level) for form in forms.HEADS for line, level in form.examples]
_RAISED = ("Traceback (most recent call last):", '  File "/opt/t.py", line 6, in step', "KeyError: 'labels'")
_TRACE = "\\n".join(_RAISED).replace('"', '\\"')


class Case(NamedTuple):
    """speaker: rank, host, pid. texts: of the message and the error."""

    line: str
    severity: Severity | None
    speaker: tuple[int, str, int]
    texts: tuple[str, ...]


CASES = {
    "GELF": Case(
        '{"version": "1.1", "host": "gpu-001", "short_message": "step failed", "level": 3,'
        f' "full_message": "{_TRACE}"}}',
        Severity.ERROR,
        (-1, "gpu-001", -1),
        ("step failed version=1.1", *_RAISED),
    ),
    "a shipper of a file of one rank": Case(
        '{"message": "step 3", "log": {"file": {"path": "/var/log/train/rank_12.log"}}, "host": {"name": "gpu-001"}}',
        None,
        (12, "gpu-001", -1),
        ("step 3",),
    ),
    "structlog": Case(
        '{"rank": 2, "host": "gpu-001", "step": 7, "event": "step failed", "level": "error",'
        f' "timestamp": "2026-01-02T03:04:05.1Z", "exception": "{_TRACE}"}}',
        Severity.ERROR,
        (2, "gpu-001", -1),
        ("step failed step=7", *_RAISED),
    ),
    "structlog, tracebacks as objects": Case(
        '{"event": "step failed", "level": "error", "global_rank": 2, "exception": [{"exc_type": "RuntimeError",'
        ' "exc_value": "no shard", "is_cause": false,'
        ' "frames": [{"filename": "/opt/t.py", "lineno": 9, "name": "main"}]},'
        ' {"exc_type": "KeyError", "exc_value": "\'labels\'", "is_cause": true,'
        ' "frames": [{"filename": "/opt/t.py", "lineno": 6, "name": "step"}]}]}',
        Severity.ERROR,
        (2, "", -1),
        (
            "step failed",
            *_RAISED,
            "",
            "The above exception was the direct cause of the following exception:",
            "",
            "Traceback (most recent call last):",
            '  File "/opt/t.py", line 9, in main',
            "RuntimeError: no shard",
        ),
    ),
    "python-json-logger": Case(
        '{"asctime": "2026-01-02 03:04:05,123", "levelname": "CRITICAL", "name": "train", "message": "step failed",'
        f' "process": 812, "node_name": "gpu-001", "RANK": "3", "exc_info": "{_TRACE}"}}',
        Severity.CRITICAL,
        (3, "gpu-001", 812),
        ("step failed", *_RAISED),
    ),
    "loguru": Case(
        f'{{"text": "2026-01-02 03:04:05.123 | ERROR | t:x:9 - step failed\\n{_TRACE}\\n", "record": {{"elapsed":'
        ' {"repr": "0:00:01", "seconds": 1.0}, "exception": {"type": "KeyError", "value": "\'labels\'"},'
        ' "extra": {"rank": 2, "node": "gpu-001"}, "level": {"icon": "x", "name": "ERROR", "no": 40}, "line": 9,'
        ' "message": "step failed", "process": {"id": 77}, "time": {"timestamp": 1767323045.1}}}',
        Severity.ERROR,
        (2, "gpu-001", 77),
        ("step failed", *_RAISED),
    ),
    "zap": Case(
        '{"level":"error","ts":1767323045.123,"caller":"train/step.go:41","msg":"step failed","rank":1,'
        '"error":"no shard","stacktrace":"main.step\\n\\t/src/step.go:41"}',
        Severity.ERROR,
        (1, "", -1),
        ("step failed", "main.step", "\t/src/step.go:41", "no shard"),
    ),
    "pino": Case(
        '{"level":50,"time":1767323045123,"pid":657,"hostname":"gpu-001","msg":"step failed","err":{"type":"Error",'
        '"message":"no shard","stack":"Error: no shard\\n    at step (/src/t.js:4:9)"}}',
        Severity.ERROR,
        (-1, "gpu-001", 657),
        ("step failed", "Error: no shard", "    at step (/src/t.js:4:9)"),
    ),
    "slog": Case(
        '{"time":"2026-01-02T03:04:05Z","level":"WARN+1","msg":"slow","labels":{"rank":"1"},"seconds":2.5}',
        Severity.WARNING,
        (1, "", -1),
        ("slow seconds=2.5",),
    ),
    "OpenTelemetry": Case(
        '{"resourceLogs":[{"resource":{"attributes":[{"key":"host.name","value":{"stringValue":"gpu-001"}}]},"scopeLogs":'
        '[{"logRecords":[{"timeUnixNano":"1767323045123000000","severityNumber":17,"severityText":"ERROR","body":'
        '{"stringValue":"step failed"},"attributes":[{"key":"rank","value":{"intValue":"2"}},'
        '{"key":"exception.type","value":{"stringValue":"KeyError"}},'
        '{"key":"exception.message","value":{"stringValue":"\'labels\'"}}]}]}]}]}',
        Severity.ERROR,
        (2, "gpu-001", -1),
        ("step failed", "KeyError: 'labels'"),
    ),
    "Elastic Common Schema": Case(
        '{"@timestamp":"2026-01-02T03:04:05Z","log.level":"error","message":"step failed","process":{"pid":7},'
        f'"host":{{"name":"gpu-001"}},"error":{{"type":"KeyError","message":"\'labels\'","stack_trace":"{_TRACE}"}}}}',
        Severity.ERROR,
        (-1, "gpu-001", 7),
        ("step failed", *_RAISED),
    ),
    "log4j": Case(
        '{"instant":{"epochSecond":1767323045,"nanoOfSecond":1},"thread":"main","level":"FATAL","loggerName":"a.B",'
        '"message":"step failed","thrown":{"name":"java.io.IOException","message":"no shard",'
        '"extendedStackTrace":"java.io.IOException: no shard\\n\\tat a.B.step(B.java:4)"}}',
        Severity.CRITICAL,
        (-1, "", -1),
        ("step failed", "java.io.IOException: no shard", "\tat a.B.step(B.java:4)"),
    ),
    "journald": Case(
        '{"__REALTIME_TIMESTAMP":"1767323045123000","_HOSTNAME":"gpu-001","_PID":"812","PRIORITY":"3",'
        '"MESSAGE":"step failed"}',
        Severity.ERROR,
        (-1, "gpu-001", 812),
        ("step failed",),
    ),
    "what a service prints is information to systemd": Case(
        '{"_HOSTNAME":"gpu-001","_PID":"812","PRIORITY":"6","MESSAGE":"KeyError: 7"}',
        None,
        (-1, "gpu-001", 812),
        ("KeyError: 7",),
    ),
    "a logger below systemd": Case(
        '{"_HOSTNAME":"gpu-001","_PID":"812","PRIORITY":"6","MESSAGE":"2026-01-02 03:04:05,1 - t - ERROR - boom"}',
        Severity.ERROR,
        (-1, "gpu-001", 812),
        ("2026-01-02 03:04:05,1 - t - ERROR - boom",),
    ),
    "a shipper around a logger": Case(
        '{"log":"{\\"level\\":\\"error\\",\\"msg\\":\\"step failed\\",\\"rank\\":3}\\n","time":"2026-01-02T03:04:05Z",'
        '"kubernetes":{"host":"gpu-001","pod_name":"t-0"}}',
        Severity.ERROR,
        (3, "gpu-001", -1),
        ("step failed",),
    ),
    "logfmt": Case(
        'time="2026-01-02T03:04:05Z" level=error msg="step \\"7\\" failed" rank=2 host=gpu-001 err="no shard"',
        Severity.ERROR,
        (2, "gpu-001", -1),
        ('step "7" failed', "no shard"),
    ),
    "cut in the middle": Case(
        '{"level": "error", "rank": 2, "event": "step failed", "exception": "KeyError: ...<912 bytes cut>... \'lab\\',
        Severity.ERROR,
        (2, "", -1),
        ("step failed", "KeyError: ...<912 bytes cut>... 'lab"),
    ),
    "a logger that names its source": Case(
        '{"message": "step 3", "level": "info", "filename": "rank_12.py", "lineno": 4}',
        Severity.INFO,
        (-1, "", -1),
        ("step 3",),
    ),
    "an export that wraps the record": Case(
        '{"_index":"logs","_source":{"host":{"name":"gpu-001"},"log":{"file":{"path":"/l/rank_2.log"}},"message":"boom"}}',
        None,
        (2, "gpu-001", -1),
        ("boom",),
    ),
    "an object that says where the process runs": Case(
        '{"lvl":"info","msg":"step 3","dist":{"rank":2,"world":4,"host":"gpu-001"},"peer":{"rank":7,"host":"gpu-9"}}',
        Severity.INFO,
        (2, "gpu-001", -1),
        ("step 3 world=4 peer.rank=7 peer.host=gpu-9",),
    ),
    "tags in a list": Case(
        '{"message": "step 3", "status": "warn", "tags": ["rank:2", "host:gpu-001", "env:prod"]}',
        None,
        (2, "gpu-001", -1),
        ("step 3 status=warn env=prod",),
    ),
    "labelled tab-separated values": Case(
        "time:2026-01-02T03:04:05Z\tlevel:error\thost:gpu-001\trank:2\tmsg:no shard: 4",
        Severity.ERROR,
        (2, "gpu-001", -1),
        ("no shard: 4",),
    ),
    "a loss that JSON does not know": Case(
        '{"event": "step", "level": "info", "step": 4, "loss": NaN, "rank": 0}',
        Severity.INFO,
        (0, "", -1),
        ("step step=4 loss=nan",),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_record_is_opened(case: Case) -> None:
    """The message, the lines of the error, who speaks, and how bad they call it."""
    (record,) = read(case.line)
    assert record.severity is case.severity
    assert (record.rank, record.host, record.pid) == case.speaker
    assert record.texts == case.texts


@pytest.mark.parametrize("name", ["structlog", "loguru", "zap", "pino", "OpenTelemetry", "log4j", "journald", "logfmt"])
def test_a_record_has_its_time(name: str) -> None:
    """Whatever the field is called, and in whatever unit it counts."""
    (record,) = read(CASES[name].line)
    assert record.time == pytest.approx(1767323045, abs=1)


@pytest.mark.parametrize(
    "line",
    [
        '{"loss": 2.5, "grad_norm": 1.0, "step": 7}',
        '{"text": "a sample of the data", "label": 1}',
        '{"turn": {"message": "a sample of the data", "role": "user"}}',
        '                        {"a": 1}["labels"]',
        "step=10 loss=2.5",
        "{'loss': 2.5, 'epoch': 1.0}",
        "lr=3e-4 wd=0.1",
    ],
)
def test_data_are_no_record(line: str) -> None:
    """Metrics, samples and code have no message: the line stays as it is."""
    assert not read(line)


@pytest.mark.parametrize(("line", "level"), _HEADS)
def test_a_head_tells_the_severity(line: str, level: str) -> None:
    """Every example of a head gives the severity that its level stands for."""
    assert severity_of(line) is forms.LEVELS[level.lower()]


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("2026-01-02 03:04:05 gpu-7 [rank 3] ERROR boom", 3),
        ("2026-01-02 03:04:05 [error    ] boom                rank=3 step=7", 3),
        ("2026-01-02 03:04:05,123 ERROR train: all_reduce failed for rank=3", -1),
    ],
)
def test_a_head_tells_who_speaks(line: str, rank: int) -> None:
    """A rank in the head, or among the fields behind a message, speaks; one in the message is only spoken of."""
    record = head_of(line)
    assert record is not None
    assert record.rank == rank


@pytest.mark.parametrize(
    "line",
    [
        "step 10 loss 2.31",
        "Error in f(x) : no such object",
        "RuntimeError: ERROR: boom",
        "Traceback (most recent call last):",
        "INFO",
        "2026-01-02 03:04:05 all workers joined, no ERROR was seen",
        "E: package not found",
    ],
)
def test_words_of_a_message_are_no_head(line: str) -> None:
    """A level that is only mentioned, or the name of an exception, is no severity."""
    assert severity_of(line) is None


@pytest.mark.parametrize(
    "line",
    [
        '{"level":"error","msg":"x","a":' * 4000,
        '{"level":"error","msg":"' + "\\" * 9001,
        '{"a":' * 2000 + "1" + "}" * 2000,
        "a=b " * 4000 + "level=error",
        "[2026-01-02 03:04:05] " + "[a] " * 4000,
        '{"level": "error", "msg": "\\ud800", "rank": 1e400, "time": 1e999, "pid": "٣"}',
    ],
)
def test_hostile_lines_are_read(line: str) -> None:
    """What no logger writes is read as far as it can be, or is no record."""
    assert not read(line) or severity_of(line) is None


@pytest.mark.parametrize("time", ["1e999", '"' + "9" * 400 + '"', "9" * 30, "-1", "0", '"soon"', "true"])
def test_a_time_that_no_clock_shows_is_none(time: str) -> None:
    """A job cannot put its lines behind all others."""
    (record,) = read(f'{{"level": "info", "msg": "step", "time": {time}}}')
    assert record.time == 0.0


@pytest.mark.parametrize(
    "line",
    [
        'ts=2026-01-02T03:04:05Z host=cn17 rank=3 stream=stderr line="KeyError: mask of x"',
        '{"ts": "2026-01-02T03:04:05Z", "host": "cn17", "rank": 3, "payload": "KeyError: mask of x"}',
        '{"_time": "2026-01-02T03:04:05Z", "_msg": "KeyError: mask of x", "host": "cn17", "rank": 3, "stream": "a b"}',
    ],
)
def test_a_record_with_its_time_has_a_message_whatever_it_is_called(line: str) -> None:
    """The text of several words is it."""
    (record,) = read(line)
    assert (record.texts[0].split(" stream=")[0], record.rank, record.host) == ("KeyError: mask of x", 3, "cn17")
