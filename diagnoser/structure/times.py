"""Times that lines carry, as seconds since the epoch (read as UTC: only differences within an attempt matter)."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain

from diagnoser.model import Stream

_ISO = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?: ([AP]M)\b)?")
_GLOG = re.compile(r"(?:^|\[)[IWEF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_SYSLOG = re.compile(
    r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(\d{1,2}) "
    r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?: [A-Z]{3,4})?(?: (\d{4})\b)?"
)
_EPOCH = re.compile(r'"?(?:time_ms|timestamp|ts|time)"?[:=] ?"?(1[5-9]\d{8})(?:\.?(\d{1,9}))?\b')
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
"""Of all forms but the seconds since the epoch: most lines have none, and one search says so."""
_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {m: i for i, m in enumerate(_NAMES, 1)}
_DAY, _HALF_YEAR, _CLOCKS_SET = 86_400.0, 182 * 86_400.0, 1e9
"""Seconds; the last one since the epoch: an arrival before 2001 is that of a clock that was never set."""
_HEAD = 160
"""Characters of a line that are searched for a time stamp."""


def read_time(text: str, year: int) -> float:
    """The first time in the head of a line; 0.0 when there is none. year: for formats that print none."""
    head = text[:_HEAD]
    if head.count(":") > 1 and _CLOCK.search(head):
        seconds = _read_clock(head, year)
        if seconds is not None:
            return seconds
    match = _EPOCH.search(head) if "time" in head or "ts" in head else None
    if match is None:
        return 0.0
    return float(".".join(match.groups("0")))


def _read_clock(head: str, year: int) -> float | None:
    """The first time of a form with hours, minutes and seconds; None without any, 0.0 for what is no time."""
    if match := _ISO.search(head):
        seconds = _seconds(match.groups()[:6], match[7])
        return seconds + _half_day(match[4], match[8]) if seconds else 0.0
    if match := _GLOG.search(head):
        month, day, h, m, s, part = match.groups()
        return _seconds((year, month, day, h, m, s), part)
    if match := _SYSLOG.search(head):
        name, day, h, m, s, part, y = match.groups()
        return _seconds((y or year, _MONTHS[name], day, h, m, s), part)
    return None


def _half_day(hour: str, mark: str | None) -> float:
    """Seconds between an hour as it is printed and the one that ``AM`` or ``PM`` makes of it."""
    if mark == "PM" and hour < "12":
        return 43_200.0
    if (mark, hour) == ("AM", "12"):
        return -43_200.0
    return 0.0


def _seconds(fields: tuple[int | str, ...], part: str | None) -> float:
    whole = _whole_seconds(fields)
    if whole is None:
        return 0.0
    return max(0.0, whole + (float(f"0.{part}") if part else 0.0))


@lru_cache(maxsize=4096)
def _whole_seconds(fields: tuple[int | str, ...]) -> float | None:
    """Convert fields from year to second; None for what is no time. Many ranks print within one second."""
    try:
        year, month, day, hour, minute, second = map(int, fields)
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:
        return None


def time_of(text: str, year: int, latest: float, received: float) -> float:
    """The time of a line; 0.0 where it prints none, or one that is a day later than its arrival: a certificate is valid
    until then. A stamp without a year is of the year before or after where that is nearer.

    latest: of the lines before it.
    received: its arrival, 0.0 where that is not known.
    """
    time, expected = read_time(text, year), latest or received
    if time and expected and abs(expected - time) > _HALF_YEAR:
        other = read_time(text, year + (1 if expected > time else -1))
        if abs(expected - other) < _HALF_YEAR:
            time = other
    return time if received < _CLOCKS_SET or time <= received + _DAY else 0.0


def year_of(texts: Iterable[str], received: float) -> int:
    """The year for formats that print none: of the first text that prints one, else of the arrival."""
    for text in texts:
        if match := _ISO.search(text[:_HEAD]):
            return int(match.group(1))
    return datetime.fromtimestamp(max(0.0, min(received, 4e9)), tz=UTC).year


def moments(known: Iterable[float], lines: Iterable[bytes], received: Iterable[float], year: int) -> list[float]:
    """Give the lines of one stream the times that ``LogClock`` gives them, all at once. Lines before the first that
    has a time get that one: a banner is as old as what follows it, not as new as its arrival.

    known: the records' own times, 0.0 where they have none.
    received: arrivals, for streams that print no time.
    year: for formats that print none.
    """
    moments, latest, arrivals = list[float](), 0.0, list(received)
    for time, line, arrival in zip(known, lines, arrivals, strict=True):
        latest = max(latest, time or time_of(line[: 2 * _HEAD].decode("utf-8", "replace"), year, latest, arrival))
        moments.append(latest)
    first = next(filter(None, chain(moments, arrivals)), 0.0)
    return [time or first for time in moments]


class LogClock:
    """Gives each line of an attempt a time, in order of line numbers within a stream; times never run backwards there.

    year: for formats that print none.
    """

    def __init__(self, year: int) -> None:
        self._year = year
        self._printed: dict[Stream, float] = {}
        self._arrived: dict[Stream, float] = {}

    def time(self, stream: Stream, known: float, body: str, received: float) -> tuple[float, bool]:
        """The record's own time, else the line's, else that of the line before in its stream, else of arrival; and
        whether it is that of arrival."""
        latest = self._printed.get(stream, 0.0)
        printed = max(known or time_of(body, self._year, latest, received), latest)
        if printed:
            self._printed[stream] = printed
            return printed, False
        arrived = self._arrived[stream] = max(received, self._arrived.get(stream, 0.0))
        return arrived, arrived > 0
