"""No line that a rule can match may slip past the gate."""

from diagnoser.compress import Compressor, Prefilter, digest
from diagnoser.model import Anchor, LineBlock, Mark, Stream

XID = Prefilter([Anchor("Xid", True)], [(("Xid",), (r"Xid \(\S+\): (?:79|74)\b",), True)])


def kept(gate: Prefilter, lines: list[str]) -> dict[int, Mark]:
    """Numbers and marks of kept lines among 500 routine ones that follow and precede them."""
    routine = [f"step {n} took 0.1 s" for n in range(500)]
    text = "\n".join([*routine, *lines, *routine]) + "\n"
    compressor = Compressor(gate)
    compressor.feed(LineBlock(Stream(), text.encode()))
    return {line.number - 500: line.mark for line in digest(compressor.take()).lines}


def test_one_line_with_the_code_is_found_among_many_without() -> None:
    """A code that a rule names is seen although thousands of lines of the same skeleton carry other codes."""
    lines = [f"NVRM: Xid (PCI:0000:0{n % 8}:00): {13 + n % 2}, pid {n}" for n in range(400)]
    lines[250] = "NVRM: Xid (PCI:0000:03:00): 79, pid 250"
    marks = kept(XID, lines)
    assert marks[251] is Mark.ANCHOR
    assert len(marks) < 60


def test_two_codes_are_two_signatures() -> None:
    """The first lines of one code do not use up the room of another."""
    lines = ["NVRM: Xid (PCI:0000:03:00): 79, gone"] * 50 + ["NVRM: Xid (PCI:0000:03:00): 74, gone"]
    assert kept(XID, lines)[51] is Mark.ANCHOR


def test_without_patterns_every_anchored_line_counts() -> None:
    """Anchors alone are enough: patterns only make the gate finer."""
    assert kept(Prefilter([Anchor("lost contact")]), ["we lost contact again"])[1] is Mark.ANCHOR


def test_an_anchor_alone_is_not_enough_where_patterns_are_known() -> None:
    """A loose word in a routine line does not make it worth keeping."""
    gate = Prefilter([Anchor("onfig")], [(("onfig",), ("onfig file is broken",), True)])
    assert 200 not in kept(gate, [f"read config entry {n}" for n in range(400)])


def test_an_anchor_that_no_rule_owns_counts_by_itself() -> None:
    """What a later stage asks for beside the rules is kept, whatever the rules want."""
    gate = Prefilter([Anchor("sluice"), Anchor("wharf")], [(("sluice",), ("sluice jammed",), True)])
    marks = kept(gate, ["the wharf is open", *[f"sluice {n} is open" for n in range(400)]])
    assert marks[1] is Mark.ANCHOR
    assert 200 not in marks


def test_what_a_condition_asks_for_is_kept() -> None:
    """Patterns without anchors stand for lines that a rule wants near its own."""
    gate = Prefilter([Anchor("x y z")], [(("x y z",), ("x y z",), False), ((), ("shutting the sluice",), False)])
    assert kept(gate, ["now shutting the sluice"])[1] is Mark.ANCHOR


def test_fatal_is_told_from_symptom() -> None:
    """Only the pattern of a rule that names a root makes a delta fatal."""
    for fatal in (True, False):
        compressor = Compressor(Prefilter([Anchor("sluice", fatal)], [(("sluice",), ("sluice jammed",), fatal)]))
        compressor.feed(LineBlock(Stream(), b"the sluice jammed\n"))
        assert compressor.take().fatal is fatal
