"""The rules on the committed cases of real frameworks, against the figures that were measured."""

from collections.abc import Mapping

import pytest

from diagnoser.accuracy.scoring import AccuracyReport
from tools.real_runs import measure

LEAST = {"category": 0.98, "type": 0.98, "root_line": 0.97}
"""Measured by the rules alone; what comes later may only be better."""
MOST = {"false_cordon": 0, "wrong_node_cordon": 0, "false_alarm": 0, "false_stop": 1}


@pytest.fixture(scope="module")
def reports() -> Mapping[str, AccuracyReport]:
    return measure.reports(measure.SAMPLES)


@pytest.mark.parametrize("name", LEAST)
def test_shares_are_held(reports: Mapping[str, AccuracyReport], name: str) -> None:
    """No share of right verdicts falls below what was measured."""
    share = reports["all"].shares[name]
    assert share is not None
    assert share >= LEAST[name], "\n".join(measure.misses(reports["all"]))


@pytest.mark.parametrize("name", MOST)
def test_harm_is_not_more(reports: Mapping[str, AccuracyReport], name: str) -> None:
    """No more healthy runs are called failed, stopped or cordoned for than was measured."""
    assert reports["all"].counts[name] <= MOST[name], "\n".join(measure.misses(reports["all"]))


def test_the_table_has_a_row_for_each_framework(reports: Mapping[str, AccuracyReport]) -> None:
    """The table that is printed names every framework of the cases and all of them together."""
    rows = [line.split("  ")[0].strip() for line in measure.table(reports)]
    assert set(rows[1:]) == {*reports}
    assert "all" in rows
