"""Hashed words, signatures, the index, the threshold, and search within one log."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnoser.adapters.files import bundled, text
from diagnoser.model import (
    AttemptKey,
    ConfirmedFailure,
    Diagnosis,
    Evidence,
    Feedback,
    FeedbackVerdict,
    Line,
    Mark,
    RootCause,
    Signature,
    Similar,
    Stream,
    Template,
)
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.model.work import DiagnosisRecord
from diagnoser.recovery.policy import case_of, load
from diagnoser.retrieval import confirmed_failures, hashing, precedents, search, signature
from diagnoser.retrieval.index import Index

MESSAGE = "feeder: catalogue snapshot # differs from the quilt manifest of <host> , giving up"
SIGN = Signature(MESSAGE)
UNDECIDED = Diagnosis(Outcome.FAILED, Category.UNKNOWN, FailureType.UNKNOWN, 0.3, "heuristic:no_evidence")
POLICY = load("policy.yaml", text(bundled("rules") / "policy.yaml"))
HERE, THERE = AttemptKey("here"), AttemptKey("there")
OTHER = Stream("stderr", "gpu-004")


def known(
    id: str = "i1", kind: FailureType = FailureType.DATASET_LOADING_ERROR, sign: Signature = SIGN
) -> ConfirmedFailure:
    return ConfirmedFailure(id, THERE, 1.0, 2.0, kind, FeedbackVerdict.CORRECTED, "maria", sign, comment="rebuild it")


def settled(*near: Similar, sign: Signature = SIGN, diagnosis: Diagnosis = UNDECIDED) -> Diagnosis:
    return confirmed_failures.adopt_confirmed_failure(diagnosis, HERE, sign, near, POLICY)


def log(*texts: str, mark: Mark = Mark.SEVERITY) -> Evidence:
    return Evidence(tuple(Line(Stream(), n, body, body, mark=mark) for n, body in enumerate(texts, 1)))


@pytest.mark.parametrize(
    ("feedback", "line"),
    [
        (Feedback("f", "d", 1.0, FeedbackVerdict.CONFIRMED, "maria"), "the rank timed out"),
        (Feedback("f", "d", 1.0, FeedbackVerdict.CORRECTED, "maria", root_line=2), "disk full"),
        (Feedback("f", "d", 1.0, FeedbackVerdict.CORRECTED, "maria", root_line=1, root_stream=OTHER), "link down"),
        (Feedback("f", "d", 1.0, FeedbackVerdict.CORRECTED, "maria", root_line=9), ""),
    ],
)
def test_a_confirmed_failure_shows_the_line_that_a_person_named(feedback: Feedback, line: str) -> None:
    """Of the stream that they chose; none where the log does not have it any more, and the verdict's where they agree
    with it."""
    verdict = replace(UNDECIDED, root_cause=RootCause(3, "the rank timed out"))
    evidence = log("step 1", "disk full", "the rank timed out")
    evidence = replace(evidence, lines=(*evidence.lines, Line(OTHER, 1, "link down", "link down")))
    record = DiagnosisRecord("d", THERE, 1, 1.0, True, verdict)
    assert confirmed_failures.confirmed(record, feedback, evidence).line == line


@given(st.text())
def test_a_vector_has_length_one_or_is_nothing(told: str) -> None:
    """Whatever a log holds, the vector is finite, of the fixed size, and of length 1 where there is a word."""
    made = hashing.vector({"m": (told, 1.0)})
    assert made.shape == (hashing.DIMENSIONS,) and np.isfinite(made).all()
    assert float(np.linalg.norm(made)) == pytest.approx(1.0 if hashing.words(told) else 0.0, abs=1e-5)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2026-01-02 03:04:05 step 17 of shard 4", "2027-11-12 13:14:15 step 9 of shard 88"),
        ("cannot read /data/a/part_1.bin from gpu-017", "cannot read /mnt/zz/q/part_9.bin from gpu-204"),
        ("peer 10.0.3.4:29500 at 0x7f00aa is gone", "peer 10.1.9.77:31000 at 0x55ee12bb is gone"),
    ],
)
def test_what_differs_from_run_to_run_is_masked(one: str, other: str) -> None:
    """Times, numbers, paths, hosts and addresses leave the same words."""
    assert hashing.normalised(one) == hashing.normalised(other)


def test_names_of_nodes_are_masked_whatever_they_look_like() -> None:
    """A node that the log names is masked also where its name looks like a word."""
    assert "thor" not in hashing.normalised("rank 3 on Thor left", ["thor"])


def test_other_words_are_far_away() -> None:
    """A failure in other words is not even worth showing."""
    other = signature.vector(Signature("lantern: wick governor found no paraffin in vessel #"))
    assert float(signature.vector(SIGN) @ other) < confirmed_failures.ALIKE


def test_packing_loses_nothing() -> None:
    """A vector comes back from the store as it went."""
    made = signature.vector(SIGN)
    assert np.array_equal(hashing.unpacked(hashing.packed(made)), made)


def test_the_index_finds_the_nearest_and_forgets_what_is_dropped() -> None:
    """The nearest comes first; a dropped one is gone, the others stay; one that is put again is there once."""
    index, space = Index(), np.eye(100, dtype=np.float32)
    for number in range(100):
        index.put(known(f"{number:03d}"), space[number])
    index.put(known("007"), space[7])
    index.drop("003")
    assert [one.confirmed.diagnosis for one in index.nearest(space[99] + 0.1 * space[7], 2)] == ["099", "007"]
    assert "003" not in {one.confirmed.diagnosis for one in index.nearest(space[3], 200)}
    assert len(index) == 99


def test_a_vector_of_another_size_is_left_out() -> None:
    """A model that changed its size does not break the search."""
    index = Index()
    index.put(known("a"), np.ones(4, np.float32))
    index.put(known("b"), np.ones(5, np.float32))
    assert len(index) == 1 and index.nearest(np.ones(5, np.float32), 3) == []


def test_the_same_failure_is_decided_with_the_action_of_the_policy() -> None:
    """Type, words and confidence come from the confirmed failure; the action is the table's, as for no stable rule."""
    made = settled(Similar(known(), 1.0))
    assert (made.type, made.decided_by) == (FailureType.DATASET_LOADING_ERROR, "incident:i1")
    assert (made.mitigation, made.grounds.stable) == ("rebuild it", False)
    assert made.confidence == confirmed_failures.SURE
    assert made.recovery == POLICY.advise(case_of(made))


@pytest.mark.parametrize(
    "near",
    [
        (),
        (Similar(known(), confirmed_failures.SAME - 0.001),),
        (Similar(replace(known(), attempt=HERE), 1.0),),
        (Similar(known(sign=Signature(MESSAGE + "\nwick governor found no paraffin in the vessel")), 0.99),),
        (Similar(known(kind=FailureType.CANCELLED), 1.0),),
    ],
    ids=["none", "below the threshold", "of the same attempt", "one more line", "no failure"],
)
def test_what_is_not_the_same_failure_decides_nothing(near: tuple[Similar, ...]) -> None:
    """Only another attempt, above the threshold, with every line alike, and a failure."""
    assert settled(*near) == UNDECIDED


def test_a_message_that_any_failure_prints_decides_nothing() -> None:
    """What launchers say at every end is not a cause, however equal it is."""
    common = Signature("childfailederror: process # failed with exit code # on rank #")
    assert settled(Similar(known(sign=common), 1.0), sign=common) == UNDECIDED


def test_people_who_disagree_are_told_so() -> None:
    """Two causes for one failure leave it open, with a note."""
    made = settled(Similar(known(), 1.0), Similar(known("i2", FailureType.KEY_ERROR), 0.99))
    assert made.type is FailureType.UNKNOWN
    assert "different causes" in made.needs_review


def test_the_signature_is_the_same_before_and_after_a_person_spoke() -> None:
    """What is known by its complaints stays so when a model or a confirmed failure decided."""
    evidence = log("feeder: snapshot 4 differs from the manifest", "stitching failed after 9 patches")
    later = replace(UNDECIDED, type=FailureType.KEY_ERROR, category=Category.SCRIPT, decided_by="llm:some-model")
    assert signature.signature_of(evidence, UNDECIDED) == signature.signature_of(evidence, later)
    assert "snapshot # differs" in signature.signature_of(evidence, UNDECIDED).message


def test_a_cause_among_hundred_complaints_tells_two_failures_apart() -> None:
    """Of many complaining lines only some are stored; the others count all the same: one of them may be the cause."""
    common = [f"warning: {a}{b} is stale" for a in "abcdefghij" for b in "klmnopqrst"]
    one, other = ([*common[:50], f"feeder: the {it} broke", *common[50:]] for it in ("needle", "thimble"))
    signs = [signature.signature_of(log(*lines), UNDECIDED) for lines in (one, other, one)]
    assert all(len(sign.message) < 2_000 for sign in signs)
    assert [signature.is_same(signs[0], sign) for sign in signs] == [True, False, True]


def test_a_line_that_ends_in_a_colon_goes_on_in_the_next_one() -> None:
    """What a program prints below the place of its panic tells two of them apart; where it is missing, nothing does."""
    place = "thread 'main' panicked at /srv/quilt/stitch.rs:72:64:"
    lessons = []
    for message in ("attempt to divide by zero", "no thimble in the drawer"):
        panic = log("stitching 9 patches", place, message)
        lessons.append(precedents.lesson_of(panic, panic.lines[1], "quilt"))
    first, other = lessons
    assert first is not None and other is not None and first.root != other.root
    cut = log("stitching 9 patches", place)
    assert precedents.lesson_of(cut, cut.lines[1], "quilt") is None


def test_banners_are_no_signature() -> None:
    """A log in which nothing complains has none, so that silent ends are never taken for one another."""
    quiet = log("loading the tokenizer of the quilt", "building the index of patches", mark=Mark.NOVEL)
    assert signature.signature_of(quiet, UNDECIDED).text == ""


def test_confirmed_failures_are_told_to_a_model_without_hosts_and_paths() -> None:
    """Words of a person pass the same masks as log lines."""
    told = confirmed_failures.describe(Similar(replace(known(), comment="drain gpu-017, clean /scratch/a/b"), 0.97))
    assert "dataset_loading_error" in told and "<host>" in told
    assert "gpu-017" not in told and "/scratch" not in told


def test_search_finds_lines_by_words_that_are_not_exact() -> None:
    """A plural or a part of the words is enough; what has nothing to do with it is not found."""
    evidence = replace(
        log("reading shard 12", "quilt manifest is stale", "NVRM: Xid 79 on gpu-4", "NVRM: Xid 31 on gpu-4"),
        templates=(Template("step <NUM> loss <NUM>", 900, (Stream(), 5), (Stream(), 904), frozenset(), ()),),
    )
    assert [one.line for one in search.find_lines(evidence, "manifests of quilts", 5)] == [2]
    assert search.find_lines(evidence, "xid 79", 5)[0].line == 3
    (routine,) = search.find_lines(evidence, "loss", 5)
    assert (routine.is_template, routine.count) == (True, 900)
    assert search.find_lines(evidence, "zebra", 5) == []
