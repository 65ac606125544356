"""What a record says of itself, in the forms in which programs write it."""

import pytest

from diagnoser.records import forms
from diagnoser.records.reader import severity_of

_HEADS = [(line, level) for form in forms.HEADS for line, level in form.examples]


@pytest.mark.parametrize(("line", "level"), _HEADS)
def test_a_head_tells_the_severity(line: str, level: str) -> None:
    """Every example of a head gives the severity that its level stands for."""
    assert severity_of(line) is forms.LEVELS[level.lower()]


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
