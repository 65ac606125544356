"""Lines that wait for the service: bounded, counted, and each with its place."""

import gzip
import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest

from diagnoser.client import backlog as module
from diagnoser.client.backlog import LINE_BYTES, LINGER_SECONDS, PARTIAL_SECONDS, SEGMENT_BYTES, Backlog, Segment

LINE = b"iteration 17 | lm loss 2.31 | grad norm 0.9 | tokens/s 41,112\n"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def taken(backlog: Backlog, **how: Any) -> list[Segment]:
    """Everything that can be taken now, as a sender that is done with each."""
    segments = []
    while segment := backlog.take(**how):
        segments.append(segment)
        backlog.done(segment)
    return segments


def text_of(segment: Segment) -> bytes:
    assert segment.body is not None
    return gzip.decompress(segment.body) if segment.packed else segment.body


def test_lines_wait_a_moment_for_more(clock: Clock) -> None:
    """A request has a price: what comes within half a second goes together, and a line without its end stays."""
    backlog = Backlog(clock)
    backlog.add("stdout", b"one\ntw")
    assert backlog.take() is None
    backlog.add("stdout", b"o\nthr")
    clock.now += LINGER_SECONDS
    (segment,) = taken(backlog)
    assert (segment.body, segment.first, segment.lines) == (b"one\ntwo\n", 0, 2)
    backlog.add("stdout", b"ee\n")
    clock.now += LINGER_SECONDS
    (segment,) = taken(backlog)
    assert (segment.body, segment.first) == (b"three\n", 2)


def test_each_stream_counts_its_own_lines(clock: Clock) -> None:
    """Offsets are those of a stream, however the two are mixed."""
    backlog = Backlog(clock)
    backlog.add("stdout", b"a\nb\n")
    backlog.add("stderr", b"x\n")
    backlog.flush()
    backlog.add("stdout", b"c\n")
    backlog.flush()
    assert [(one.source, one.first, one.lines) for one in taken(backlog)] == [
        ("stdout", 0, 2),
        ("stderr", 0, 1),
        ("stdout", 2, 1),
    ]


def test_a_line_without_an_end_goes_at_last(clock: Clock) -> None:
    """A progress bar may write for hours without a line break; and the last line of a run may have none."""
    backlog = Backlog(clock)
    backlog.add("stderr", b"\r 10%")
    clock.now += PARTIAL_SECONDS - 1
    assert backlog.take() is None
    clock.now += 1
    assert [one.body for one in taken(backlog)] == [b"\r 10%"]
    backlog.add("stderr", b"\r 20%")
    backlog.flush()
    assert [(one.body, one.first) for one in taken(backlog)] == [(b"\r 20%", 1)]


def test_a_very_long_line_goes_in_parts(clock: Clock) -> None:
    """No line can make the memory grow; the parts count as lines, in order."""
    backlog = Backlog(clock)
    for _ in range(4 * LINE_BYTES // 4096):
        backlog.add("stdout", b"x" * 4096)
    backlog.add("stdout", b"\nend\n")
    backlog.flush()
    segments = taken(backlog)
    assert max(one.size for one in segments) <= LINE_BYTES + SEGMENT_BYTES
    assert b"".join(one.body or b"" for one in segments) == b"x" * (4 * LINE_BYTES) + b"\nend\n"
    assert [one.first for one in segments] == list(itertools.accumulate([0, *(one.lines for one in segments)]))[:-1]


def test_what_piles_up_goes_to_disk_packed_and_comes_back(clock: Clock, tmp_path: Path) -> None:
    """Beyond a few megabytes lines are packed on disk, in a file without a name; each comes back as it was."""
    backlog = Backlog(clock, str(tmp_path), spill_bytes=SEGMENT_BYTES)
    lines = [b"step %d " % number + LINE for number in range(40_000)]
    for start in range(0, len(lines), 50):
        backlog.add("stdout", b"".join(lines[start : start + 50]))
    while backlog.spill():
        pass
    memory, disk = backlog.held_bytes
    assert memory <= 2 * SEGMENT_BYTES
    assert 0 < disk < memory + len(b"".join(lines)) / 4
    assert list(tmp_path.iterdir()) == []
    backlog.flush()
    segments = taken(backlog)
    assert b"".join(map(text_of, segments)) == b"".join(lines)
    assert any(one.packed for one in segments)
    assert backlog.waiting == backlog.dropped == 0
    backlog.close()


def test_a_week_without_the_service_fills_64_megabytes_and_no_more(clock: Clock, tmp_path: Path) -> None:
    """The oldest lines go and are counted; what is left is the newest, each line still with its own number."""
    bounds = {"memory_bytes": 2 << 20, "spill_bytes": 1 << 20, "disk_bytes": 200_000}
    backlog = Backlog(clock, str(tmp_path), **bounds)
    added = 0
    for minute in range(7 * 24 * 60):
        clock.now += 60.0
        lines = b"".join(b"minute %d line %d " % (minute, number) + LINE for number in range(30))
        backlog.add("stdout", lines)
        added += 30
        while backlog.spill():
            pass
        if minute % 500 == 0:
            memory, disk = backlog.held_bytes
            assert memory <= 2 << 20
            assert disk <= 200_000
    backlog.flush()
    assert backlog.dropped + backlog.waiting == added
    assert backlog.dropped > 0
    segments = taken(backlog)
    newest = max(segments, key=lambda one: one.first)
    assert newest.first + newest.lines == added
    for segment in segments:
        first = text_of(segment).split(b"\n")[0].split()
        assert int(first[1]) * 30 + int(first[3]) == segment.first
    backlog.close()


def test_the_shipped_bounds_are_64_megabytes() -> None:
    """Memory and spool together with an interpreter stay within what one may expect of a helper."""
    assert module.DISK_BYTES <= 64 << 20
    assert module.MEMORY_BYTES + 2 * LINE_BYTES < 32 << 20


def test_adding_goes_on_while_nothing_is_written(clock: Clock) -> None:
    """A disk that hangs keeps nobody waiting: the oldest lines in memory go instead."""
    backlog = Backlog(clock, memory_bytes=4 * SEGMENT_BYTES, spill_bytes=SEGMENT_BYTES)
    for _ in range(20 * SEGMENT_BYTES // len(LINE)):
        backlog.add("stdout", LINE)
    memory, disk = backlog.held_bytes
    assert (memory <= 5 * SEGMENT_BYTES, disk) == (True, 0)
    assert backlog.dropped > 0


def test_a_full_disk_is_told_and_packed_lines_stay_in_memory(clock: Clock) -> None:
    """/dev/full is no folder, so nothing can be written: that is no reason to lose lines at once."""
    backlog = Backlog(clock, "/dev/full", spill_bytes=SEGMENT_BYTES)
    for _ in range(3 * SEGMENT_BYTES // len(LINE)):
        backlog.add("stdout", LINE)
    while backlog.spill():
        pass
    assert "/dev/full" in backlog.disk_fault
    backlog.flush()
    assert sum(one.lines for one in taken(backlog)) == 3 * SEGMENT_BYTES // len(LINE)
    assert backlog.dropped == 0


def test_the_newest_can_be_taken_first(clock: Clock) -> None:
    """When a run has ended its last lines tell the most; whoever works on one keeps others off it."""
    backlog = Backlog(clock)
    for text in (b"first\n", b"second\n"):
        backlog.add("stdout", text)
        backlog.flush()
    newest = backlog.take(newest=True)
    assert newest is not None
    assert newest.body == b"second\n"
    oldest = backlog.take(newest=True)
    assert oldest is not None
    assert oldest.body == b"first\n"
    assert backlog.take() is None
    backlog.put_back(newest)
    assert backlog.take() is newest


def test_a_full_disk_does_not_keep_a_command_from_starting(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python finds no folder for temporary files then, and says so by an exception."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", _no_folder)
    backlog = Backlog(clock, spill_bytes=1)
    backlog.add("stdout", LINE)
    clock.now += LINGER_SECONDS
    backlog.spill()
    assert [text_of(segment) for segment in taken(backlog)] == [LINE]


def _no_folder() -> str:
    raise FileNotFoundError(2, "No usable temporary directory found")
