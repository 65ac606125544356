"""Findings that read the same are told once."""

import pytest

from diagnoser.model import Rejected, Symptom
from diagnoser.model.taxonomy import FailureType
from diagnoser.wording.collapse_ranks import DiagnosisGroup, grouped, not_it, ranges
from tests.serving import verdict

TIMEOUT, OOM = FailureType.NCCL_TIMEOUT_ERROR, FailureType.OUT_OF_MEMORY_ERROR


@pytest.mark.parametrize(
    ("numbers", "reads"),
    [
        ([], ""),
        ([7], "7"),
        ([3, 1, 2, 2, 7], "1\u20133, 7"),
        ([1, 3, 5, 7, 9, 11, 13, 15], "1, 3, 5, 7, 9, 11 and 2 more"),
    ],
)
def test_line_numbers_become_ranges(numbers: list[int], reads: str) -> None:
    """Neighbours join, doubles vanish, and a long list is cut with what is left out counted."""
    assert ranges(numbers) == reads


def test_symptoms_of_a_type_are_one_group() -> None:
    """Each type stands once, in the order of its first line, with that line and how many there are."""
    symptoms = (Symptom(30, "b", TIMEOUT), Symptom(20, "a", TIMEOUT), Symptom(25, "c", OOM), Symptom(21, "d", TIMEOUT))
    assert grouped(symptoms) == [
        DiagnosisGroup(TIMEOUT, 3, "20\u201321, 30", "a"),
        DiagnosisGroup(OOM, 1, "25", "c"),
    ]


def test_what_it_is_not_leaves_out_the_symptoms() -> None:
    """A candidate that is shown as a symptom is not told again; the others are grouped by type and reason."""
    found = verdict(
        symptoms=(Symptom(9, "a", TIMEOUT),),
        rejected=(
            Rejected(9, "a", TIMEOUT, "explained by the root"),
            Rejected(12, "x", OOM, "later"),
            Rejected(11, "w", OOM, "later"),
            Rejected(5, "v", OOM, "a warning"),
        ),
    )
    assert not_it(found) == [
        DiagnosisGroup(OOM, 1, "5", "v", "a warning"),
        DiagnosisGroup(OOM, 2, "11\u201312", "w", "later"),
    ]
