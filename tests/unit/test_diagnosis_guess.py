"""Where nothing names the cause, the likeliest line is named as a guess; what people, reports and rules say stands."""

import io

import pytest

from diagnoser.diagnosis.guess import LIKELY_END
from diagnoser.model import LIKELY_LINE, Diagnosis, Event, EventKind, Facts
from diagnoser.rules import schema
from tests.rule_files import ANALYZER, rule

_ROUNDS = tuple(f"{rank}: round {number} of 40, risk 0.{90 - number}" for number in range(9) for rank in (0, 1))

_EPOCHS = tuple(f"epoch {number} loss {3 - number / 10:.1f}" for number in range(1, 9))


def _verdict(*lines: str, facts: Facts | None = None, now: float | None = None) -> Diagnosis:
    log = ANALYZER.read(io.BytesIO("\n".join(lines).encode()), lambda _: None)
    return ANALYZER.analyze(log, facts or Facts(), now)


@pytest.mark.parametrize(
    ("end", "line", "rank"),
    [
        (("1: fit_hs: scheduler: window must not be empty",), 19, 1),
        (("1: fit_hs: cannot open the vocabulary", "0: round 9 of 40, risk 0.80"), 19, 1),
        (("0: fit_hs: column 7 must not be missing", "1: round 9 of 40, risk 0.80"), 19, 0),
    ],
)
def test_the_likeliest_line_is_named_as_a_guess(end: tuple[str, ...], line: int, rank: int) -> None:
    """Of a run that is known to have failed: it is the root, on the rank that printed it, and never sure enough for
    anything but telling a person."""
    diagnosis = _verdict(*_ROUNDS, *end, facts=Facts(events=(Event(EventKind.EXIT, 1.0, code=1),)))
    root = diagnosis.root_cause
    assert root is not None
    assert (root.line, root.rank, diagnosis.decided_by) == (line, rank, LIKELY_LINE)
    assert diagnosis.confidence < 0.5
    assert diagnosis.doubts
    assert diagnosis.recovery.action in ("notify_user", "check_and_resubmit")


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        (("0: fit_hs: reading 120 rows", "0: fit_hs: cannot open the vocabulary"), 2),
        (("1: fit_hs: cannot open the vocabulary", *(f"0: round {n} of 40, risk 0.{90 - n}" for n in range(30))), 1),
    ],
    ids=["never trained", "fell silent while its peer trained on"],
)
def test_a_run_that_shows_that_it_stopped_gets_a_guess(lines: tuple[str, ...], number: int) -> None:
    """The likeliest line is named without an exit status, and the outcome stays unknown."""
    diagnosis = _verdict(*lines)
    assert diagnosis.decided_by == LIKELY_LINE
    assert diagnosis.root_cause is not None
    assert (diagnosis.root_cause.line, diagnosis.outcome) == (number, "unknown")


@pytest.mark.parametrize("end", [(), ("1: eval calibration error: 0.1865",), ("0: check: loss nan=False, value=3.9",)])
def test_a_log_that_just_stops_gets_no_guess(end: tuple[str, ...]) -> None:
    """Where nobody says that the run failed, a line that only looks like a complaint does not say so either."""
    assert _verdict(*_ROUNDS, *end).decided_by != LIKELY_LINE


@pytest.mark.parametrize(
    ("lines", "decided_by"),
    [
        ((*_EPOCHS, "plateau, leaving"), LIKELY_END),
        (_EPOCHS, "heuristic:no_evidence"),
        (tuple(line for epoch in _EPOCHS for line in (epoch, "checkpoint -> last.pt")), "heuristic:no_evidence"),
        (("reading 120 rows", "mean risk 0.81, report in out/report.html"), "heuristic:no_evidence"),
    ],
    ids=["spoke after its last step", "ends with a step", "ends with a checkpoint", "says too little"],
)
def test_a_log_that_ends_like_those_of_completed_runs_is_of_one(lines: tuple[str, ...], decided_by: str) -> None:
    """Where nothing says how a run ended, the end of its log may; a log that just stops stays unknown."""
    assert _verdict(*lines).decided_by == decided_by


@pytest.mark.parametrize("cut", ["2026-11-20 10:40:46", "2026-11-20 10:40:46,000 INFO train st"])
def test_a_log_that_was_cut_within_its_last_line_shows_no_end(cut: str) -> None:
    """The line begins as those before it do: a copy, or a full disk, ended there."""
    steps = [f"2026-11-20 10:40:{n},000 INFO train step {n} loss 1.{90 - n}" for n in range(10, 46)]
    assert _verdict(*steps, cut).outcome == "unknown"


def test_a_mere_exit_code_gives_way_to_the_line_that_tells_why() -> None:
    """The run failed, as its launcher reports; its own complaint is the root."""
    end = ("0: fit_hs: cannot open the vocabulary", "srun: error: gpu-07: task 0: Exited with exit code 3")
    diagnosis = _verdict(*_ROUNDS, *end)
    assert diagnosis.root_cause is not None
    assert (diagnosis.root_cause.text, diagnosis.outcome) == (end[0], "failed")


@pytest.mark.parametrize(
    ("complaint", "decided_by"),
    [
        ("0: fit_hs: could not write model.bin: not a directory", LIKELY_LINE),
        ("0: fit_hs: wrote the model", "heuristic:clean_end"),
    ],
)
def test_a_likely_line_denies_an_end_that_only_words_show(complaint: str, decided_by: str) -> None:
    """The last words of a process say that it failed, whatever another one says of its own end."""
    rounds = tuple(f"1: round {number} of 40, risk 0.{90 - number}" for number in range(41))
    assert _verdict(*rounds, complaint, "1: finished all rounds").decided_by == decided_by


@pytest.mark.parametrize(
    "event", [Event(EventKind.EXIT, 1.0, code=0), Event(EventKind.CANCELLED, 1.0), Event(EventKind.PREEMPTED, 1.0)]
)
def test_a_reported_end_stands(event: Event) -> None:
    """A line is not guessed to be the cause of an end that a scheduler explains."""
    facts = Facts(events=(event,))
    assert _verdict(*_ROUNDS, "1: fit_hs: window must not be empty", facts=facts).decided_by != LIKELY_LINE


def test_what_people_called_no_failure_leads_to_no_guess() -> None:
    """A log with a line that somebody called benign is not called a failure for another of its lines."""
    lines = (*_ROUNDS, "1: fit_hs: cannot open the vocabulary", "1: fit_hs: window must not be empty")
    benign = rule("learned_vocabulary", role="benign", patterns=["cannot open the vocabulary"], anchors=["vocabulary"])
    analyzer = ANALYZER.with_rules(schema.load(dict([benign])))
    log = analyzer.read(io.BytesIO("\n".join(lines).encode()), lambda _: None)
    assert analyzer.analyze(log, Facts()).decided_by != LIKELY_LINE


def test_a_run_that_goes_on_gets_no_guess() -> None:
    """While an attempt is open, a complaint is no end of it."""
    assert _verdict(*_ROUNDS, "1: fit_hs: window must not be empty", now=0.0).decided_by != LIKELY_LINE


def test_what_calls_itself_a_warning_is_no_guess() -> None:
    """Where nobody says that the run failed, a program's own word for its line counts."""
    assert _verdict("0: fit_hs: reading 120 rows", "0: fit_hs: cannot open the vocabulary").decided_by == LIKELY_LINE
    warned = _verdict("0: fit_hs: reading 120 rows", "0: fit_hs: warning: cannot open the vocabulary")
    assert warned.decided_by != LIKELY_LINE
