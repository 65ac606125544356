"""How sure the rules that ship are, what else it could be, and what follows from a guess."""

from dataclasses import replace

import pytest

from diagnoser.diagnosis import pipeline
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model import GUESS, Diagnosis, Facts, Rival
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome
from diagnoser.rules.calibration import Decider, VerdictKind
from tests import accuracy_bars
from tools import calibrate

STEPS = "".join(f"iteration {n}/900 | lm loss: {9 - n / 200:.4f} |\n" for n in range(1, 20))
KILLED = STEPS + "launch.sh: line 7:  4242 Killed                  python train.py\n"
TRACE = 'Traceback (most recent call last):\n  File "/srv/app/train.py", line 80, in <module>\n    main()\n'
T = FailureType


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


def diagnose(analyzer: LogAnalyzer, log: str) -> Diagnosis:
    return pipeline.diagnose(analyzer.evidence_of(log.encode()), Facts(), analyzer.knowledge)


def test_a_kill_without_another_sign_is_a_guess(analyzer: LogAnalyzer) -> None:
    """Whoever sent the signal does not show; the likeliest sender is named as such, and a person is told."""
    found = diagnose(analyzer, KILLED)
    assert found.type is T.HOST_OUT_OF_MEMORY
    assert found.confidence < GUESS
    assert found.guess.startswith("unknown, most likely host out of memory")
    assert found.recovery.action is Action.NOTIFY_USER


def test_every_decider_has_its_row(analyzer: LogAnalyzer) -> None:
    """So that a level, a fact or a heuristic that no log has shown yet says what its like are worth."""
    assert set(Decider) <= analyzer.knowledge.calibration.kinds.keys()


def test_the_table_states_what_the_first_sights_in_force_give(analyzer: LogAnalyzer) -> None:
    """First sights of later generations are recorded without changing what is stated: they test it."""
    rows = analyzer.knowledge.calibration.kinds
    cases = {key: row.cases for key, row in rows.items()}
    trials = calibrate.Counts(cases, {key: round(row.cases * row.right) for key, row in rows.items()})
    fit = calibrate.Fit(trials, calibrate.Counts.of(calibrate.in_force(calibrate.read_sights())))
    for key, row in rows.items():
        parts = key.split(".", 2)
        decider, detail, facts = (*parts, "", "")[:3]
        said = fit.said(VerdictKind(Decider(decider), detail, facts), len(parts))
        assert said == pytest.approx(row.said, abs=0.002)


@pytest.mark.parametrize(
    ("decider", "most"),
    [
        ("words", 0.9),
        ("exception", 0.9),
        ("generic_rule", 0.95),
        ("clean_end", 0.9),
        ("other", 0.9),
        ("killed", 0.49),
        ("nothing", 0.3),
    ],
)
def test_what_proves_little_is_never_sure(analyzer: LogAnalyzer, decider: str, most: float) -> None:
    """Words, a class of exceptions and a kill, however often they were right on the labelled logs."""
    rows = analyzer.knowledge.calibration.kinds.items()
    assert max(row.said for key, row in rows if key.split(".")[0] == decider) <= most


def test_other_causes_of_the_log_are_its_rivals(analyzer: LogAnalyzer) -> None:
    """Two at most, the likeliest first, never the answer itself, and together no more than what the answer leaves."""
    log = STEPS + TRACE + "KeyError: 'mask'\n" + STEPS + TRACE + "OSError: [Errno 28] No space left on device\n"
    log += "connection reset by peer\n"
    found = diagnose(
        analyzer, log + TRACE + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB.\n"
    )
    types = [rival.type for rival in found.rivals]
    assert 0 < len(types) <= 2
    assert found.type not in types
    assert found.confidence + sum(rival.confidence for rival in found.rivals) <= 1.0
    assert {rival.line for rival in found.rivals} <= set(range(1, log.count("\n") + 5))


GUESSED = Diagnosis(Outcome.FAILED, Category.SCRIPT, T.KEY_ERROR, 0.4, "heuristic:words")
RIVALS = (Rival(T.OS_ERROR, 7, 0.3), Rival(T.TYPE_ERROR, 9, 0.1))


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (GUESSED, "unknown, most likely key error (40%)"),
        (
            replace(GUESSED, rivals=RIVALS),
            "unknown, most likely key error (40%) or os error (30%) or type error (10%)",
        ),
        (replace(GUESSED, confidence=0.5, rivals=RIVALS), ""),
        (replace(GUESSED, type=T.UNKNOWN, rivals=RIVALS[:1]), "unknown, most likely os error (30%)"),
        (replace(GUESSED, type=T.UNKNOWN), ""),
    ],
    ids=["alone", "rivals", "even odds", "nothing named", "nothing known"],
)
def test_an_answer_below_even_odds_is_called_a_guess(verdict: Diagnosis, text: str) -> None:
    """With what it most likely is; an answer of at least even odds, or none at all, is called by its name."""
    assert verdict.guess == text
