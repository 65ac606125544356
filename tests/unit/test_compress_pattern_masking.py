"""A pattern and its blur: what is decided about a blurred line holds for every line behind it."""

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnoser.compress.line_masking import blurred
from diagnoser.compress.pattern_masking import asks_for_digits, blur
from diagnoser.compress.prefilter import PatternSet
from tests.thorough import examples


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        (b"step   12/ 900: loss -1.25", b"step 0/ 0: loss 0.0"),
        (b"2026-03-01T10:11:12,881", b"0 0 0T0:0:0,0"),
        (b"a\tb --c", b"a b c"),
        ("50%|█████     | 5/10".encode(), b"0%| | 0/0"),
        (b"", b""),
        (b"7", b"0"),
    ],
)
def test_a_number_is_one_digit_and_a_gap_one_blank(line: bytes, seen: bytes) -> None:
    """Widths, signs and bar states vanish; that there is a number or a gap stays."""
    assert blurred(line) == seen


@settings(max_examples=examples(100))
@given(st.lists(st.text("ab01 -\t.█", max_size=30), max_size=30))
def test_a_block_blurs_line_by_line(lines: list[str]) -> None:
    """What stands around a line does not change its blur."""
    block = "\n".join(lines).encode()
    assert blurred(block).split(b"\n") == [blurred(line.encode()) for line in lines or [""]]


def test_a_long_block_is_blurred_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of the pieces is not seen."""
    block = b"step  1: 10 of   20\n" * 300
    whole = blurred(block)
    monkeypatch.setattr("diagnoser.compress.line_masking._PIECE", 64)
    assert blurred(block) == whole


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"exit code 9\b", "exit code 9"),
        (r"[45]\d\d Server Error", "503 Server Error"),
        (r"[^0-9]x1{1,3}y", "ax11y"),
        (r"(?P<gpu>[0-9a-f]{4}:[0-9a-f]{2})", "00a3:1f"),
        (r"\x1b\[31m2", "\x1b[31m2"),
        (r"(?i)ERRNO 1(?:04|11)", "errno 111"),
        (r"a{2}7+", "aa777"),
        (r"(?:\d+\.)+\d+", "10.1.2.33"),
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d", "2026-01-02 03:04"),
        (r"(?:^|[^a-z])fail(?:ed)?(?:[^a-z]|$)", "5fail"),
        (r"^ iteration +\d+", " iteration   12"),
        (r"\w{3}\d-\d", "ab12-3"),
        (r"\S+ \S+$", "a-- -b"),
        (r"[]x]{2}1[-9]", "]x1-"),
        (r"(?:a |b\d)+ ?\d", "b1a 2"),
        (r"\p{Lu}\d", "Ä1"),
        (r"[[:alpha:]]+[[:digit:]]", "ab12"),
    ],
)
def test_a_blurred_pattern_still_matches(pattern: str, text: str) -> None:
    """It is sound RE2 and matches the blur of what the pattern matches."""
    assert re2.search(pattern, text)
    assert re2.search(blur(pattern), blurred(text.encode()).decode())


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"(?i)\d+/\d+ (?:loss|損失|损失)[ =:]+\d", "ステップ 2/12 損失 1.64"),
        ("^(?:已砍掉|错误)$", "已砍掉"),
        ("错误 ?: (?:找不到|拒绝)", "错误: 找不到"),
        ("-損+ ", "-損損 "),
    ],
)
def test_characters_that_share_bytes_with_the_glyphs_of_bars_are_found(pattern: str, text: str) -> None:
    """Of many Chinese and Japanese characters one byte looks like a part of a bar, and becomes a blank."""
    assert re2.search(pattern, text)
    assert PatternSet.of([(blur(pattern), 1)]).look(blurred(text.encode()))[0]


_ATOMS = [
    "a",
    "b",
    "1",
    "9",
    " ",
    "-",
    ".",
    r"\d",
    r"\s",
    r"\w",
    r"\S",
    r"\.",
    "[ab1]",
    "[^a]",
    "[0-5]",
    "[ -]",
    r"[\d.]",
]
_TIMES = ["", "", "", "?", "*", "+", "{2}", "{1,3}", "{2,}"]
_patterns = st.recursive(
    st.tuples(st.sampled_from(_ATOMS), st.sampled_from(_TIMES)).map("".join),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.tuples(st.lists(inner, min_size=1, max_size=3).map("|".join), st.sampled_from(_TIMES)).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)


@settings(max_examples=examples(400))
@given(_patterns, st.text("ab019 -.\t", max_size=10))
def test_blurring_never_loses_a_match(pattern: str, text: str) -> None:
    """Whatever a pattern matches, its blur matches in the blurred text: no line is passed over by it."""
    if re2.search(pattern, text):
        assert re2.search(blur(pattern), blurred(text.encode()).decode()), blur(pattern)


@pytest.mark.parametrize(
    ("pattern", "asks"),
    [
        (r"Xid .*: 79\b", True),
        (r"[45]\d\d Error", True),
        (r"\d{4} lines", False),
        (r"rank [0-9]+", False),
        (r"(?P<rank2>\d+) down", False),
        (r"\p{L}2", True),
        ("plain words", False),
    ],
)
def test_patterns_that_ask_for_certain_digits_are_known(pattern: str, asks: bool) -> None:
    """Only these need a look at each line."""
    assert asks_for_digits(pattern) is asks


@pytest.mark.parametrize("pattern", ["(a", "a)"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    """Brackets must match."""
    with pytest.raises(ValueError, match=r"\)"):
        blur(pattern)
