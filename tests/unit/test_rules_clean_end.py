"""Whose last words count."""

from dataclasses import replace

from diagnoser.model import Provenance, Stream
from diagnoser.rules import clean_end
from tests.rule_files import ANALYZER, log


def test_only_words_of_the_job_end_it_well() -> None:
    """A node's own log, which people and daemons write into, says nothing about the end of a run."""
    evidence = log("step 1 loss 2.5", "Training completed successfully")
    table = ANALYZER.knowledge.heuristics.ends
    assert clean_end.find_clean_end(evidence, table, lambda line: False) is not None
    of_node = Stream("syslog", "gpu-001", provenance=Provenance.NODE)
    lines = (evidence.lines[0], replace(evidence.lines[1], stream=of_node))
    assert clean_end.find_clean_end(replace(evidence, lines=lines), table, lambda line: False) is None
