"""Whose last words count."""

from dataclasses import replace
from io import BytesIO

import pytest

from diagnoser.model import Facts, Provenance, Stream
from diagnoser.rules import clean_end
from diagnoser.rules.left_behind import Processes
from tests.rule_files import ANALYZER, log


def test_only_words_of_the_job_end_it_well() -> None:
    """A node's own log, which people and daemons write into, says nothing about the end of a run."""
    evidence = log("step 1 loss 2.5", "Training completed successfully")
    table = ANALYZER.knowledge.heuristics.ends
    assert clean_end.find_clean_end(evidence, table, lambda line: False, Processes()) is not None
    of_node = Stream("syslog", "gpu-001", provenance=Provenance.NODE)
    lines = (evidence.lines[0], replace(evidence.lines[1], stream=of_node))
    assert clean_end.find_clean_end(replace(evidence, lines=lines), table, lambda line: False, Processes()) is None


TURNS = tuple(f"round {number} gap {1 / number:.4f}" for number in range(1, 41))


@pytest.mark.parametrize(
    ("lines", "is_end"),
    [
        (("about to fit 40 rounds", *TURNS), True),
        (("about to fit 60 rounds", *TURNS), False),
        ((*TURNS, "\t(1) Normal termination (return value 0)"), True),
        ((*TURNS, "\t(1) Normal termination (return value 3)"), False),
    ],
)
def test_a_loop_ends_well_at_what_was_asked_for_or_by_report(lines: tuple[str, ...], is_end: bool) -> None:
    """In whatever words the program counts, and the launcher reports."""
    diagnosis = ANALYZER.analyze(ANALYZER.read(BytesIO("\n".join(lines).encode())), Facts())
    assert (diagnosis.category == "none") is is_end
