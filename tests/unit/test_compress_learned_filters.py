"""Learned Filter Rules: which patterns stand, what they may know, and that stored deltas never depend on them."""

from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser import compress
from diagnoser.compress import Delta, learned_filters
from diagnoser.compress.learned_filters import Known
from diagnoser.config import loader
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.context import family_of
from diagnoser.learning import filter_validation, filter_writer, segments
from diagnoser.learning.filter_writer import Shown
from diagnoser.model import Job, LineBlock, Stream
from tests import accuracy_bars
from tests.corpus import CORPUS, needs_corpus

STREAMED = "qx-feeder: streamed shard 7 of volume a in 12 ms"
JOB = Job("feeding-1", framework="qx")
RULE = Known("r", (r"^qx-feeder: streamed shard \d+ of volume",))
READER = loader.load_reader(Settings())
IN_FORCE = replace(READER, routines={family_of(JOB): (RULE,)})


def log(*end: str) -> bytes:
    rows = [STREAMED.replace("7", str(number)) for number in range(300)]
    return "\n".join([*rows, *end, ""]).encode()


def delta(data: bytes, reader: LogAnalyzer = READER, first: int = 1) -> bytes:
    compressor = reader.compressor()
    compressor.feed(LineBlock(Stream(), data, first))
    return compress.to_bytes(compressor.take())


def never(text: str) -> bool:
    return False


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        (r"^qx-feeder: streamed shard \d+ of volume \S+ in \d+ ms$", ""),
        (r"streamed shard", ""),
        (r"(?i)QX-FEEDER: streamed", ""),
        (r"", "characters"),
        (r"(a", "RE2"),
        (r"(?=x)streamed shard", "RE2"),
        (r"no such line", "none of the lines"),
        (r"streamed", "one word"),
        (r".", "one word"),
        (r"\w+: \w+ \w+", "one word"),
        (r"^qx-feeder: .*$", "whatever follows"),
        (r"^qx-feeder: streamed shard [7] of", "certain numbers"),
        (r"shard 7 of volume", "certain numbers"),
    ],
)
def test_a_pattern_names_the_words_of_its_line_and_no_numbers(pattern: str, fault: str) -> None:
    """Wide expressions, certain numbers and other syntax are told apart."""
    found = filter_validation.fault(pattern, [STREAMED])
    assert (fault in found) if fault else not found


def test_a_rule_knows_quiet_shapes_only() -> None:
    """The same words with trouble in them, with an anchor or in a traceback stay what they were."""
    rule = Known("wide", (r".",))
    loud = ["RuntimeError: shard 7 is stale", "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus."]
    evidence = compress.digest(learned_filters.known(compress.from_bytes(delta(log(*loud))), (rule,))).evidence()
    assert [one.text for one in evidence.lines][-2:] == loud
    named = {one.filtered_by for one in evidence.templates if any(text in one.samples for text in loud)}
    assert not named & {"learned/wide"}


def test_what_rules_know_is_one_entry_and_nothing_else_changes() -> None:
    """Counts stay, verbatim lines stay, and the view is shorter."""
    data = [delta(log("zx81: lane 4 went dark at last"))]
    before, after = READER.digest(data, JOB), IN_FORCE.digest(data, JOB)
    (one,) = [one for one in after.templates if one.filtered_by]
    assert (one.filtered_by, one.count) == ("learned/r", 300)
    assert sum(one.count for one in after.templates) == sum(one.count for one in before.templates)
    assert after.lines == before.lines
    assert IN_FORCE.digest(data, Job("serving")).templates == before.templates


def test_deltas_of_replicas_with_other_rules_are_the_same() -> None:
    """Rules are applied when a log is read: what is stored, and how it merges, does not depend on them."""
    one, two = log(), log("the end is near")
    assert delta(one, IN_FORCE) == delta(one)
    mixed = [delta(one, IN_FORCE), delta(two, READER, 301)]
    assert IN_FORCE.digest(mixed, JOB).templates == IN_FORCE.digest(mixed[::-1], JOB).templates
    assert READER.merge(mixed) == READER.merge([delta(one), delta(two, IN_FORCE, 301)])


def test_a_segment_is_found_again_by_its_name() -> None:
    """In the same log; not in one that lacks its shapes."""
    found = compress.from_bytes(delta(log()))
    (segment,) = segments.of(found, never)
    assert segments.again(found, segment.name) == segment
    assert segments.again(compress.from_bytes(delta(b"nothing\n")), segment.name) is None
    assert segments.again(found, "") is None


def test_lines_with_an_anchor_are_no_segment() -> None:
    """A literal of any rule is enough."""
    assert segments.of(compress.from_bytes(delta(log())), lambda text: "shard" in text) == []


def test_a_rule_file_is_in_disguise_and_proves_itself() -> None:
    """Examples come from the masked lines, and the file is read as any filter file."""
    lines = [Shown("gpu-17: volume a mounted in 3 s", "host-1: volume a mounted in 3 s", 90)]
    kept = filter_writer.usable(filter_writer.from_shapes([one.text for one in lines], "host-"), lines)
    text = filter_writer.rule_text("routine_1", kept, lines)
    assert "gpu-17" not in text
    assert filter_validation.read("routine_1", text).takes("gpu-99: volume a mounted in 45 s")


def test_answers_agree_by_the_lines_that_they_know() -> None:
    """Two expressions may differ; what only one answer knows is left out."""
    lines = [Shown(text, text, 60) for text in (STREAMED, "page sweep number 3 gave 4 pages back")]
    one, other = [r"streamed shard \d+", r"page sweep number"], [r"^qx-feeder: streamed shard"]
    assert filter_writer.agreed([one, other, []], lines) == [one[0], other[0]]


def test_what_rules_are_proven_by_is_no_routine() -> None:
    """A pattern that takes an example of a shipped rule is refused."""
    ruleset = READER.knowledge.engine.ruleset
    assert filter_validation.shipped(RULE, ruleset).passed
    assert not filter_validation.shipped(Known("x", ("GPU has fallen off the bus",)), ruleset).passed


def shapes_of(log: Path) -> tuple[Delta, Known]:
    """What the shapes of a healthy log would be written down as."""
    with log.open("rb") as opened:
        found = compress.from_bytes(READER.delta(opened)[0])
    anchors = [anchor.text for anchor in READER.knowledge.anchors]
    cut = segments.of(found, lambda text: any(anchor in text for anchor in anchors))
    lines = [Shown(one.text, one.text, one.count) for segment in cut for one in segment.samples]
    return found, Known(
        "all", tuple(filter_writer.usable(filter_writer.from_shapes([o.text for o in lines], "-"), lines))
    )


@needs_corpus
@pytest.mark.corpus
def test_no_rule_from_a_healthy_log_takes_a_labelled_root_line() -> None:
    """What is written down from the shapes of healthy runs knows a part of them, and no cause of any failure."""
    logs = sorted((CORPUS / "normal").glob("*.log"), key=lambda log: log.stat().st_size)[10:90:8]
    rules = [shapes_of(log) for log in logs]
    roots = [
        learned_filters.message(one.root_text)
        for folder in accuracy_bars.FOLDERS
        for one in accuracy_bars.labels(folder)
        if one.root_text
    ]
    assert sum(learned_filters.taken(found, rule).lines for found, rule in rules) > 1_000
    assert [text for text in roots for _, rule in rules if rule.takes(text)] == []
