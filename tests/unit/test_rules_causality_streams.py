"""The root is chosen within one stream: lines of two streams are no story."""

from dataclasses import replace

from diagnoser.model import Stream
from diagnoser.model.taxonomy import FailureType
from diagnoser.rules import causality
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.run_end import RunTimeline
from diagnoser.rules.schema import Role, Specificity
from tests.rule_files import log

T = FailureType


def test_a_more_exact_line_of_another_stream_does_not_take_the_place_of_the_first() -> None:
    """Of the same stream it says the same failure more exactly; another one's numbers stand near by chance."""
    first = Candidate(line=3, type=T.KEY_ERROR, role=Role.ROOT, by="rule:a", why="", specificity=Specificity.FAMILY)
    exact = replace(first, line=5, type=T.IMPORT_ERROR, by="rule:b", specificity=Specificity.CODE)
    evidence = log(*("line",) * 10)
    other = [replace(line, stream=Stream("rank1")) if line.number > 4 else line for line in evidence.lines]
    for told, root in ((evidence, exact), (replace(evidence, lines=tuple(other)), first)):
        assert causality.decide((first, exact), RunTimeline(told, lambda candidate: False)).root == root
