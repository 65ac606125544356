"""The part of the log that a page shows."""

from diagnoser.model import EvidenceLine, Line, RootCause, Stream, Symptom
from diagnoser.model.taxonomy import FailureType
from diagnoser.web.pages.excerpt import Excerpt, LineRole, excerpts
from tests.serving import ECC, verdict

STDOUT = Stream()


def kept(*numbers: int, stream: Stream = STDOUT) -> list[Line]:
    return [Line(stream, number, f"line {number}", f"line {number}") for number in numbers]


def numbers(excerpt: Excerpt) -> list[int]:
    return [row.number for row in excerpt.rows]


def test_cited_lines_stand_in_order_with_their_roles() -> None:
    """Root, evidence and symptoms stand in the order of the log; what is not shown between them is counted."""
    (excerpt,) = excerpts(ECC)
    assert [(row.number, row.role, row.gap) for row in excerpt.rows] == [
        (18_233, LineRole.ROOT, 18_232),
        (18_240, LineRole.EVIDENCE, 6),
        (18_301, LineRole.SYMPTOM, 60),
        (18_344, LineRole.SYMPTOM, 42),
    ]
    assert excerpt.rows[0].note.startswith("Xid 94")


def test_kept_lines_around_a_cited_one_are_its_context() -> None:
    """Up to five kept lines on each side, only near ones, and a cited line keeps its role."""
    found = verdict(root_cause=RootCause(50, "boom"))
    (excerpt,) = excerpts(found, kept(1, *range(40, 61), 90))
    assert numbers(excerpt) == list(range(45, 56))
    assert [row.role for row in excerpt.rows if row.number == 50] == [LineRole.ROOT]
    assert [row.text for row in excerpt.rows if row.number == 49] == ["line 49"]


def test_many_symptoms_do_not_drown_the_root() -> None:
    """Only the first symptoms stand in the excerpt, with little around them, and a run of one type is named once."""
    symptoms = tuple(Symptom(number, f"line {number}", FailureType.CUDA_ERROR) for number in range(100, 140))
    (excerpt,) = excerpts(verdict(root_cause=RootCause(50, "boom"), symptoms=symptoms), kept(*range(1, 200)))
    shown = [row for row in excerpt.rows if row.role is LineRole.SYMPTOM]
    assert [row.number for row in shown] == list(range(100, 108))
    assert [row.note for row in shown] == [FailureType.CUDA_ERROR, *[""] * 7]
    assert [row.number for row in excerpt.rows if row.number > 60 and row.role is LineRole.CONTEXT] == [99, 108]


def test_a_line_that_is_cited_twice_has_the_role_that_matters_most() -> None:
    """A root line that is evidence as well stands once, as the root; context never hides a citation."""
    found = verdict(
        root_cause=RootCause(5, "a"),
        evidence=(EvidenceLine(5, "a", "why"), EvidenceLine(6, "b", "next")),
        symptoms=(Symptom(6, "b", FailureType.CUDA_ERROR), Symptom(9, "c", FailureType.CUDA_ERROR)),
    )
    (excerpt,) = excerpts(found, kept(*range(1, 12)))
    roles = {row.number: row.role for row in excerpt.rows}
    assert (roles[5], roles[6], roles[9], roles[7]) == (
        LineRole.ROOT,
        LineRole.EVIDENCE,
        LineRole.SYMPTOM,
        LineRole.CONTEXT,
    )
    assert len(excerpt.rows) == len(roles)


def test_streams_are_told_apart() -> None:
    """Lines of two sources never mix, and of two nodes the one whose line reads the same is chosen."""
    found = verdict(root_cause=RootCause(3, "line 3"), evidence=(EvidenceLine(3, "xid", "kernel", source="dmesg"),))
    first, second = Stream("stdout", "n1", 0), Stream("stdout", "n2", 8)
    lines = [Line(first, 3, "something else", ""), *kept(2, 3, 4, stream=second)]
    shown = {excerpt.stream: numbers(excerpt) for excerpt in excerpts(found, lines)}
    assert shown == {second: [2, 3, 4], Stream("dmesg"): [3]}


def test_a_verdict_without_lines_has_no_excerpt() -> None:
    """Nothing is cited, nothing is shown, also where lines are kept."""
    assert excerpts(verdict(), kept(1, 2, 3)) == []


def test_what_the_runtime_says_is_not_of_the_log() -> None:
    """It has no line: only lines of the log are shown with their neighbours."""
    said = EvidenceLine(0, "3 ranks wait for it", "behind", source="flight_recorder")
    assert excerpts(verdict(root_cause=RootCause(0, "rank 2", source="flight_recorder"), evidence=(said,))) == []
    (excerpt,) = excerpts(verdict(root_cause=RootCause(3, "line 3"), evidence=(said,)), kept(2, 3, 4))
    assert numbers(excerpt) == [2, 3, 4]
