"""Which lines a pattern matches, and that no pattern takes longer than it may."""

import itertools
import random

import pytest

from diagnoser.model.errors import BadInput
from diagnoser.rules import line_match
from diagnoser.rules.line_match import LineConditions, LineMatcher, LineTexts


def found(conditions: LineConditions, *lines: str) -> dict[str, tuple[tuple[int, int], ...]]:
    return dict(LineMatcher(conditions).search(LineTexts(lines), lambda: False))


def test_a_line_needs_an_anchor_and_a_pattern_and_no_veto() -> None:
    """As the rules that are in force read it."""
    conditions = LineConditions(("seam \\d+", "giving up$"), ("feeder",), ("retry",))
    lines = ("feeder: seam 12, giving up", "seam 12", "feeder: seam", "feeder: seam 3, retry 1")
    assert found(conditions, *lines) == {lines[0]: ((8, 15), (17, 26))}


def test_what_overlaps_is_marked_once() -> None:
    """Two patterns on the same words."""
    assert found(LineConditions(("quilt seam", "seam torn")), "a quilt seam torn") == {"a quilt seam torn": ((2, 17),)}


@pytest.mark.parametrize("pattern", ["^b$", r"\Ab\z", "(?-m:^b$)", "^b", "b$", r"\bb\b", "(?i)^B$"])
def test_lines_that_are_searched_together_match_as_each_does_alone(pattern: str) -> None:
    """Begin and end of a line are those of the line, wherever it stands among others."""
    lines = ("a", "b", "c")
    assert set(found(LineConditions((pattern,)), *lines)) == {"b"}


def test_every_line_that_matches_alone_is_found_among_others() -> None:
    """Also where a match over two lines begins before it, and whichever of several patterns it is."""
    rng = random.Random(4)
    lines = {"".join(rng.choice("ab .") for _ in range(rng.randint(1, 12))) for _ in range(3000)}
    for patterns in ((r"a\s+b",), (r"^a", r"b$"), (r"[^b]{3}",), (r"a.*b", r"\.\."), (r"b*",), (r"\Ba\B",)):
        matcher = LineMatcher(LineConditions(patterns))
        texts = LineTexts(lines)
        assert len(texts.chunks) > 1
        alone = {line for line in texts.lines if matcher.spans(line) is not None}
        assert {line for line, _ in matcher.search(texts, lambda: False)} == alone, patterns


def test_a_match_does_not_reach_into_the_next_line() -> None:
    """What stands on two lines is on neither."""
    assert found(LineConditions(("one\\s+two",)), "one", "two") == {}


def test_what_a_message_only_advises_does_not_match() -> None:
    """As with rules: common causes that are listed did not happen."""
    line = "it hangs; common causes include: the quilt seam"
    assert found(LineConditions(("quilt seam",)), line) == {}


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        (LineConditions(()), "Type a pattern"),
        (LineConditions(("(a",)), "missing )"),
        (LineConditions((r"(a)\1",)), "invalid escape"),
        (LineConditions(("a(?=b)",)), "RE2"),
        (LineConditions(("(?P<host>a)",)), "unknown group"),
        (LineConditions(("((a{100}){100}){100}",)), "RE2"),
        (LineConditions(("(?:\\pL{900}){1}" * 8,)), "RE2"),
        (LineConditions(("a" * 1001,)), "at most 1000"),
        (LineConditions(tuple("abcdefghij" * 4)), "at most 30"),
        (LineConditions(("a",), unless=("[",)), "RE2"),
    ],
)
def test_what_cannot_be_tried_is_said(conditions: LineConditions, told: str) -> None:
    """Look-around, back references, and what would take too much memory are refused at once."""
    with pytest.raises(BadInput, match=told.replace("(", r"\(").replace(")", r"\)")):
        LineMatcher(conditions)


def test_time_is_asked_for_between_any_two_searches() -> None:
    """However slow a pattern is on one line, the search ends with the next look at the clock."""
    looks = itertools.count()
    texts = LineTexts(f"{number} " + "x" * 500 for number in range(100))
    matcher = LineMatcher(LineConditions(("x{100}",)))
    hits = []
    with pytest.raises(TimeoutError):
        for hit in matcher.search(texts, lambda: next(looks) >= 10):
            hits.append(hit)
    assert 0 < len(hits) < 10


def test_long_lines_are_cut_and_repeated_ones_searched_once() -> None:
    """A line of a megabyte costs what one of two thousand characters does."""
    texts = LineTexts(["a" * 1_000_000, "b", "b", " "])
    assert [len(line) for line in texts.lines] == [line_match.LINE_LENGTH, 1]
