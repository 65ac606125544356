"""What a line's own words say where no rule knows it."""

import pytest

from diagnoser.model.errors import RuleFaults
from diagnoser.model.taxonomy import FailureType
from diagnoser.rules import keyword_classifier
from tests.rule_files import HEURISTICS, collect, log, trace


def test_the_shipped_words_do_what_their_examples_say() -> None:
    """Each example is named by its entry of the table and cleared or spared as it says."""
    assert HEURISTICS.keywords.faults("keywords.yaml") == []


TABLE = """
version: 1
trouble: (?:failed|lost)
calm: {patterns: [retry], examples: {match: [retry 3], no_match: [disk lost]}}
keywords:
  - {type: disk_full, patterns: ["disk.*{trouble}"], examples: {match: [disk lost], no_match: [disk ok]}}
  - {type: ecc_error, patterns: ["lost"], examples: {match: [bit lost], no_match: [bit ok]}}
"""


def test_the_first_entry_names_the_line_and_calm_words_clear_it() -> None:
    """Order decides between entries; calm words count only where nothing is known to have failed."""
    made = keyword_classifier.load("k.yaml", TABLE)
    assert (made.says("Disk LOST"), made.says("bit lost"), made.says("fine")) == ("disk_full", "ecc_error", None)
    assert made.complains("bit lost, retry") is None and made.says("bit lost, retry") == "ecc_error"
    assert made.faults("k.yaml") == []


def test_each_example_that_does_not_hold_is_told() -> None:
    """An example that another entry takes, one that hits and one that is not cleared are three faults."""
    wrong = TABLE.replace("match: [bit lost]", "match: [disk lost]").replace("[disk ok]", "[disk failed]")
    told = keyword_classifier.load("k.yaml", wrong.replace("[retry 3]", "[again]")).faults("k.yaml")
    assert [fault.message.split(":")[0] for fault in told] == [
        "calm.match",
        "keywords.0 (disk_full)",
        "keywords.1 (ecc_error)",
    ]


def test_a_pattern_that_does_not_compile_is_told_with_its_line() -> None:
    """A table with a broken expression does not load."""
    with pytest.raises(RuleFaults, match=r"k.yaml:7: not an RE2 expression"):
        keyword_classifier.load("k.yaml", TABLE.replace('["lost"]', '["("]'))


def test_words_are_asked_only_when_nothing_else_was_found() -> None:
    """A log with an exception is not read for words; one with nothing else is."""
    assert [one.by for one in collect(log("mlx5_2: link down"), ())] == ["heuristic:words"]
    both = log("mlx5_2: link down", "Traceback", "KeyError: 'a'", tracebacks=(trace(2, "KeyError", "'a'"),))
    assert [one.by for one in collect(both, ())] == ["heuristic:exception_class"]


def test_the_message_of_a_generic_exception_tells() -> None:
    """RuntimeError says nothing, its message may; a telling class is not overruled by words."""
    bodies = ("Traceback", "x", "RuntimeError: NPU out of memory: 3 GiB wanted")
    generic = log(*bodies, tracebacks=(trace(2, "RuntimeError", "NPU out of memory: 3 GiB wanted"),))
    assert [one.type for one in collect(generic, ())] == [FailureType.OUT_OF_MEMORY_ERROR]
    telling = log("Traceback", "x", "KeyError: 'nan loss'", tracebacks=(trace(2, "KeyError", "'nan loss'"),))
    assert [one.type for one in collect(telling, ())] == [FailureType.KEY_ERROR]
