"""Which rules hit which lines."""

from dataclasses import replace

import pytest

from diagnoser.model import Severity, Traceback
from diagnoser.rules import engine as module
from tests.rule_files import engine, log, rule


def test_hits_come_in_the_order_of_lines_and_of_specificity() -> None:
    """Hits follow the lines; on one line the more specific rule is first."""
    made = engine(rule("broad", specificity="word"), rule("exact", specificity="code"))
    hits = made.match(log("nothing", "a marker", "marker again"))
    assert [(hit.line, hit.rule.id) for hit in hits] == [(1, "exact"), (1, "broad"), (2, "exact"), (2, "broad")]


def test_named_groups_are_extracted() -> None:
    """Rank, node and GPU are read from the line; an optional group that did not take part is None."""
    made = engine(rule("one", patterns=[r"marker on (?P<node>\S+) rank (?P<rank>\d+)(?: gpu (?P<gpu>\S+))?"]))
    (hit,) = made.match(log("marker on n07 rank 12"))
    assert (hit.rank, hit.node, hit.gpu) == (12, "n07", None)


def test_groups_of_several_patterns_are_joined() -> None:
    """Two patterns of a rule on one line each add what they find."""
    made = engine(rule("one", patterns=[r"marker (?P<node>n\d+)", r"rank=(?P<rank>\d+)"]))
    (hit,) = made.match(log("marker n3 rank=4"))
    assert (hit.rank, hit.node) == (4, "n3")


def test_unless_vetoes() -> None:
    """One pattern of ``unless`` in the same line keeps the rule from hitting."""
    made = engine(rule("one", unless=["retrying"]))
    assert [hit.line for hit in made.match(log("marker", "marker, retrying"))] == [0]


def test_near_and_not_near_look_at_the_lines_around() -> None:
    """``near`` wants a line within reach, ``not_near`` wants none; the line itself does not count."""
    made = engine(rule("one", near={"patterns": ["cause"], "lines": 2}), rule("two", not_near={"patterns": ["cause"]}))
    assert [hit.rule.id for hit in made.match(log("cause", "x", "marker"))] == ["one"]
    assert [hit.rule.id for hit in made.match(log("cause", "x", "y", "marker"))] == []
    assert [hit.rule.id for hit in made.match(log("marker of a cause"))] == ["two"]


def test_severity_asks_for_the_level_of_the_record() -> None:
    """A rule with ``severity`` hits only lines of records of these levels; ``none`` stands for lines of no record."""
    made = engine(rule("one", severity=["error"]), rule("two", severity=["none", "debug"]))
    bare = log("marker", "marker", "marker")
    severities = (Severity.ERROR, Severity.INFO, None)
    lines = tuple(replace(line, severity=level) for line, level in zip(bare.lines, severities, strict=True))
    assert [(hit.line, hit.rule.id) for hit in made.match(replace(bare, lines=lines))] == [(0, "one"), (2, "two")]


def test_frames_ask_for_the_traceback() -> None:
    """A rule with ``frames`` hits only a line whose traceback runs through such a frame."""
    made = engine(rule("one", frames=[r"checkpoint\.py"]))
    inside = Traceback(-1, (0, 1, 2), ('File "lib/checkpoint.py", line 3, in load',), "OSError", "marker", 2)
    bodies = ("Traceback (most recent call last):", '  File "lib/checkpoint.py", line 3, in load', "OSError: marker")
    assert [hit.line for hit in made.match(log(*bodies, tracebacks=(inside,)))] == [2]
    assert made.match(log(*bodies)) == ()


def test_quoted_source_is_no_message() -> None:
    """The source line of a traceback that would raise the message is not matched, the raised line is."""
    made = engine(rule("one"))
    hits = made.match(log('    raise ValueError("marker")', "ValueError: marker"))
    assert [hit.line for hit in hits] == [1]


def test_only_anchored_rules_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line costs the patterns of the rules whose anchor it holds, however many rules there are."""
    made = engine(*(rule(f"r{n}", anchors=[f"anchor {chr(97 + n)}"], patterns=[f"pattern{n}"]) for n in range(20)))
    run: list[str] = []
    compiled = module._regex

    def counted(pattern: str) -> object:
        run.append(pattern)
        return compiled(pattern)

    monkeypatch.setattr(module, "_regex", counted)
    made.match(log("nothing of note", "an anchor c here"))
    assert run == ["pattern2"]


def test_no_rules_match_nothing() -> None:
    """An empty rule set is usable."""
    assert engine().match(log("marker", "")) == ()
