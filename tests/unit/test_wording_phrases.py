"""Words for people that several places share."""

import pytest

from diagnoser.wording.phrases import plural


@pytest.mark.parametrize(
    ("count", "noun", "text"), [(1, "launch", "1 launch"), (2, "launch", "2 launches"), (0, "error", "0 errors")]
)
def test_a_count_has_the_noun_in_its_number(count: int, noun: str, text: str) -> None:
    """As people write it."""
    assert plural(count, noun) == text
