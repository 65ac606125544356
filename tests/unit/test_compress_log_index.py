"""The index of a log: windows that join to the whole, filters, facets, search, and names of lines that stay."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnoser.compress import AttemptLog, Compressor
from diagnoser.logview.log_columns import NOBODY, LogLevel, line_id
from diagnoser.logview.log_index import (
    MATCHES_LIMIT,
    Direction,
    LogCursor,
    LogFilter,
    LogIndex,
    LogRow,
    LogSearch,
    LogWindow,
)
from diagnoser.model import LineBlock, Stream
from diagnoser.model.errors import BadInput
from tests.thorough import examples

ALL = LogFilter()
START = LogCursor()
EVERYTHING = 1_000_000


def index(*blocks: LineBlock) -> LogIndex:
    compressor = Compressor()
    for block in blocks:
        compressor.feed(block)
    return LogIndex(AttemptLog(compressor.take()))


def rank_block(rank: int, steps: int, *last: str, source: str = "stdout") -> LineBlock:
    """A rank's lines: one a second, then its last ones."""
    lines = [f"2026-03-01 10:{step // 60:02d}:{step % 60:02d} step {step} of rank went well" for step in range(steps)]
    data = "".join(line + "\n" for line in (*lines, *last)).encode()
    return LineBlock(Stream(source, f"gpu-{rank // 2}", rank), data, received=1.0)


def run(ranks: int = 4, steps: int = 300) -> LogIndex:
    """Some ranks on half as many nodes; rank 1 fails."""
    blocks = [rank_block(rank, steps) for rank in range(ranks) if rank != 1]
    return index(*blocks, rank_block(1, steps, "ValueError: <b>odd</b> seam", source="stderr"))


def ids(rows: LogWindow | list[LogRow]) -> list[str]:
    return [row.id for row in (rows.rows if isinstance(rows, LogWindow) else rows)]


def whole(log: LogIndex, wanted: LogFilter = ALL) -> list[str]:
    return ids(log.window(wanted, START, EVERYTHING))


def paged(log: LogIndex, wanted: LogFilter, limit: int, *, backwards: bool) -> list[str]:
    """All pages, from the first one on or from the last one back."""
    window = log.window(wanted, LogCursor(Direction.END if backwards else Direction.START), limit)
    joined = ids(window)
    while window.before if backwards else window.after:
        edge = window.rows[0 if backwards else -1].id
        window = log.window(wanted, LogCursor(Direction.BEFORE if backwards else Direction.AFTER, edge), limit)
        joined = ids(window) + joined if backwards else joined + ids(window)
    return joined


filters = st.builds(
    LogFilter,
    ranks=st.frozensets(st.integers(-1, 4), max_size=2),
    nodes=st.frozensets(st.sampled_from(["gpu-0", "gpu-1"]), max_size=1),
    sources=st.frozensets(st.sampled_from(["stdout", "stderr"]), max_size=1),
    levels=st.frozensets(st.sampled_from(list(LogLevel)), max_size=3),
)
LOG = run()


@given(filters, st.integers(1, 150), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_pages_join_to_the_whole_and_no_row_comes_twice(wanted: LogFilter, limit: int, backwards: bool) -> None:
    """In both directions and whatever is filtered, the pages are the filtered log, each row once."""
    joined = paged(LOG, wanted, limit, backwards=backwards)
    assert joined == whole(LOG, wanted)
    assert len(set(joined)) == len(joined)


@given(st.integers(0, 10_000), st.integers(1, 60), filters)
@settings(max_examples=examples(60), deadline=None)
def test_a_window_around_a_row_holds_it(place: int, limit: int, wanted: LogFilter) -> None:
    """A row that the filter shows lies within its window, and the rows before it are counted."""
    shown = whole(LOG, wanted)
    if not shown:
        return
    line = shown[place % len(shown)]
    window = LOG.window(wanted, LogCursor(Direction.AROUND, line), limit)
    assert (window.target, window.is_exact) == (line, True)
    assert ids(window) == shown[window.before : window.before + len(window.rows)]
    assert line in ids(window) and window.before + len(window.rows) + window.after == len(shown)


@given(st.integers(1, 400), st.integers(1, 400))
@settings(max_examples=20, deadline=None)
def test_a_line_is_found_by_its_id_when_more_have_come(early: int, late: int) -> None:
    """What was a link to a line still leads to it, or to the nearest row of its stream, when the log has grown."""
    before, after = index(rank_block(0, early)), index(rank_block(0, early + late), rank_block(3, late))
    for line in whole(before)[:: max(early // 10, 1)]:
        window = after.window(ALL, LogCursor(Direction.AROUND, line), 5)
        number = int(line.rpartition("-")[2])
        row = next(row for row in window.rows if row.id == window.target)
        assert row.stream.rank == 0
        assert row.number == number if window.is_exact else row.number < number


def test_rows_stand_in_order_and_tell_what_is_left_out() -> None:
    """By time over all streams; the lines of a stream that are not shown are counted before the next that is."""
    rows = run(2, 400).window(ALL, START, EVERYTHING).rows
    assert [row.time for row in rows] == sorted(row.time for row in rows)
    for rank, lines in ((0, 400), (1, 401)):
        own = [row for row in rows if row.rank == rank and row.level is not LogLevel.ROUTINE]
        assert sum(row.gap + 1 for row in own) == lines
    assert any(row.gap for row in rows)


def test_a_template_stands_at_its_first_line() -> None:
    """Its count, its ranks and its samples belong to the row of the first line of its shape."""
    rows = run(2, 400).window(ALL, START, EVERYTHING).rows
    (counted,) = (row for row in rows if row.template and row.template.count > 1)
    assert counted.template is not None
    assert (counted.number, counted.template.count, counted.template.ranks) == (1, 800, frozenset({0, 1}))


def test_templates_of_which_no_line_is_held_have_a_row_of_their_own() -> None:
    """It is found among the rows of each of its ranks and nodes."""
    middle = ["a rare word was said by somebody\n" * 3]
    blocks = []
    for rank in range(4):
        steps = rank_block(rank, 300).data.decode().splitlines(keepends=True)
        data = "".join([*steps[:150], *(middle if rank in (1, 2) else []), *steps[150:]]).encode()
        blocks.append(LineBlock(Stream("stdout", f"gpu-{rank // 2}", rank), data, received=1.0))
    log = index(*blocks)
    for wanted, is_shown in (
        (LogFilter(ranks=frozenset({1})), True),
        (LogFilter(ranks=frozenset({2})), True),
        (LogFilter(ranks=frozenset({3})), False),
        (LogFilter(nodes=frozenset({"gpu-1"})), True),
        (LogFilter(levels=frozenset({LogLevel.ROUTINE})), True),
    ):
        texts = [row.text for row in log.window(wanted, START, EVERYTHING).rows]
        assert ("a rare word was said by somebody" in texts) == is_shown, wanted
    counts = dict(log.facets(LogFilter(levels=frozenset({LogLevel.ROUTINE}))).ranks)
    assert counts == {1: 1, 2: 1}


@given(filters)
@settings(max_examples=examples(40), deadline=None)
def test_facets_count_what_a_choice_would_show(wanted: LogFilter) -> None:
    """A value's count is the number of rows with it and the filter's other fields."""
    facets = LOG.facets(wanted)
    for rank, count in facets.ranks:
        assert count == len(whole(LOG, LogFilter(frozenset({rank}), wanted.nodes, wanted.sources, wanted.levels)))
    for node, count in facets.nodes:
        assert count == len(whole(LOG, LogFilter(wanted.ranks, frozenset({node}), wanted.sources, wanted.levels)))
    for level, count in facets.levels:
        assert count == len(whole(LOG, LogFilter(wanted.ranks, wanted.nodes, wanted.sources, frozenset({level}))))


def test_a_search_begins_at_its_first_match_and_marks_it() -> None:
    """A part of a line in any case; what makes patterns elsewhere is only text."""
    log = run()
    window = log.window(LogFilter(search=LogSearch("<B>ODD</b>")), LogCursor(Direction.AROUND), 10)
    (row,) = (row for row in window.rows if row.hits)
    assert (window.matches, window.target, row.id) == (1, row.id, row.id)
    assert [row.text[start:end] for start, end in row.hits] == ["<b>odd</b>"]
    assert log.window(LogFilter(search=LogSearch("s.ep")), START, 10).matches == 0


def test_matches_lead_from_one_to_the_next() -> None:
    """The nearest matches before and behind a window are named; with only matches shown they are the log."""
    log = run(2)
    search = LogSearch(r"step \d*7 ", is_regex=True)
    everything = whole(log, LogFilter(search=search, matches_only=True))
    window = log.window(LogFilter(search=search), LogCursor(Direction.AROUND, everything[3]), 1)
    assert (window.previous_match, window.next_match) == (everything[2], everything[4])
    assert window.matches == len(everything) == len({*everything})


def test_a_pattern_does_not_run_over_the_end_of_a_line() -> None:
    """Neither a class that excludes something nor a line end in it matches a second line."""
    log = index(LineBlock(Stream(), b"one\ntwo\nthree\n"))
    for pattern in (r"one[^x]two", r"one\stwo", r"one\ntwo", r"(?s)one.two"):
        assert log.window(LogFilter(search=LogSearch(pattern, True)), START, 10).matches == 0
    assert log.window(LogFilter(search=LogSearch("^t", True)), START, 10).matches == 2


@pytest.mark.parametrize("pattern", ["(open", "a{2000}", "(?=ahead)", "(a{900}){900}"])
def test_a_pattern_that_cannot_be_is_told(pattern: str) -> None:
    """Faulty and overlarge patterns are refused before they are run."""
    with pytest.raises(BadInput, match="not an RE2 expression"):
        LOG.window(LogFilter(search=LogSearch(pattern, True)), START, 10)


def test_matches_are_bounded() -> None:
    """A pattern that every line matches finds a bounded number of them."""
    blocks = [rank_block(rank, 128) for rank in range(MATCHES_LIMIT // 128 + 2)]
    window = index(*blocks).window(LogFilter(search=LogSearch("rank")), START, 10)
    assert (window.total > MATCHES_LIMIT, window.matches) == (True, MATCHES_LIMIT)


def test_lines_are_named_by_number_and_source_as_well() -> None:
    """For people who have a number from elsewhere; what is no name is refused, what is not there is told."""
    log = run()
    last = Stream("stderr", "gpu-0", 1)
    for name in ("stderr:301", line_id(last, 301), "301"):
        window = log.window(ALL, LogCursor(Direction.AROUND, name), 10)
        assert (window.target, window.is_exact) == (line_id(last, 301), True)
    for name in ("9999", "dmesg:3", line_id(Stream("dmesg"), 3)):
        assert not log.window(ALL, LogCursor(Direction.AROUND, name), 10).is_exact
    with pytest.raises(BadInput, match="names no line"):
        log.window(ALL, LogCursor(Direction.AROUND, "the third"), 10)
    assert log.id_of("stderr", 301, "ValueError: <b>odd</b> seam") == line_id(last, 301)
    assert log.id_of("dmesg", 301, "") == ""
    assert (bool(log.streams_with(301)), log.streams_with(302), log.last_number) == (True, (), 301)


def test_levels_tell_errors_from_the_rest() -> None:
    """An exception is an error, what labels itself a warning is one, a step is neither."""
    log = index(rank_block(0, 3, "WARNING: slow disk", "Traceback (most recent call last):", "ValueError: no"))
    levels = {row.text.split(" ")[0]: row.level for row in log.window(ALL, START, 10).rows}
    assert levels["ValueError:"] is LogLevel.ERROR
    assert levels["WARNING:"] is LogLevel.WARNING
    assert levels["2026-03-01"] is LogLevel.OTHER


def test_an_empty_log_has_an_empty_window() -> None:
    """An attempt without a line can be looked at as well."""
    log = index()
    for direction in Direction:
        assert log.window(ALL, LogCursor(direction), 10).rows == ()
    assert log.facets(ALL).ranks == ()
    assert log.window(LogFilter(frozenset({NOBODY}), search=LogSearch("x")), START, 10).matches == 0


def test_a_launchers_host_is_not_the_node_of_its_ranks() -> None:
    """Where one stream carries the lines of all ranks, what the log says of a rank's node counts, not where the
    launcher ran."""
    text = "0: rank 0 on node gpu-011 (local rank 0, pid 41200)\n1: rank 1 on node gpu-014 (local rank 0, pid 41201)\n"
    text += "1: [rank1]: ValueError: odd\n"
    rows = index(LineBlock(Stream(node="login-1"), text.encode(), received=1.0)).window(ALL, START, 10).rows
    assert [(row.rank, row.node) for row in rows] == [(0, "gpu-011"), (1, "gpu-014"), (1, "gpu-014")]
