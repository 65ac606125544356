"""How often verdicts were right by the word of people."""

from diagnoser.accuracy import feedback_accuracy
from diagnoser.accuracy.feedback_accuracy import Confusion, Tally, Week
from diagnoser.model import Judgement
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.weeks import WEEK

MONDAY = 1_789_948_800.0
"""2026-09-21 00:00 UTC."""
LOST, ECC, UNKNOWN = FailureType.GPU_LOST, FailureType.ECC_ERROR, FailureType.UNKNOWN


def said(diagnosis: str, time: float, said: FailureType, known: FailureType, by: str = "rule:xid_79") -> Judgement:
    return Judgement(diagnosis, time, said, known, by)


JUDGEMENTS = [
    said("1", MONDAY - 1, LOST, LOST),
    said("2", MONDAY, LOST, ECC),
    said("3", MONDAY + WEEK - 1, LOST, ECC),
    said("4", MONDAY + 5, UNKNOWN, LOST, "heuristic:no_evidence"),
    said("5", MONDAY + 6, ECC, ECC, "rule:xid_94"),
]


def test_weeks_begin_on_monday_and_none_is_left_out() -> None:
    """The last weeks, oldest first, also those in which nobody judged anything."""
    weeks = feedback_accuracy.by_week(JUDGEMENTS, MONDAY + 100, 3)
    assert weeks == [
        Week(MONDAY - 2 * WEEK, 0, 0),
        Week(MONDAY - WEEK, 1, 0),
        Week(MONDAY, 1, 3),
    ]
    assert sum(week.judged for week in weeks) == len(JUDGEMENTS)


def test_deciders_are_counted_by_kind_and_one_by_one() -> None:
    """Kinds with all their verdicts; single rules only where they were wrong, the worst first."""
    assert feedback_accuracy.by_kind(JUDGEMENTS) == [Tally("rule", 2, 4), Tally("heuristic", 0, 1)]
    worst = feedback_accuracy.most_corrected(JUDGEMENTS, 5)
    assert worst == [Tally("rule:xid_79", 1, 3), Tally("heuristic:no_evidence", 0, 1)]
    assert [tally.wrong for tally in worst] == [2, 1]
    assert feedback_accuracy.most_corrected(JUDGEMENTS, 1) == worst[:1]


def test_confusions_are_counted_with_the_latest_of_them() -> None:
    """From the cause that was named to the one that was right."""
    found = feedback_accuracy.confusions(JUDGEMENTS, 5)
    assert found == [Confusion(LOST, ECC, 2, "3"), Confusion(UNKNOWN, LOST, 1, "4")]
    assert feedback_accuracy.confusions(JUDGEMENTS[:1], 5) == []
