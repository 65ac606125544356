"""What a run says does not depend on who carried its log."""

from collections.abc import Sequence

import pytest

from diagnoser.accuracy.scoring import ScoredVerdict
from diagnoser.diagnosis.analyzer import LogAnalyzer
from tests import accuracy_bars, carried_runs
from tests.carriers import CARRIERS, PLAIN, LabelledRun, rewritten, runs, verdict
from tests.corpus import CORPUS, needs_corpus
from tests.thorough import THOROUGH

OWN = [carried_runs.run(name) for name in carried_runs.FAULTS]


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


@pytest.fixture(scope="module")
def plain(analyzer: LogAnalyzer) -> list[ScoredVerdict]:
    return _verdicts(analyzer, OWN)


def _verdicts(analyzer: LogAnalyzer, chosen: Sequence[LabelledRun], name: str = "") -> list[ScoredVerdict]:
    carrier = CARRIERS[name] if name else PLAIN
    return [verdict(analyzer, run.label, rewritten(run.lines, carrier)) for run in chosen]


def _lost(before: Sequence[ScoredVerdict], after: Sequence[ScoredVerdict]) -> list[tuple[str, str]]:
    """(case, measure) of what was right in the plain log and is not where it was carried."""
    measures = ("type", "root", "rank", "node")
    return [
        (old.label.id, measure)
        for old, new in zip(before, after, strict=True)
        for measure in measures
        if getattr(old, measure) and not getattr(new, measure)
    ]


def test_the_plain_runs_are_read_right(plain: list[ScoredVerdict]) -> None:
    """Without a carrier, type, root line, rank and node of every run are right: the base of what follows."""
    wrong = [case.label.id for case in plain if not (case.type and case.root and case.rank and case.node)]
    assert wrong == []


@pytest.mark.parametrize("name", CARRIERS)
def test_a_carrier_changes_nothing(name: str, analyzer: LogAnalyzer, plain: list[ScoredVerdict]) -> None:
    """Rewritten line by line, a run keeps its type, root line, rank and node, and no node is taken out for it."""
    carried = _verdicts(analyzer, OWN, name)
    assert _lost(plain, carried) == []
    assert not any(case.false_cordon or case.wrong_node_cordon for case in carried)


@needs_corpus
@pytest.mark.corpus
@pytest.mark.xdist_group("corpus")
def test_real_runs_are_read_alike_in_every_carrier(analyzer: LogAnalyzer) -> None:
    """A share of the labelled runs: none loses what was right, and no healthy node goes. Each carrier has a third of
    them, and all of them in thorough tests."""
    chosen = runs(CORPUS / "injected-dev")[:: 7 if THOROUGH else 14]
    before = _verdicts(analyzer, chosen)
    turns = 1 if THOROUGH else 3
    for number, name in enumerate(CARRIERS):
        carried = slice(number % turns, None, turns)
        after = _verdicts(analyzer, chosen[carried], name)
        assert (name, _lost(before[carried], after)) == (name, [])
        assert not any(case.false_cordon or case.wrong_node_cordon for case in after), name
