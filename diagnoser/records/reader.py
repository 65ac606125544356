"""Reads the record of one line: JSON, logfmt, or a head in front of a message."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from diagnoser.model import Severity, expressions
from diagnoser.records import forms
from diagnoser.records.batches import records_in
from diagnoser.records.errors import error_lines
from diagnoser.records.fields import (
    ERROR_TEXTS,
    FILES,
    HOST,
    IGNORED,
    INSTANCE,
    LEVEL,
    MESSAGE,
    NUMBER,
    NUMBERED_LEVELS,
    PID,
    RANK,
    SHIPPERS,
    SHIPPERS_LEVEL,
    SYSLOG_LEVELS,
    TIME,
    WEAK_MESSAGE,
)
from diagnoser.records.json_values import LONGEST, read_fields, unescaped
from diagnoser.records.record import Record, Scalar
from diagnoser.structure import times

_S = Severity
_LEVELS = (_S.INFO, _S.WARNING, _S.ERROR, _S.CRITICAL)
_OUTPUTS = ("stdout", "stderr")
_SAYS_NOTHING = frozenset({_S.INFO})
_HEAD = 320
"""Characters in which the head of a record must end."""
_HEADS = tuple(expressions.compiled(form.pattern) for form in forms.HEADS)
_ANY_HEAD = expressions.search_set(form.pattern for form in forms.HEADS)
_PAIR = re.compile(r'([A-Za-z_@][\w.@/-]{0,60})=("(?:[^"\\]|\\.){0,8000}"?|[^\s"]{0,400})')
_MOST_PAIRS = 128
_LOGFMT = re.compile(r'[A-Za-z_@][\w.@/-]{0,60}=(?:"|[^\s="])')
_LABELED = re.compile(r"[A-Za-z_][\w.-]{0,60}:[^\t]{0,400}\t[A-Za-z_][\w.-]{0,60}:")
_RANK_IN_HEAD = re.compile(r"(?i)\b(?:global[ _]?)?rank[ _:=#-]{0,3}(\d{1,6})\b")
_PAIRS_BEHIND = re.compile(r" {2,200}(?=[A-Za-z_]\w{0,40}=)\S.*$")
"""What structlog prints behind a message on a terminal."""
_PAIRS_AT_END = expressions.compiled(r'(?:\s+[A-Za-z_][\w./-]*=(?:"[^"]*"|[^\s"]+))+\s*$')
_HOST = re.compile(r"(?:[A-Za-z][\w.-]{0,80}|\d{1,3}(?:\.\d{1,3}){3})")
_MOST_RANK = 1_000_000
_RANK_OF_FILE = re.compile(
    r"(?i)(?:^|[/._-])rank[._-]?(\d{1,6})(?=[/._-](?!\w{0,20}\.?(?:py|cc|cpp|cu|c|rs|go|java|scala|kt|jl|rb|lua|js|ts)$)"
    r"[^/]{0,40}$)|/(\d{1,6})/std(?:out|err)(?:\.log)?$"
)
"""``rank3.log`` and ``rank_3.out``, and the folders of torchrun's ``--log-dir``; a logger names its source there."""
_INSTANCE = re.compile(r"/?[A-Za-z0-9][\w.:@/-]{0,200}")
_SERVICE = ".service"
_NO_HOST = re.compile(r"(?i)localhost(?:\.\w{1,40})?|127\.[\d.]{1,12}|0\.0\.0\.0|[0-9a-f]{12}")
"""What every machine calls itself, and the number of a container."""
_KNOWN = frozenset({*LEVEL, *TIME, *RANK, *HOST, *PID, *INSTANCE, *IGNORED, *SHIPPERS, *ERROR_TEXTS})
"""Fields that are no message."""
_SHOWN, _SHOWN_ALL = 200, 1000
"""Characters of a field, and of all fields, that stand behind the message."""
_EARLIEST, _LATEST = 1e8, 4.1e9
"""Times that a clock may show: one beyond them would put all later lines behind it."""
_NESTED = 3
"""Records within the message of a record that are opened."""


def read(message: str) -> tuple[Record, ...]:
    """The records that a line's message is: one, or those of a batch. None where it states no fields by name."""
    message = message[:LONGEST]
    fields = _fields(message)
    return tuple(filter(None, (_opened(record, _NESTED) for record in _all_in(fields))))


def _all_in(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of a batch, else the one of the fields; none without any."""
    records = records_in(fields)
    if records:
        return records
    return [fields] if fields else []


def without_fields(message: str) -> str:
    """A message without the ``key=value`` pairs at its end."""
    pairs = _PAIRS_AT_END.search(message) if "=" in message else None
    return message[: pairs.start()] if pairs else message


def fields_of(message: str) -> dict[str, Scalar]:
    """The fields of a message that is data and no record, by name."""
    fields = read_fields(message) if message[:1] == "{" else _pairs_of(message)
    return {name: value for name, value in fields.items() if isinstance(value, Scalar)}


@lru_cache(maxsize=4096)
def head_of(message: str) -> Record | None:
    """The record whose head stands in front of a message, without its texts; None where there is no head."""
    head = message[:_HEAD]
    for number in expressions.matching(_ANY_HEAD, head):
        match = _HEADS[number].search(head)
        rank = _RANK_IN_HEAD.search(head, 0, match.end())
        tail = _PAIRS_BEHIND.search(message) if forms.HEADS[number].has_pairs else None
        fields = _pairs_of(tail[0]) if tail else {}
        severity = _named_level(next(filter(None, match.groups())))
        own = int(rank[1]) if rank else _number(fields, RANK)
        return Record((), severity, 0.0, own, _host(fields), _number(fields, PID))
    return None


def severity_of(message: str) -> Severity | None:
    """The level that the head of a line's message states; None where it has no head."""
    record = head_of(message)
    return record.severity if record else None


def _opened(fields: Mapping[str, Any], depth: int) -> Record | None:
    """The record of these fields; None where they are data."""
    record = _inner(_record(fields), depth)
    return record if record.texts or record.voice else None


def _fields(text: str) -> dict[str, Any]:
    if text[:1] == "{":
        return read_fields(text)
    if _LOGFMT.match(text):
        return _pairs(text)
    if _LABELED.match(text):
        return _labeled(text)
    return {}


def _labeled(text: str) -> dict[str, Any]:
    """The fields of a line of labelled tab-separated values, which names its message."""
    pairs = (part.partition(":") for part in text.split("\t")[:_MOST_PAIRS])
    fields = {name.lower(): value for name, _, value in pairs}
    return fields if {"msg", "message"} & fields.keys() else {}


def _pairs_of(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in _PAIR.findall(text)[:_MOST_PAIRS]:
        fields.setdefault(key.lower(), unescaped(value.strip('"')) if value[:1] == '"' else value)
    return fields


def _pairs(text: str) -> dict[str, Any]:
    """The fields of a line of logfmt, which has a level or names its message, or its time and what may be one."""
    fields = _pairs_of(text)
    if {"level", "lvl", "severity", "msg", "event"} & fields.keys():
        return fields
    return {} if fields.keys().isdisjoint(TIME) or fields.keys().isdisjoint(MESSAGE) else fields


def _record(fields: Mapping[str, Any]) -> Record:
    errors, used = error_lines(fields)
    message, name = _message(fields)
    severity = _severity(fields)
    rank, host, pid = _rank(fields), _host(fields), _number(fields, PID)
    rest = _rest(fields, {name, *used, *LEVEL, *TIME, *RANK, *HOST, *PID})
    texts = () if name in WEAK_MESSAGE and not _is_logged(fields) else _texts(fields, message, errors, rest)
    return Record(texts, severity, _time(fields), rank, host, pid, _instance(fields), rest, _number(fields, NUMBER))


def _texts(fields: Mapping[str, Any], message: str, errors: list[str], rest: Mapping[str, Scalar]) -> tuple[str, ...]:
    """The message with the other fields behind it, then the lines of the error."""
    if not message and not errors:
        return ("",) if "" in map(fields.get, MESSAGE) and _is_logged(fields) else ()
    first, *more = message.splitlines() or [""]
    errors = _printed_error(fields, message) or errors
    lines = [" ".join(filter(None, (first.rstrip(), _shown(rest)))), *more]
    lines += [line for line in errors if line.strip() != first.strip()]
    return tuple(line.rstrip("\r\n") for line in lines)


def _is_logged(fields: Mapping[str, Any]) -> bool:
    """Whether a logger wrote the fields, or a collector that tells of which output they are: a row of a data set or a
    table of metrics has no level and no time."""
    if fields.get("source") in _OUTPUTS:
        return True
    if fields.get("stream") in _OUTPUTS:
        return True
    return not fields.keys().isdisjoint((*LEVEL, *TIME))


def _printed_error(fields: Mapping[str, Any], message: str) -> list[str]:
    """What loguru prints below the message."""
    text = fields.get("text")
    if not isinstance(text, str):
        return []
    if text == message:
        return []
    if fields.keys().isdisjoint(("record.message", "elapsed.repr")):
        return []
    return text.rstrip().splitlines()[1 + message.count("\n") :]


def _message(fields: Mapping[str, Any]) -> tuple[str, str]:
    """(message, name of its field)."""
    for name in MESSAGE:
        value = fields.get(name)
        message = _from_numbers(value) if isinstance(value, list) else value
        if isinstance(message, str) and message:
            return message, name
    if fields.keys().isdisjoint(TIME):
        return "", ""
    name = max(filter(partial(_may_be_message, fields), fields), key=lambda name: len(fields[name]), default="")
    return str(fields.get(name, "")), name


def _may_be_message(fields: Mapping[str, Any], name: str) -> bool:
    """Whether a field that nobody knows by its name holds text: more than one word."""
    value = fields[name]
    if not isinstance(value, str) or " " not in value.strip():
        return False
    return not _KNOWN.issuperset([name]) and not name.startswith("_")


def _from_numbers(numbers: list[Any]) -> str:
    """The text whose bytes journald writes as numbers, where it is no plain text; "" of any other list."""
    try:
        return bytes(numbers).decode("utf-8", "replace")
    except (TypeError, ValueError):
        return ""


def _rest(fields: Mapping[str, Any], used: Iterable[str]) -> dict[str, Scalar]:
    taken = {*used, *IGNORED, *SHIPPERS, *ERROR_TEXTS}
    rest: dict[str, Scalar] = {}
    for name, value in fields.items():
        if name in taken:
            continue
        if name.startswith("_"):
            continue
        if isinstance(value, Scalar):
            rest[name] = value
    if "elapsed.repr" in fields:
        rest.pop("text", None)
    return rest


def _shown(rest: Mapping[str, Scalar]) -> str:
    shown, size = list[str](), 0
    for name, value in rest.items():
        text = str(value)[:_SHOWN].replace("\n", " ")
        pair = f'{name}="{text}"' if " " in text else f"{name}={text}"
        size += len(pair) + 1
        if size > _SHOWN_ALL:
            break
        shown.append(pair)
    return " ".join(shown)


def _inner(record: Record, depth: int) -> Record:
    """The record that the message of a shipper's record is, if it is one, also alone in a batch; what it does not state
    is the shipper's."""
    if not record.texts:
        return record
    if depth <= 0:
        return record
    inner = _record_in(record.texts[0], depth)
    if inner is None or not inner.texts:
        return _with_head(record)
    return Record(
        inner.texts,
        inner.severity or record.severity,
        inner.time or record.time,
        _first_known(inner.rank, record.rank),
        inner.host or record.host,
        _first_known(inner.pid, record.pid),
        inner.instance or record.instance,
        inner.fields,
        _first_known(inner.number, record.number),
    )


def _record_in(text: str, depth: int) -> Record | None:
    """The only record in a text of JSON; None for any other text."""
    if not text.startswith("{"):
        return None
    records = _all_in(read_fields(text))
    if len(records) != 1:
        return None
    return _opened(records[0], depth - 1)


def _first_known(number: int, other: int) -> int:
    """The first of two numbers that is stated, which is none below 0."""
    return number if number >= 0 else other


def _with_head(record: Record) -> Record:
    """The record with the severity that the message's head states, where no field does."""
    if record.severity is not None:
        return record
    severity = severity_of(record.texts[0])
    return replace(record, severity=severity)


def _severity(fields: Mapping[str, Any]) -> Severity | None:
    for name in LEVEL:
        value = fields.get(name)
        if value is None:
            continue
        if isinstance(value, bool | list):
            continue
        severity = _numbered_level(name, value) if _is_number(value) else _named_level(str(value))
        if severity in _SAYS_NOTHING and name in SHIPPERS_LEVEL:
            continue
        if severity is not None:
            return severity
    return None


def _is_number(value: Any) -> bool:
    if isinstance(value, int | float):
        return math.isfinite(value)
    return isinstance(value, str) and value.isdecimal() and len(value) < 9


def _numbered_level(name: str, value: Any) -> Severity | None:
    number = int(value)
    if number < 8 and name != "severitynumber":
        below = zip(SYSLOG_LEVELS[::-1], (_S.CRITICAL, _S.ERROR, _S.WARNING), strict=False)
        return next((level for most, level in below if number <= most), _S.DEBUG if number == 7 else _S.INFO)
    steps = NUMBERED_LEVELS.get(name)
    if steps is None:
        return None
    reached = [level for least, level in zip(steps, _LEVELS, strict=True) if number >= least]
    return reached[-1] if reached else _S.DEBUG


def _named_level(name: str) -> Severity | None:
    """The level of a name; slog writes what lies between two as ``ERROR+2``, OpenTelemetry as ``ERROR2``."""
    word = re.match(r"[A-Za-z]{1,16}", name.strip().rpartition(".")[2])
    return forms.LEVELS.get(word[0].lower()) if word else None


def _rank(fields: Mapping[str, Any]) -> int:
    """The rank of a record: as it says itself, else by the file that a shipper read it from; -1 for none."""
    rank = _number(fields, RANK)
    if rank >= 0:
        return rank
    for name in FILES:
        value = fields.get(name)
        match = _RANK_OF_FILE.search(value) if isinstance(value, str) else None
        if match:
            return int(match[1] or match[2])
    return -1


def _number(fields: Mapping[str, Any], names: Iterable[str]) -> int:
    for name in names:
        value = fields.get(name, "")
        if isinstance(value, bool):
            continue
        if _is_number(value) and 0 <= int(value) < (1 << 40 if names is PID else _MOST_RANK):
            return int(value)
    return -1


def _instance(fields: Mapping[str, Any]) -> str:
    """A pod, service or container. Of services only those that have several instances are named."""
    for name in INSTANCE:
        value = fields.get(name)
        if not isinstance(value, str):
            continue
        if not _INSTANCE.fullmatch(value):
            continue
        if value.endswith(_SERVICE) and "@" not in value:
            continue
        return value.removesuffix(_SERVICE).removeprefix("/")
    return ""


def _host(fields: Mapping[str, Any]) -> str:
    for name in HOST:
        value = fields.get(name)
        if not isinstance(value, str):
            continue
        if _HOST.fullmatch(value) and not _NO_HOST.fullmatch(value):
            return value
    return ""


def _time(fields: Mapping[str, Any]) -> float:
    for name in TIME:
        value = fields.get(name)
        if isinstance(value, str) and not value.replace(".", "", 1).isdecimal():
            time = times.read_time(value, 1970)
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            time = _seconds(float(value))
        else:
            continue
        if _EARLIEST < time < _LATEST:
            return time
    return 0.0


def _seconds(number: float) -> float:
    """A time since the epoch, in whatever unit from seconds to nanoseconds."""
    for unit in (1e9, 1e6, 1e3):
        if number / unit > _EARLIEST:
            return number / unit
    return number
