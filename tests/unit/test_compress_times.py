"""Times of lines: read for a whole stream at once as for each line by itself."""

import pytest

from diagnoser.model import Stream
from diagnoser.structure.times import LogClock, moments, read_time

STREAM = Stream("stdout")
ARRIVED = 1_772_359_300.0
LINES = [
    "a banner",
    "0: 2026-03-01 10:00:00,250 INFO step 1",
    "0: 2026-03-01 10:00:01 INFO step 2",
    "0: 2026-03-01 10:00:01.5 INFO step 3",
    "0: 2026-03-01 09:59:59 a clock that was set back",
    "10: 2026-03-01 10:00:02 another prefix",
    "0: 2026-13-41 10:00:03 no such day",
    "0: 12026-03-01 10:00:04 a digit in front",
    "0: 2026/03/01T10:00:05,1234567890 other signs",
    "ü 2026-03-01 10:00:06 no ASCII",
    "ü 2026-03-01 10:00:07 no ASCII",
    "I0301 10:00:08.125000 1 glog",
    "no time at all",
    "",
    "x" * 150 + "2026-03-01 10:00:09 behind the head of a line",
    "x" * 150 + "2026-03-01 10:00:10 behind the head of a line",
    '{"ts": 1772359211.5}',
]


@pytest.mark.parametrize("first", range(len(LINES)))
def test_a_streams_lines_have_the_times_that_each_has_by_itself(first: int) -> None:
    """Whatever stands in front of a stamp, whichever the format is, and where a record has a time of its own."""
    lines = [*LINES[first:], *LINES, *LINES[:first]]
    known = [1_772_359_230.0 if number % 11 == 7 else 0.0 for number, _ in enumerate(lines)]
    clock = LogClock(2026)
    alone = [clock.time(STREAM, own, line, 0.0)[0] for own, line in zip(known, lines, strict=True)]
    began = next(filter(None, alone))
    at_once = moments(known, [line.encode() for line in lines], [ARRIVED] * len(lines), 2026)
    assert at_once == [time or began for time in alone]


def test_lines_without_any_time_came_when_the_first_did() -> None:
    """A log that was sent in one piece has one time."""
    assert moments([0.0, 0.0], [b"one", b"two"], [0.0, 5.0], 2026) == [5.0, 5.0]


@pytest.mark.parametrize(
    ("text", "hour"),
    [("06:52:41 PM", 18), ("06:52:41 AM", 6), ("12:52:41 PM", 12), ("12:52:41 AM", 0), ("18:52:41 PM", 18)],
)
def test_hours_of_half_a_day(text: str, hour: int) -> None:
    """Scripts of benchmarks print them: an evening that reads as a morning puts twelve hours of silence into a run."""
    shown = read_time(f"0: STARTING TIMING RUN AT 2026-03-01 {text}", 2026)
    assert shown == read_time(f"2026-03-01 {hour:02}:52:41", 2026)


@pytest.mark.parametrize("arrives", [True, False], ids=["shipped", "file"])
def test_a_year_that_no_stamp_prints_turns_with_the_run(arrives: bool) -> None:
    """A run goes on over New Year, and its lines stay in order, whichever year is taken for all of it."""
    midnight = read_time("2027-01-01 00:00:00", 0)
    lines = ["E1231 23:59:50.000000 1 a", "E0101 00:00:10.000000 1 b", "Jan  1 00:00:20 c"]
    for year in (2026, 2027)[: 1 + arrives]:
        times = moments([0.0] * 3, [line.encode() for line in lines], [arrives * (midnight + 30.0)] * 3, year)
        assert times == [midnight - 10.0, midnight + 10.0, midnight + 20.0]


def test_a_date_within_the_words_of_a_line_is_not_the_time_of_all_that_follow() -> None:
    """A licence is valid until long after the line arrived: that tells nothing of when anything was printed."""
    lines = [b"2026-03-01 10:00:00 begins", b"valid until 2026-12-31 23:59:59", b"2026-03-01 10:00:02 ends"]
    arrived = read_time("2026-03-01 10:00:05", 0)
    assert moments([0.0] * 3, lines, [arrived] * 3, 2026) == [arrived - 5.0, arrived - 5.0, arrived - 3.0]
