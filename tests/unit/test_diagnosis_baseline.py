"""The baseline of a job family: what it learns, what it never learns, and what it changes in a verdict."""

import pytest

from diagnoser import compress
from diagnoser.compress import Delta, Digest, baseline
from diagnoser.diagnosis import baseline as novelty
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model import Diagnosis, Event, EventKind, Evidence, Facts, LineBlock, RootCause, Stream
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from tests import accuracy_bars

ROUTINE = "loading the tokenizer of the mix\nmounted the shards of the mix\nwarming up the kernels\n"
TROUBLE = "rank 3 lost its link\nKeyError: 'mask'\nloss: nan\n"
NEW = "falling back to the slow path of the sampler\n"


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


def delta(analyzer: LogAnalyzer, log: str) -> Delta:
    compressor = analyzer.compressor()
    compressor.feed(LineBlock(Stream(), log.encode()))
    return compressor.take()


def run(analyzer: LogAnalyzer, log: str, name: str) -> bytes:
    data = baseline.learned(delta(analyzer, log), name)
    assert data is not None
    return data


def clean(analyzer: LogAnalyzer, count: int, log: str = ROUTINE) -> list[bytes]:
    return [run(analyzer, log, f"j/{number}") for number in range(count)]


def sharpened(analyzer: LogAnalyzer, log: str, runs: list[bytes]) -> Diagnosis:
    digest: Digest = compress.digest(delta(analyzer, log))
    found = analyzer.diagnose(digest.evidence, Facts())
    return novelty.sharpened(found, digest, runs, lambda part: analyzer.diagnose(part, Facts()))


def test_routine_is_learned_and_trouble_is_not(analyzer: LogAnalyzer) -> None:
    """Errors, anchors and diverged values are never routine, however clean the run was called: no poison."""
    learned = baseline.of(clean(analyzer, 1, ROUTINE + TROUBLE)).shapes
    assert learned == baseline.of(clean(analyzer, 1)).shapes
    assert baseline.learned(delta(analyzer, TROUBLE), "j/1") is None


def test_the_last_runs_count_and_each_once() -> None:
    """Of many runs the last five; one that is diagnosed twice is one run."""
    runs = [number.to_bytes(8, "big") + (number * 7).to_bytes(8, "little") for number in (1, 2, 3, 4, 5, 6, 6)]
    known = baseline.of(runs)
    assert known.runs == 5
    assert known.shapes == {14, 21, 28, 35, 42}


def test_too_few_runs_are_said_so(analyzer: LogAnalyzer) -> None:
    """Two clean runs are no baseline, and the notes say it."""
    found = sharpened(analyzer, ROUTINE + NEW, clean(analyzer, 2))
    assert any("no baseline: 2 of 3" in note for note in found.notes)


def test_what_no_clean_run_printed_is_shown(analyzer: LogAnalyzer) -> None:
    """The line that is new against the baseline is told with its number; routine is not."""
    found = sharpened(analyzer, ROUTINE + NEW, clean(analyzer, 3))
    assert [note for note in found.notes if "not seen" in note] == [f"not seen in 3 clean runs: line 4: {NEW.strip()}"]


def test_a_guess_at_routine_is_taken_back(analyzer: LogAnalyzer) -> None:
    """A line whose words complain, that clean runs print as well, is no candidate for the cause."""
    quiet = "the run waits for a slow worker node\n"
    digest = compress.digest(delta(analyzer, ROUTINE + quiet))
    evidence = digest.evidence
    root = next(line for line in evidence.lines if line.text == quiet.strip())
    plain = analyzer.diagnose(evidence, Facts())
    guess = Diagnosis(
        Outcome.FAILED,
        Category.INFRASTRUCTURE,
        FailureType.NODE_FAILURE,
        0.5,
        "heuristic:words",
        root_cause=RootCause(root.number, root.text),
    )
    seen: list[int] = []

    def again(part: Evidence) -> Diagnosis:
        seen.append(len(part.lines))
        return plain

    runs = clean(analyzer, 3, ROUTINE + quiet)
    assert novelty.sharpened(guess, digest, runs, again).root_cause == plain.root_cause
    assert seen == [len(evidence.lines) - 1]
    assert novelty.sharpened(guess, digest, clean(analyzer, 3), again).type is FailureType.NODE_FAILURE


@pytest.mark.parametrize(
    ("outcome", "kind", "code", "clean_run"),
    [
        (Outcome.COMPLETED, FailureType.COMPLETED, 0, True),
        (Outcome.COMPLETED, FailureType.COMPLETED, 1, False),
        (Outcome.FAILED, FailureType.LOSS_DIVERGENCE, 0, False),
        (Outcome.UNKNOWN, FailureType.UNKNOWN, 0, False),
    ],
)
def test_only_a_clean_run_is_learned_from(outcome: Outcome, kind: FailureType, code: int, clean_run: bool) -> None:
    """It ended with 0 and nothing in it was diagnosed; anything else teaches nothing."""
    found = Diagnosis(outcome, Category.NONE, kind, 0.9, "heuristic:exit_event")
    assert novelty.is_clean(found, (Event(EventKind.EXIT, 1.0, code=code),)) is clean_run
    assert not novelty.is_clean(found, ())
